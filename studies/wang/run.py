"""Loss and accuracy after 15 simulated seconds: fixed tau against methods that choose it, as in Wang et al. 2019.

    python -m studies.wang --out docs/results/wang.json

The rules were written before the runs that are reported; the lists of methods.toml were set after a look at single
runs of seed 401:

- The task is Wang et al.'s: the squared SVM on MNIST, five clients, mini-batches of 100 rows, a learning rate of 0.01,
  Cases 1 to 3. The probe has 100 rows, a mini-batch, for all methods; what clients compute on it counts as work.
- The devices are five-raspberry-pis, and those of mixed.toml, which differ. Units run in the order of PLACES: where
  time ends, the rest is left out.
- A model counts as of 15 s if the round that made it had ended by then. `last` is the last such model; `kept` is the
  one of them with the lowest training loss F(w_k) on the probe that was known by then. Both are the untrained model
  where no round had ended. Values are those of the test rows.
- What a list in methods.toml offers is chosen for each case and fleet on seeds 401 and 402, by the mean of the lowest
  training loss that was known by 15 s. The best fixed tau is chosen among the seven in the same way.
- The reported runs have seeds 501 to 510. A difference is paired over the seeds, with Student's t interval and test, by
  Holm's rule over all comparisons of a table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import torch

from fedveca.runs.experiment import Experiment
from fedveca.runs.observers import Observer
from fedveca.runs.presets import read_toml
from fedveca.runs.run import run
from fedveca.runs.schema import Round, get_number
from fedveca.tasks.datasets.dataset import Dataset, load

HOME = Path(__file__).parent
SECONDS = 15.0
CHOOSING_SEEDS, SEEDS = (401, 402), tuple(range(501, 511))
FLEETS = {"alike": "five-raspberry-pis", "mixed": str(HOME / "mixed.toml")}
PLACES = [("alike", "case3"), ("mixed", "case3"), ("alike", "case1"), ("alike", "case2"), ("mixed", "case1")]
PLACES += [("mixed", "case2")]
FIXED = "fixed-"
UNTRAINED = 0.5, 0.0  # test loss and accuracy of w_0 = 0, whose scores are all 0 and so on neither side


class WangOutcome(TypedDict):
    """A run as it stands after 15 seconds."""

    last_loss: float
    last_accuracy: float
    kept_loss: float
    kept_accuracy: float
    train_loss: float  # the lowest that was known
    rounds: int
    tau: float  # the mean over rounds and clients


class WangUnit(TypedDict):
    """A method on a fleet and a case."""

    fleet: str
    case: str
    method: str
    choice: dict[str, Any]
    tried: list[tuple[dict[str, Any], float]]  # with the training loss on the choosing seeds
    runs: dict[str, WangOutcome]  # by seed


@cache
def read_methods() -> dict[str, dict[str, Any]]:
    """methods.toml."""
    return read_toml(str(HOME / "methods.toml"))  # type: ignore[return-value]


def list_methods() -> list[str]:
    return [name for name in read_methods() if name != "settings"]


def list_choices(method: str) -> list[dict[str, Any]]:
    """Every combination of the settings of which one is chosen."""
    given = read_methods()[method].get("choices", {})
    return [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]


def make_settings(fleet: str, case: str, method: str, choice: dict[str, Any], seed: int) -> Experiment:
    """The experiment of a run."""
    known = read_methods()
    settings = known["settings"] | known[method]["settings"] | choice
    return Experiment(**settings, partition=case, devices=FLEETS[fleet], seed=seed)


class SecondsOver(Observer):
    """Ends a run with the first round that ends after its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.over = seconds, False

    def round(self, record: Round) -> None:
        self.over = record["clock"] > self.seconds

    def __call__(self) -> bool:
        return self.over


def cut_run(rounds: list[Round], seconds: float = SECONDS) -> WangOutcome:
    """A run's values after so many seconds.

    The record of round k has F(w_k), with which the round started, and the test values of w_(k+1), with which it ended.
    So the loss of the last model in time is not known, and it is not kept.
    """
    done = [record for record in rounds if record["clock"] <= seconds]
    tested = [UNTRAINED] + [(get_number(r, "test_loss") or 0.0, get_number(r, "test_accuracy") or 0.0) for r in done]
    losses = [get_number(record, "train_loss") or 0.0 for record in done or rounds[:1]]  # of w_0, w_1, ...
    last, kept = tested[-1], tested[losses.index(min(losses))]
    return {
        "last_loss": round(last[0], 6),
        "last_accuracy": round(100 * last[1], 3),
        "kept_loss": round(kept[0], 6),
        "kept_accuracy": round(100 * kept[1], 3),
        "train_loss": round(min(losses), 6),
        "rounds": len(done),
        "tau": round(statistics.fmean(t for record in done or rounds[:1] for t in record["tau"]), 3),
    }


def measure_unit(fleet: str, case: str, method: str, data: Dataset) -> WangUnit:
    """Chooses the settings, then runs the seeds with them."""

    def train(choice: dict[str, Any], seed: int) -> WangOutcome:
        over = SecondsOver(SECONDS)
        e = make_settings(fleet, case, method, choice, seed)
        return cut_run(run(e, device="cpu", data=data, observers=[over], stop=over).rounds)

    tried = []
    for choice in list_choices(method):
        losses = [train(choice, seed)["train_loss"] for seed in CHOOSING_SEEDS]
        tried.append((choice, statistics.fmean(losses)))
    choice = min(tried, key=lambda one: one[1])[0]
    runs = {str(seed): train(choice, seed) for seed in SEEDS}
    return {"fleet": fleet, "case": case, "method": method, "choice": choice, "tried": tried, "runs": runs}


def measure(out: Path, places: list[tuple[str, str]], methods: list[str]) -> list[WangUnit]:
    """What is not in the file yet; the file is written after each unit."""
    units: list[WangUnit] = json.loads(out.read_text("utf-8")) if out.exists() else []
    known = {(unit["fleet"], unit["case"], unit["method"]) for unit in units}
    data = load("mnist")
    for (fleet, case), method in itertools.product(places, methods):
        if (fleet, case, method) not in known:
            unit = measure_unit(fleet, case, method, data)
            units.append(unit)
            out.write_text(json.dumps(units) + "\n", "utf-8")
            mean = {name: statistics.fmean(one[name] for one in unit["runs"].values()) for name in SHOWN}
            print(fleet, case, method, unit["choice"], *(f"{name} {v:.4f}" for name, v in mean.items()), flush=True)
    return units


SHOWN = ("last_loss", "last_accuracy", "rounds", "tau")


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(list_methods()))
    args = parser.parse_args(words)
    if unknown := {*args.methods.split(",")} - {*list_methods()}:
        parser.error(f"{min(unknown)} is not a method of the study")
    torch.set_num_threads(1)
    measure(args.out, PLACES, args.methods.split(","))
