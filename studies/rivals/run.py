"""FedVecaM and its rivals at equal gradient rows, each at its best learning rate: what docs/choose.md rests on.

    python -m studies.rivals --out docs/results/rivals.json --processes 2

The rules were written before the first run of it:

- The cases are those of cases.toml. FedVecaM was chosen on digits and synthetic data with seeds 401 and 402, and is
  frozen; the cases on other data took no part in that. Fashion-MNIST is in none of them.
- Every method has the same budget of gradient rows: 60 rounds of 12 mini-batches per client. FedVecaM spends 2 of the
  12 on its probe; its shares of the steps are rounded, and its clients differ in rows, so it may miss the budget by a
  few per cent. FedVeca and FedVeca corrected choose their own steps: they run for up to 100 rounds, and count up to the
  last round within the budget. What each of them spent is on docs/choose.md.
- Learning rates (and server_lr, where RIVALS names several) are chosen for each method and case on seed 601, where
  every client holds back a tenth of its rows: the highest accuracy of the last model on those rows.
- The reported runs have seeds 501 to 510. A lead is a paired difference of last models over the seeds, by Student's t
  test, with Holm's correction over all comparisons.
- GRID says which methods also run at all rates, on seeds 501 to 503: what happens where nobody tunes.
- A case with `seeds` and `rates` of its own is thinned: its model takes too long for all of them. It has no grid, its
  results are in a file of their own, and it does not count where cases are counted, since three seeds show little.
- FedNova with equal local steps is FedAvg, so it does not run.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import multiprocessing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.guard import GROWTH
from fedveca.runs.presets import read_toml
from fedveca.runs.run import run
from fedveca.runs.schema import Round, get_number

RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
TUNING_SEED, SEEDS, GRID_SEEDS = 601, tuple(range(501, 511)), (501, 502, 503)
PROBE_STEPS = 2  # mini-batches of the probe: the other methods take so many local steps more
MOST_ROUNDS = 5 / 3  # times the rounds of the others, for methods that choose their own steps
OWN_STEPS = ("fedveca", "corrected")
RIVALS: dict[str, dict[str, tuple[object, ...]]] = {  # settings of each, all combinations of which are tried
    "fedvecam": {},
    "fedavg": {},
    "scaffold": {},
    "scaffold tuned": {"method": ("scaffold",), "server_lr": (1.0, 3.0)},
    "feddyn": {},
    "fedacg": {},
    "fedexp": {},
    "fedadam": {"server_lr": (0.01, 0.1)},
    "fedprox": {},
    "fedveca": {},
    "corrected": {},
}
GRID = ("fedvecam", "fedavg", "scaffold")
CASES_FILE = Path(__file__).with_name("cases.toml")


class RivalOutcome(TypedDict):
    """One run, up to the last round within the budget; accuracies in per cent."""

    last: float
    kept: float  # of the model with the lowest training loss
    best: float  # of all rounds
    rows: int
    diverged: bool
    returns: int  # of the guard


class Unit(TypedDict):
    """A method on a case."""

    case: str
    method: str
    tuning: list[tuple[dict[str, Any], float]]  # settings, and the accuracy on the rows held back
    settings: dict[str, Any]  # the best of them
    runs: dict[str, RivalOutcome]  # by seed
    grid: dict[str, dict[str, RivalOutcome]]  # by rate and seed


@functools.cache
def read_cases() -> dict[str, dict[str, Any]]:
    """The settings of each case, by name."""
    found: dict[str, Any] = read_toml(str(CASES_FILE))
    return {name: found["settings"] | case["settings"] for name, case in found["cases"].items()}


def parse_case(name: str) -> str:
    """A case, as a word of a command line."""
    if name not in read_cases():
        raise argparse.ArgumentTypeError(f"{name} is not a case of the study; it is one of {', '.join(read_cases())}")
    return name


class CasePlan(NamedTuple):
    """What of the study runs on a case."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    grid: tuple[str, ...]  # methods that also run at all rates


@functools.cache
def read_plan(case: str) -> CasePlan:
    """All of it, unless the case is thinned."""
    cases: dict[str, Any] = read_toml(str(CASES_FILE))["cases"]  # type: ignore[assignment]
    found = cases[case]
    if "seeds" not in found:
        return CasePlan(RATES, SEEDS, GRID)
    return CasePlan(tuple(found["rates"]), SEEDS[: found["seeds"]], ())


def is_thinned(case: str) -> bool:
    return read_plan(case).seeds != SEEDS


def make_rival(case: str, method: str, settings: dict[str, Any], seed: int) -> Experiment:
    """A method's run at the budget of the case."""
    given = read_cases()[case]
    steps = given["tau_0"] if method in ("fedvecam", *OWN_STEPS) else given["tau_0"] + PROBE_STEPS
    rounds = round(MOST_ROUNDS * given["rounds"]) if method in OWN_STEPS else given["rounds"]
    own = {"method": method, "seed": seed, "tau_0": steps, "rounds": rounds}
    return Experiment(**{**given, **own, **settings})


def count_budget(case: str) -> int:
    """Gradient rows of a run."""
    given = read_cases()[case]
    asked = round(given["clients"] * given.get("participation", 1.0))
    return int(given["rounds"] * asked * (given["tau_0"] + PROBE_STEPS) * given["batch"])


def describe_rival(done: Run, budget: float) -> RivalOutcome:
    """What a run reached within the budget. The loss on line k + 1 is of the model that line k tests."""
    if not done.rounds:  # no client's answer to the first order was finite
        return {"last": 0.0, "kept": 0.0, "best": 0.0, "rows": 0, "diverged": True, "returns": 0}
    rows = list(itertools.accumulate(int(get_number(record, "rows") or 0) for record in done.rounds))
    count = max(1, sum(total <= budget for total in rows))
    within = done.rounds[:count]
    accuracy = [100 * (get_number(record, "test_accuracy") or 0.0) for record in within]
    last, kept = accuracy[-1], accuracy[_find_lowest(within)]
    if count == len(done.rounds):  # the guard may replace the last model
        summary = done.summary
        last, kept = (100 * (get_number(model, "test_accuracy") or 0.0) for model in (summary["last"], summary["kept"]))
    loss, first = (get_number(record, "test_loss") for record in (within[-1], within[0]))
    grown = loss is None or first is None or loss > GROWTH * first
    return {
        "last": round(last, 3),
        "kept": round(kept, 3),
        "best": round(max(accuracy), 3),
        "rows": rows[count - 1],
        "diverged": "stopped" in done.summary or (grown and not done.summary.get("guarded")),
        "returns": done.summary.get("guarded", 0),
    }


def _find_lowest(rounds: list[Round]) -> int:
    losses = [get_number(record, "train_loss") for record in rounds[1:]]
    known = [(loss, k) for k, loss in enumerate(losses) if loss is not None]
    return min(known)[1] if known else 0


def list_tuned(method: str, rates: tuple[float, ...] = RATES) -> list[dict[str, Any]]:
    """Every combination of settings that tuning tries."""
    given = {"lr": rates} | RIVALS[method]
    return [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]


def measure_runs(
    case: str, method: str, settings: dict[str, Any], seeds: Iterable[int], device: str = "cpu"
) -> dict[str, RivalOutcome]:
    """What a method with these settings reaches within the budget, by seed."""
    torch.set_num_threads(1)
    budget = count_budget(case) if method in OWN_STEPS else math.inf
    return {
        str(seed): describe_rival(run(make_rival(case, method, settings, seed), device=device), budget)
        for seed in seeds
    }


def measure_unit(case: str, method: str, device: str = "cpu") -> Unit:
    """Chooses the settings, then runs the seeds with them, and the grid where the method has one."""
    torch.set_num_threads(1)
    plan, tuning = read_plan(case), []
    for settings in list_tuned(method, plan.rates):
        rounds = read_cases()[case]["rounds"]
        e = make_rival(case, method, settings, TUNING_SEED).replace(val=0.1, rounds=rounds, test_every=rounds)
        tuning.append((settings, get_number(run(e, device=device).summary["last"], "val_accuracy") or 0.0))
    settings = max(tuning, key=lambda tried: tried[1])[0]
    rates = plan.rates if method in plan.grid else ()
    return {
        "case": case,
        "method": method,
        "tuning": tuning,
        "settings": settings,
        "runs": measure_runs(case, method, settings, plan.seeds, device),
        "grid": {f"{rate:g}": measure_runs(case, method, {"lr": rate}, GRID_SEEDS, device) for rate in rates},
    }


def _call(job: tuple[str, str, str]) -> Unit:
    return measure_unit(*job)


def measure(out: Path, cases: list[str], methods: list[str], processes: int, device: str) -> list[Unit]:
    """What is not in the file yet; the file is written after each unit."""
    units: list[Unit] = json.loads(out.read_text("utf-8")) if out.exists() else []
    known = {(unit["case"], unit["method"]) for unit in units}
    jobs = [(case, method, device) for case in cases for method in methods if (case, method) not in known]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for unit in pool.imap_unordered(_call, jobs):
            units.append(unit)
            out.write_text(json.dumps(units) + "\n", "utf-8")
            mean = sum(each["last"] for each in unit["runs"].values()) / len(unit["runs"])
            print(f"{unit['case']} {unit['method']} {unit['settings']}: last {mean:.2f} %", flush=True)
    return units


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=parse_case, metavar="case", help=", ".join(read_cases()))
    parser.add_argument("--methods", default=",".join(RIVALS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(words)
    if unknown := {*args.methods.split(",")} - {*RIVALS}:
        parser.error(f"{min(unknown)} is not a method of the study; it is one of {', '.join(RIVALS)}")
    cases = args.cases or [case for case in read_cases() if not is_thinned(case)]
    measure(args.out, cases, args.methods.split(","), args.processes, args.device)
