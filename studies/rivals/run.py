"""FedVecaM and its rivals at equal gradient rows, each at its best learning rate: what docs/rivals.md rests on.

    python -m studies.rivals --out docs/results/rivals.json --processes 2

The rules were written before the first run of it:

- The cases are those of cases.toml. FedVecaM was chosen on digits and synthetic data with seeds 401 and 402, and is
  frozen; the cases on other data took no part in that. Fashion-MNIST is in none of them.
- Every method has the same budget of gradient rows: 60 rounds of 12 mini-batches per client. FedVecaM spends 2 of the
  12 on its probe; its shares of the steps are rounded, and its clients differ in rows, so it may miss the budget by a
  few per cent. FedVeca and FedVeca corrected choose their own steps: they run for up to 100 rounds, and count up to the
  last round within the budget. What each of them spent is on docs/rivals.md.
- Learning rates (and server_lr, where RIVALS names several) are chosen for each method and case by the accuracy of the
  last model on a tenth of every client's rows, which is held back. All combinations run on seed 601, the two best ones
  on 602 and 603 as well, and the one with the higher mean is chosen. Where a chosen value is the lowest or the highest
  that was tried, the next one of LADDER is tried, too, until none is.
- The reported runs have seeds 511 to 520. A lead is a paired difference of last models over the seeds, by Student's t
  test, with Holm's correction over all comparisons.
- GRID says which methods also run at all of RATES, on seeds 501 to 503: what happens where nobody tunes.
- A case may have a plan of its own, with fewer runs, for the reason that cases.toml gives.
- FedNova with equal local steps is FedAvg, so it does not run.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterable
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
LADDER = (0.0001, 0.0003, 0.001, *RATES, 1.0, 3.0, 10.0)  # values of lr and server_lr, beyond those tried first
TUNING_SEEDS, SEEDS, GRID_SEEDS = (601, 602, 603), tuple(range(511, 521)), (501, 502, 503)
VAL = 0.1  # share of every client's rows that is held back to tune
FINALISTS = 2  # settings that run on all seeds of the tuning
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
STORED = Path(__file__).parents[2] / "docs" / "results" / "rivals.json"


class RivalOutcome(TypedDict):
    """One run, up to the last round within the budget; accuracies in per cent."""

    last: float
    kept: float  # of the model with the lowest training loss
    best: float  # of all rounds
    rows: int
    diverged: bool
    returns: int  # of the guard


Tried = tuple[dict[str, Any], list[float]]  # settings, and the accuracy on the rows held back by seed of the tuning


class Unit(TypedDict):
    """A method on a case."""

    case: str
    method: str
    tuning: list[Tried]
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

    rates: tuple[float, ...] = RATES
    beyond: bool = True  # whether tuning looks beyond the values that it tries first
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS
    seeds: tuple[int, ...] = SEEDS
    grid: tuple[str, ...] = GRID  # methods that also run at all rates
    counts: bool = True  # where cases are counted


@functools.cache
def read_plan(case: str) -> CasePlan:
    """All of the study, unless the case names a plan of its own."""
    found: dict[str, Any] = read_toml(str(CASES_FILE))
    named = found["cases"][case].get("plan")
    plan: dict[str, Any] = found["plans"][named] if named else {}
    plan = {name: tuple(value) if isinstance(value, list) else value for name, value in plan.items()}
    return CasePlan(**plan)


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


def choose_settings(tuning: list[Tried]) -> dict[str, Any]:
    """Of the settings with the most seeds, those with the highest mean; of equals the first."""
    most = max(len(found) for _, found in tuning)
    finals = [tried for tried in tuning if len(tried[1]) == most]
    return max(finals, key=lambda tried: statistics.fmean(tried[1]))[0]


def list_beyond(tuning: list[Tried], chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """What is to be tried next: each value at the end of those tried gives way to the one of LADDER beyond it."""
    found = []
    for name in chosen.keys() & {"lr", "server_lr"}:
        tried = {settings[name] for settings, _ in tuning}
        for end, step in ((min(tried), -1), (max(tried), 1)):
            beyond = LADDER.index(end) + step
            if chosen[name] == end and 0 <= beyond < len(LADDER):
                found.append(chosen | {name: LADDER[beyond]})
    known = [settings for settings, _ in tuning]
    return [settings for settings in found if settings not in known]


def find_val_accuracy(case: str, method: str, settings: dict[str, Any], seed: int, device: str) -> float:
    """Of the last model, on the rows that are held back to tune."""
    rounds = read_cases()[case]["rounds"]
    e = make_rival(case, method, settings, seed).replace(val=VAL, rounds=rounds, test_every=rounds)
    return get_number(run(e, device=device).summary["last"], "val_accuracy") or 0.0


def tune(
    plan: CasePlan,
    first: list[dict[str, Any]],
    tuning: list[Tried],
    find: Callable[[dict[str, Any], int], float],
) -> None:
    """Completes the tuning: what is tried first, the best ones on all seeds, and what lies beyond.

    Args:
        plan: The seeds, and whether to look beyond.
        first: The settings that are tried in any case.
        tuning: What was tried before; it is added to.
        find: What is to be as high as possible, by settings and seed.
    """
    more = [] if tuning else first
    while True:
        tuning += [(settings, [find(settings, plan.tuning_seeds[0])]) for settings in more]
        for settings, found in sorted(tuning, key=lambda tried: -tried[1][0])[:FINALISTS]:
            found += [find(settings, seed) for seed in plan.tuning_seeds[len(found) :]]
        more = list_beyond(tuning, choose_settings(tuning)) if plan.beyond else []
        if not more:
            return


def measure_unit(case: str, method: str, device: str = "cpu", known: Unit | None = None) -> Unit:
    """Chooses the settings, then runs the seeds with them, and the grid where the method has one.

    What is known already is not run again; runs with other settings than the chosen ones are dropped.
    """
    torch.set_num_threads(1)
    plan, tuning = read_plan(case), known["tuning"] if known else []
    first = list_tuned(method, plan.rates)
    tune(plan, first, tuning, lambda settings, seed: find_val_accuracy(case, method, settings, seed, device))
    settings = choose_settings(tuning)
    runs = known["runs"] if known and known["settings"] == settings else {}
    grid = known["grid"] if known else {}
    for rate in plan.rates if method in plan.grid and not grid else ():
        grid[f"{rate:g}"] = measure_runs(case, method, {"lr": rate}, GRID_SEEDS, device)
    runs |= measure_runs(case, method, settings, [seed for seed in plan.seeds if str(seed) not in runs], device)
    return {"case": case, "method": method, "tuning": tuning, "settings": settings, "runs": runs, "grid": grid}


def is_complete(unit: Unit) -> bool:
    """Whether nothing of the unit is left to run."""
    plan = read_plan(unit["case"])
    tuned = max(len(found) for _, found in unit["tuning"]) == len(plan.tuning_seeds)
    beyond = list_beyond(unit["tuning"], unit["settings"]) if plan.beyond else []
    return tuned and not beyond and {*unit["runs"]} == {*map(str, plan.seeds)}


def _call(job: tuple[str, str, str, Unit | None]) -> Unit:
    return measure_unit(*job)


def measure(out: Path, cases: list[str], methods: list[str], processes: int, device: str) -> list[Unit]:
    """What is not complete in the file yet; the file is written after each unit."""
    stored: list[Unit] = json.loads(out.read_text("utf-8")) if out.exists() else []
    units = {(unit["case"], unit["method"]): unit for unit in stored}
    asked = itertools.product(cases, methods)
    jobs = [(*at, device, units.get(at)) for at in asked if at not in units or not is_complete(units[at])]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for unit in pool.imap_unordered(_call, jobs):
            units[unit["case"], unit["method"]] = unit
            out.write_text(json.dumps([*units.values()]) + "\n", "utf-8")
            mean = statistics.fmean(each["last"] for each in unit["runs"].values())
            print(f"{unit['case']} {unit['method']} {unit['settings']}: last {mean:.2f} %", flush=True)
    return [*units.values()]


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
    cases = args.cases or [case for case in read_cases() if read_plan(case).counts]
    measure(args.out, cases, args.methods.split(","), args.processes, args.device)
