"""Time the four jobs on our engine, the plain loop and every peer: python -m benchmarks.speed --data DIR

Engines take turns within each pass, so that a ratio to the plain loop compares neighbours in time; every other pass
goes the other way round, so that none always follows the same one.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import NotRequired, TypedDict

from benchmarks.speed.chart import Row, draw
from benchmarks.speed.engines import ENGINES, ROOT, prepare, versions
from benchmarks.speed.jobs import JOBS
from benchmarks.speed.machine import machine

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
REST = 2  # seconds between runs: what an engine started may outlive it


class Timing(TypedDict):
    """One run: what it printed, or the error in its place."""

    job: str
    engine: str
    seconds: NotRequired[float]
    setup: NotRequired[float]
    memory: NotRequired[float]
    loss: NotRequired[tuple[float, float]]
    error: NotRequired[str]


class Absence(TypedDict):
    engine: str
    job: str
    reason: str


def time_once(name: str, python: Path, job: str, data: Path, limit: float) -> Timing:
    """One run in a process of its own; what it printed, or why it printed nothing."""
    engine = ENGINES[name]
    module = f"benchmarks.speed.peers.{engine.module}"
    command = [str(python), "-m", module, job, "--data", str(data), *engine.options]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | QUIET,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"engine": name, "job": job, "error": f"stopped after {limit:.0f} s"}
    lines = [line for line in out.splitlines() if line.startswith('{"job"')]
    if process.returncode or not lines:
        return {"engine": name, "job": job, "error": (err.strip().splitlines() or ["no output"])[-1][:300]}
    found: Timing = json.loads(lines[-1]) | {"engine": name}
    return found


def summarise(passes: list[list[Timing]]) -> list[Row]:
    """Medians of each job and engine; ratios and loss drops are to the plain loop in the same pass."""
    every = [run for runs in passes for run in runs]
    rows: list[Row] = []
    for job in dict.fromkeys(run["job"] for run in every):
        for engine in (name for name in ENGINES if any(run["engine"] == name for run in every)):
            done = [{run["engine"]: run for run in runs if run["job"] == job and "seconds" in run} for runs in passes]
            mine = [each[engine] for each in done if engine in each]
            if not mine:
                continue
            row: Row = {
                "job": job,
                "engine": engine,
                "passes": len(mine),
                "seconds": median(run["seconds"] for run in mine),
                "setup": median(run["setup"] for run in mine),
                "memory": median(run["memory"] for run in mine),
            }
            pairs = [(each[engine], each["plain"]) for each in done if engine in each and "plain" in each]
            if pairs:
                row["ratio"] = median(run["seconds"] / plain["seconds"] for run, plain in pairs)
                row["drop"] = median(fall(run) / fall(plain) for run, plain in pairs)
            rows.append(row)
    return rows


def fall(run: Timing) -> float:
    """How far the probe's loss fell."""
    before, after = run["loss"]
    return before - after


def table(rows: list[Row], absent: list[Absence]) -> str:
    """The summary as text; `drop` is the loss's fall over the plain loop's: about 1 if all steps ran."""
    lines = [f"{'job':10}{'engine':14}{'seconds':>9}{'x plain':>9}{'MB':>7}{'set-up':>8}{'drop':>6}"]
    for row in rows:
        ratio = f"{row['ratio']:.3f}" if "ratio" in row else "-"
        drop = f"{row['drop']:.2f}" if "drop" in row else "-"
        lines.append(
            f"{row['job']:10}{row['engine']:14}{row['seconds']:9.3f}{ratio:>9}{row['memory']:7.0f}"
            f"{row['setup']:8.1f}{drop:>6}"
        )
    return "\n".join(lines + [f"absent: {a['engine']} {a['job']}: {a['reason']}" for a in absent])


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("FEDVECA_DATA"), help="folder of the idx.gz files")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="ENGINE")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900, help="seconds that one run may take")
    parser.add_argument("--out", type=Path, help="write machine, versions and every timing here, as JSON")
    parser.add_argument("--figure", type=Path, help="draw the medians here, as SVG")
    given = parser.parse_args()
    if given.data is None:
        parser.error("say where MNIST is: --data DIR or FEDVECA_DATA")
    return given


def main() -> None:
    """Make the environments, take the passes, show the medians."""
    given = options()
    data = Path(given.data).resolve()
    absent: list[Absence] = []
    pythons: dict[str, Path] = {}
    for name in given.engines:
        try:
            pythons[name] = prepare(name)
        except subprocess.CalledProcessError:
            absent += [{"engine": name, "job": job, "reason": "does not install"} for job in given.jobs]
    for name in pythons:
        known = ENGINES[name].absent
        absent += [{"engine": name, "job": job, "reason": known[job]} for job in given.jobs if job in known]
    passes: list[list[Timing]] = []
    for number in range(given.passes):
        passes.append([])
        for job in given.jobs:
            for name in list(pythons)[:: -1 if number % 2 else 1]:
                if job in ENGINES[name].absent:
                    continue
                time.sleep(REST)
                passes[-1].append(time_once(name, pythons[name], job, data, given.limit))
                print(f"pass {number + 1}: {json.dumps(passes[-1][-1])}", file=sys.stderr, flush=True)
        if given.out:
            result = {
                "machine": machine(),
                "versions": {name: versions(name, python) for name, python in pythons.items()},
                "jobs": [JOBS[job]._asdict() for job in given.jobs],
                "absent": absent,
                "runs": [{"pass": n} | run for n, runs in enumerate(passes) for run in runs],
                "summary": summarise(passes),
            }
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(summarise(passes), absent))
    if given.figure:
        draw(summarise(passes), given.figure)


if __name__ == "__main__":
    main()
