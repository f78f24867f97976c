"""Times the speed benchmarks that other frameworks publish (cases.toml), with FedAvg, next to theirs and a plain loop.

    python -m benchmarks.public flute-lr-mnist --out docs/results/public-speed.json
    python -m benchmarks.public pfl-cifar10 blazefl-cnn --device cuda --data-dir DATA --wheels WHEELS --out speed.json
    python -m benchmarks.public flute-femnist --device cuda --seconds 15 --loop-seconds 8 --limit 60 --out speed.json

A case is measured in one run on one machine: the plain PyTorch loop, ours, the plain loop again, and the framework.
The results are written before the framework and after it.
Ours is all of `fedveca.run`, with partition and tests, after one run of one round that warms up; where its seconds are
over before its rounds, the rest is extrapolated from the rounds after the first. The plain loop takes the same model,
rows, clients and steps one client after the other. The framework is pfl or BlazeFL itself, in a process of its own,
where it is installed or its wheels lie in --wheels; for FLUTE, which is not a package, it is its core loop, rewritten.
Times of loops and frameworks are extrapolated from what they do in --loop-seconds; tests are part of all times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import torch

from benchmarks.public.cases import CASES, Case, make_case, parse_more
from benchmarks.public.loops import LABELS, LOOPS, LoopTime, Work, make_work, read_memory, reset_memory, time_loop, wait
from benchmarks.public.peers.answer import Answer, find_answer
from benchmarks.speed.machine import Machine, machine
from fedveca import run
from fedveca.runs.schema import get_number

AGREE = 1.5  # how far apart the two passes of the plain loop may be


class Times(TypedDict):
    """One case on one device; seconds are of all rounds, with their tests."""

    device: str
    rows: str  # "real" or "random"
    rounds: int  # of ours, that ran
    of: int
    seconds: float  # of ours, extrapolated where fewer rounds ran
    measured_seconds: float
    plain_seconds: float  # extrapolated, the mean of two
    plain_passes: list[float]
    accuracy: NotRequired[float]  # of our last model, where the rows are real and all rounds ran
    memory_mb: NotRequired[int]  # the most that PyTorch held on the device, ours
    plain_memory_mb: NotRequired[int]
    peers: list[Answer]
    failed: list[str]  # what went wrong with a framework
    load: NotRequired[list[float]]  # processes that wanted a core in the minute before, and in the last one
    torch: str
    machine: Machine


class Options(argparse.Namespace):
    """The command line."""

    cases: list[str]
    device: str
    data_dir: str
    random: bool
    wheels: str
    seconds: float
    loop_seconds: float
    grace: float
    limit: float
    rounds: int
    out: Path
    settings: list[str]  # key=value, from among the cases
    packages: str  # the folder into which the wheels were unpacked
    until: float  # when the time of all cases is over, by the monotonic clock


def time_ours(case: Case, device: str, seconds: float, rounds: int) -> dict[str, Any]:
    """Times `fedveca.run`, which ends after the round in which its seconds are over."""
    e, ends = case.experiment, list[float]()
    ran = min(rounds or e.rounds, e.rounds)
    run(e.replace(rounds=1, epochs="1"), device=device, **case.custom)  # libraries load and choose their kernels
    reset_memory(device)
    wait(device)
    began = time.perf_counter()

    def is_over() -> bool:
        ends.append(time.perf_counter())
        return len(ends) > 1 and ends[-1] - began > seconds

    done = run(e.replace(rounds=ran), device=device, stop=is_over, **case.custom)
    wait(device)
    measured, count = time.perf_counter() - began, len(done.rounds)
    if done.summary.get("stopped") and not case.is_real and measured < seconds / 2:  # the rate does not change the time
        print(f"  {done.summary['stopped']}; again with a smaller learning rate", flush=True)
        return time_ours(case._replace(experiment=e.replace(lr=e.lr / 100)), device, seconds, rounds)
    later = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else measured
    found: dict[str, Any] = {
        "rounds": count,
        "of": e.rounds,
        "seconds": round(measured + (e.rounds - count) * later, 3),
        "measured_seconds": round(measured, 3),
    }
    if case.is_real and count == e.rounds:
        found["accuracy"] = round(100 * (get_number(done.summary["last"], "test_accuracy") or 0.0), 2)
    if memory := read_memory(device):
        found["memory_mb"] = memory
    return found


def time_peers(case: Case, work: Work, plan: Options, times: Times) -> None:
    """Times the framework in each of its modes, or the rewritten loop; what fails is noted as well."""
    peer = CASES[case.name]["peer"]
    for mode in CASES[case.name].get("modes", ["default"]):
        try:
            answer = call_loop(peer, work, plan) if peer in LOOPS else call_peer(peer, mode, case, plan)
        except Exception as error:  # ours is kept
            times["failed"].append(f"{peer} {mode}: {shorten(error)}")
            print(f"  {times['failed'][-1]}", flush=True)
        else:
            times["peers"].append(answer)
            print(f"  {answer['label']}: {answer['seconds']:.1f} s", flush=True)


def call_loop(name: str, work: Work, plan: Options) -> Answer:
    """The rewritten loop of a framework, in this process."""
    done = time_loop(name, work, plan.loop_seconds)
    return {
        "label": LABELS[name],
        "seconds": round(done.seconds, 3),
        "rounds": round(done.rounds, 2),
        "accuracy": None,
    }


def call_peer(peer: str, mode: str, case: Case, plan: Options) -> Answer:
    """What a framework's script answers, in a process of its own."""
    words = [sys.executable, "-m", f"benchmarks.public.peers.{peer}", case.name, mode, *plan.settings]
    words += ["--device", plan.device, "--data-dir", plan.data_dir, "--seconds", str(plan.loop_seconds)]
    words += [] if case.is_real else ["--random"]
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*known, plan.packages])}
    status, output, errors = run_apart(
        words, environment, min(plan.loop_seconds + plan.grace, plan.until - time.monotonic())
    )
    answer = find_answer(output)
    if answer is None:
        raise RuntimeError(f"exit status {status}: {(errors.strip() or 'no message').splitlines()[-1]}")
    answer["seconds"] = round(answer["seconds"], 3)
    return answer


def run_apart(words: list[str], environment: dict[str, str], limit: float) -> tuple[int, str, str]:
    """The status, the output and the errors of a command, which ends with all its processes when its seconds are over.

    Raises:
        RuntimeError: Where it took too long.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as done:
        try:
            output, errors = done.communicate(timeout=max(0.0, limit))
        except BaseException as error:
            os.killpg(done.pid, signal.SIGKILL)  # its workers hold the pipes too
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(f"not done after {max(0.0, limit):.0f} s") from None
            raise
    return done.returncode, output, errors


def unpack_wheels(folder: str, into: str) -> None:
    """Unpacks all wheels of a folder, those of what a framework imports among them, into one folder."""
    for path in sorted(Path(folder).glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(into)


def shorten(error: Exception) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def time_case(case: Case, work: Work, plan: Options) -> Times:
    """Times one case without its framework: the plain loop, ours, and the plain loop again."""
    load = [os.getloadavg()[0]]
    passes: list[LoopTime] = [time_loop("plain", work, plan.loop_seconds / 2)]
    print(f"  plain loop: {passes[0].seconds:.1f} s", flush=True)
    ours = time_ours(case, plan.device, plan.seconds, plan.rounds)
    print(f"  ours: {ours['seconds']:.1f} s, {ours['rounds']} of {ours['of']} rounds ran", flush=True)
    passes.append(time_loop("plain", work, plan.loop_seconds / 2))
    low, high = sorted(each.seconds for each in passes)
    if high > AGREE * low:
        print(f"  the plain loop took {low:.1f} and {high:.1f} s: other work disturbs it, measure again", flush=True)
    device = torch.cuda.get_device_name() if plan.device.startswith("cuda") else "cpu"
    times: dict[str, Any] = {
        "device": device,
        "rows": "real" if case.is_real else "random",
        **ours,
        "plain_seconds": round(sum(each.seconds for each in passes) / len(passes), 3),
        "plain_passes": [round(each.seconds, 3) for each in passes],
        "peers": [],
        "failed": [],
        "load": [round(value, 2) for value in (*load, os.getloadavg()[0])],
        "torch": torch.__version__,
        "machine": machine(),
    }
    if passes[0].memory_mb:
        times["plain_memory_mb"] = passes[0].memory_mb
    ratio = times["plain_seconds"] / times["seconds"]
    print(f"  {times['seconds']:.1f} s for {times['of']} rounds, {ratio:.1f} times a plain loop", flush=True)
    whole: Times = cast("Times", times)
    return whole


def measure(name: str, plan: Options) -> None:
    """Measures one case and writes its times: those without the framework first, then all of them."""
    if time.monotonic() > plan.until:
        raise TimeoutError("not measured, since the time of all cases is over")
    began = time.monotonic()
    case = make_case(name, plan.data_dir, parse_more(plan.settings), plan.random)
    work = make_work(case, plan.device)
    times = time_case(case, work, plan)
    write_times(name, plan, times)
    time_peers(case, work, plan, times)
    write_times(name, plan, times)
    print(f"  measured in {time.monotonic() - began:.0f} s", flush=True)


def write_times(name: str, plan: Options, times: Times) -> None:
    """Writes the times of a case into the results, where the other cases stay."""
    found: dict[str, Any] = json.loads(plan.out.read_text("utf-8")) if plan.out.exists() else {}
    found[f"{name} {plan.device.partition(':')[0]}"] = times
    plan.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="CASE", help=f"{', '.join(CASES)}, or key=value of the settings")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default="", help="folder that holds the data sets; random rows where it does not")
    parser.add_argument("--random", action="store_true", help="random rows in all cases: no data set is looked for")
    parser.add_argument("--wheels", default="", help="folder with wheels of pfl, BlazeFL and what is missing for them")
    parser.add_argument("--seconds", type=float, default=120.0, help="of ours per case; the rest is extrapolated")
    parser.add_argument("--loop-seconds", type=float, default=20.0, help="of each other loop per case")
    parser.add_argument("--grace", type=float, default=240.0, help="seconds for a framework to start and to warm up")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds of all cases; later none begins")
    parser.add_argument("--rounds", type=int, default=0, help="of ours, at most so many")
    parser.add_argument("--out", type=Path, required=True, help="JSON; cases that are not named stay")
    plan = parser.parse_args(namespace=Options())
    plan.settings = [word for word in plan.cases if "=" in word]
    names = [word for word in plan.cases if "=" not in word]
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"{unknown[0]} is not a case; there are {', '.join(CASES)}")
    if plan.wheels and not any(Path(plan.wheels).glob("*.whl")):
        parser.error(f"{plan.wheels} holds no wheels")
    plan.until, failures = time.monotonic() + plan.limit, 0
    with tempfile.TemporaryDirectory() as plan.packages:
        if plan.wheels:
            unpack_wheels(plan.wheels, plan.packages)
        for name in names:
            print(name, flush=True)
            try:
                measure(name, plan)
            except Exception as error:  # the other cases are measured
                print(f"  failed: {shorten(error)}", flush=True)
                failures += 1
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
