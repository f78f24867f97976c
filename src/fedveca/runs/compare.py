"""Fair protocols: one method first, then every rival with what it used up: local steps, rows, bytes or time."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, Required, TypedDict, Unpack, get_args

from fedveca.algorithms import Algorithm
from fedveca.algorithms.registry import is_adaptive, load_method, paper_methods
from fedveca.cohorts.random import clients_per_round
from fedveca.errors import UserError, show_value
from fedveca.runs.budget import COST_NAMES, CostKind, RunBudget, measure_cost
from fedveca.runs.build import check_participation
from fedveca.runs.experiment import Experiment, name_folder
from fedveca.runs.files import write_atomic
from fedveca.runs.folder import Run
from fedveca.runs.local_steps import check_epochs
from fedveca.runs.method_options import check_method_options, keep_method_options
from fedveca.runs.observers import Observer, check_observers
from fedveca.runs.overrides import (
    CustomObjects,
    check_experiment,
    check_folder,
    check_seeds_and_methods,
    name_of,
)
from fedveca.runs.pool import RunPlan, RunPool
from fedveca.runs.result_folders import require_comparison
from fedveca.runs.schema import get_number, list_test_values
from fedveca.runs.statistics import mean_and_spread
from fedveca.tasks.names import CUSTOM

Method = str | Algorithm
MethodSettings = Mapping[str, Mapping[str, object]]  # settings in place of the experiment's, by method
_log = logging.getLogger(__name__)
FairBy = Literal["steps", "rows", "bytes", "time"]
FAIR_BY: tuple[FairBy, ...] = get_args(FairBy)
FAIR_ROUNDS = 100  # times the rounds of the first method: a rival that ends by its budget has room for so many
SHARED_SETTINGS = (
    "budget",
    "method",
    "seed",
    "data",
    "partition",
    "clients",
    "tau_all",
    "val",
    "test_by",
    "test_share",
)


class SeedValues(TypedDict):
    """One test value over the seeds: a run that diverged has null, and no part in mean and standard deviation."""

    mean: float | None
    std: float
    values: list[float | None]


class TableRow(TypedDict, total=False):
    """One method of a comparison, as table.json has it."""

    method: Required[str]
    seeds: Required[list[int]]
    tau_all: Required[float | None]
    rows: float | None  # gradient rows, where all runs recorded them
    last: Required[dict[str, SeedValues]]
    kept: Required[dict[str, SeedValues]]
    diverged: list[int]  # the seeds whose runs diverged


class Chain(NamedTuple):
    """The runs of one seed, in order: what the first one uses up is the others' budget.

    With `fair="steps"` only a method that chooses its own local steps sets a budget.
    """

    experiment: Experiment
    methods: tuple[Method, ...]
    out: Path
    device: str
    settings: MethodSettings
    fair: FairBy = "steps"

    @property
    def folders(self) -> list[Path]:
        """The folders of its runs."""
        return [self.out / f"{folder_name(method)}-seed{self.experiment.seed}" for method in self.methods]

    def plan_first(self) -> tuple[RunPlan, bool]:
        """The run of the first method, and whether what it uses up is the budget of its rivals."""
        plan = self._plan(self.methods[0], self.folders[0])
        return plan, sets_budget(plan.experiment, self.methods[0], self.fair)

    def plan_rivals(self, first: Run | None) -> list[RunPlan]:
        """The runs of the other methods, with the budget of the first run where it sets one."""
        budget = None if first is None else self._find_budget(first)
        rivals = zip(self.methods[1:], self.folders[1:], strict=True)
        return [self._plan(method, folder, budget) for method, folder in rivals]

    def _find_budget(self, first: Run) -> RunBudget:
        e, budget, method = first.experiment, make_budget(first, self.fair), self.methods[0]
        total = f"{budget.total:.15g} {budget.unit}"
        if first.diverged:
            _log.warning("%s seed %d diverged; its rivals get %s in all", method, e.seed, total)
        elif first.ended:
            ending = f"ended after {len(first.rounds)} of {e.rounds} rounds"
            paced = f"its rivals get {total} in all, its pace times {e.rounds}"
            _log.info("%s seed %d %s; %s", method, e.seed, ending, paced)
        return budget

    def _plan(self, method: Method, folder: Path, budget: RunBudget | None = None) -> RunPlan:
        if isinstance(method, str):
            e = set_method(self.experiment.replace(**self.settings.get(method, {})), method)
            return RunPlan(apply_budget(e, method, budget), folder, self.device)
        e = replace(self.experiment, method_options="")
        return RunPlan(apply_budget(e, method, budget), folder, self.device, method)


def compare(
    experiment: Experiment,
    seeds: int,
    out: Path | str,
    *,
    methods: tuple[Method, ...] | None = None,
    device: str = "auto",
    workers: int = 1,
    observers: Iterable[Observer] = (),
    settings: MethodSettings | None = None,
    fair: FairBy = "steps",
    **custom: Unpack[CustomObjects],
) -> list[Run]:
    """Runs every method for every seed into folders of `out`, and writes table.json there.

    A run that is already there, finished and with the same settings, is not repeated; one that was interrupted is
    resumed.

    Args:
        experiment: The settings; its seed is the first one.
        seeds: How many seeds.
        out: The folder of all runs.
        methods: Names, or objects with the contract of `fedveca.algorithms.contract.Algorithm`. Where the first one
            chooses its own numbers of local steps, the others get the total of them, unless `epochs` is set: then
            each method with fixed steps takes the steps that `epochs` gives.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        workers: Processes, each with runs of its own; observers then see only the end of each run, unless they
            are a `ComparisonObserver`.
        observers: Objects that see each round as it ends.
        settings: Settings of single methods in place of the experiment's, by the method's name, such as
            `{"fedavg": {"lr": 0.1}}`; `sweep` finds such.
        fair: What every method may use up as much of as the first one. With "steps", the paper's protocol, a method
            that chooses its own local steps comes first, and those with fixed steps share out its total over as many
            rounds. With "rows" (gradient rows), "bytes" (both ways) or "time" (seconds of the rounds), every other
            method takes as many rounds, of its own numbers of steps, as the total of the first one allows.
        **custom: `data`, `model`, `loss`, `metric`, `partition` and `augment` as objects: see `CustomObjects`.

    Returns:
        The runs, seed by seed.

    Raises:
        UserError: With one sentence, where something given does not fit.
        Stopped: At Ctrl-C or SIGTERM, after the rounds under way, with everything saved.
    """
    check_experiment(experiment)
    check_folder(out)
    observers = check_observers(observers)
    methods = check_seeds_and_methods(seeds, paper_methods() if methods is None else methods, workers)
    out = Path(out)
    require_comparison(out)
    if custom.get("method") is not None:
        raise UserError("compare takes methods=(...), names or objects, not method=")
    if workers > 1 and (custom or not all(isinstance(m, str) for m in methods)):
        raise UserError(f"workers={workers}: custom objects are compared in this process, workers=1")
    if len({folder_name(m) for m in methods}) < len(methods):
        raise UserError(f"methods are named twice: {', '.join(map(folder_name, methods))}")
    check_method_options(experiment.method_options, [load_method(m).algorithm for m in methods if isinstance(m, str)])
    check_fair(experiment, fair)
    for method in methods:
        check_epochs(experiment.epochs, method)
        algorithm = load_method(method).algorithm if isinstance(method, str) else method
        check_participation(experiment, algorithm, folder_name(method))
    if fair == "steps" and experiment.epochs and is_adaptive(methods[0]) and not all(map(is_adaptive, methods)):
        _log.info(
            "epochs=%s sets the local steps of the methods with fixed steps; the total of %s is not theirs",
            experiment.epochs,
            methods[0],
        )
    settings = check_method_settings(experiment, methods, settings or {})
    with RunPool(workers, observers, custom) as pool:
        return run_chains(pool, experiment, seeds, out, methods, device, settings, fair)


def run_chains(
    pool: RunPool,
    experiment: Experiment,
    seeds: int,
    out: Path,
    methods: tuple[Method, ...],
    device: str,
    settings: MethodSettings,
    fair: FairBy = "steps",
) -> list[Run]:
    """Runs a comparison, of which everything was checked, and writes its table."""
    chains = [
        Chain(replace(experiment, seed=seed), methods, out, device, settings, fair)
        for seed in range(experiment.seed, experiment.seed + seeds)
    ]
    pool.share_data(experiment, [folder for chain in chains for folder in chain.folders])
    for watcher in pool.watching:
        watcher.plan(experiment, tuple(map(folder_name, methods)), seeds, pool.workers, out)
    plans, budgets = zip(*(chain.plan_first() for chain in chains), strict=True)
    if all(budgets):
        firsts = pool.complete(plans)
        rivals = [chain.plan_rivals(first) for chain, first in zip(chains, firsts, strict=True)]
        done = iter(pool.complete([plan for mine in rivals for plan in mine]))
        runs = [run for first, mine in zip(firsts, rivals, strict=True) for run in (first, *islice(done, len(mine)))]
    else:
        both = zip(plans, chains, strict=True)
        runs = pool.complete([plan for first, chain in both for plan in (first, *chain.plan_rivals(None))])
    write_atomic(out / "table.json", json.dumps(make_table(runs), indent=2).encode() + b"\n")
    return runs


def check_method_settings(
    experiment: Experiment, methods: tuple[Method, ...], settings: MethodSettings
) -> MethodSettings:
    """The settings of single methods; UserError where a method is not compared, or a setting is not one of a method."""
    if not isinstance(settings, Mapping) or not all(isinstance(mine, Mapping) for mine in settings.values()):
        raise UserError(f"settings={show_value(settings)} is not a dict of dicts such as {{'fedavg': {{'lr': 0.1}}}}")
    named = [method for method in methods if isinstance(method, str)]
    for method, mine in settings.items():
        if method not in named:
            raise UserError(f"settings: {show_value(method)} is not among the methods; they are {', '.join(named)}")
        if shared := next((key for key in mine if key in SHARED_SETTINGS), None):
            raise UserError(f"settings: {shared} of {method} is the same for all methods of a comparison")
        experiment.replace(**mine)
    return settings


def list_fitting(experiment: Experiment, names: tuple[str, ...]) -> tuple[str, ...]:
    """The methods that can run with these settings.

    The closed-form SVM has no room for a loss of a method, and some methods need all clients in every round.
    """
    fitting = []
    for name in names:
        algorithm = load_method(name).algorithm
        unfit = algorithm.has_loss and experiment.model == "svm"
        unfit |= algorithm.needs_everyone and experiment.participation < 1
        fitting += [] if unfit else [name]
    return tuple(fitting)


def set_method(e: Experiment, method: str) -> Experiment:
    """The settings with another method, and of `method_options` those that it has."""
    options = keep_method_options(e.method_options, load_method(method).algorithm)
    return replace(e, method=method, method_options=options)


def check_fair(e: Experiment, fair: str) -> None:
    """UserError where there is no such protocol, or the settings do not go with it."""
    if fair not in FAIR_BY:
        raise UserError(f"fair={show_value(fair)} is not known; it is one of {', '.join(FAIR_BY)}")
    if fair == "steps":
        return
    if e.lr_schedule == "cosine":
        raise UserError(
            f"lr_schedule=cosine cannot go with fair={fair}, which does not say how many rounds there are; "
            "take lr_schedule=constant or step"
        )
    if e.budget:
        raise UserError(f"budget={e.budget} cannot go with fair={fair}: the budget is what the first method uses up")
    if fair == "time":
        _log.warning("seconds differ from run to run: a comparison with fair=time does not repeat exactly")


def sets_budget(e: Experiment, method: Method, fair: FairBy) -> bool:
    """Whether what this method uses up, as the first one, is the budget of its rivals."""
    return fair != "steps" or (is_adaptive(method) and not e.epochs)


def make_budget(run: Run, fair: FairBy) -> RunBudget:
    """What the first method used up, of the kind that is to be equal."""
    kind: CostKind = "seconds" if fair == "time" else fair
    return RunBudget(kind, find_budget(run, kind))


def apply_budget(e: Experiment, method: Method, budget: RunBudget | None) -> Experiment:
    """The settings of a method with the budget that the first one has set, or None where there is none.

    A total of local steps is shared out over the rounds; any other total ends the run, whose rounds are as they are.
    """
    if budget and budget.kind != "steps":
        return replace(e, tau_all=0, budget=str(budget), rounds=FAIR_ROUNDS * e.rounds)
    total = int(budget.total) if budget else e.tau_all
    return replace(e, tau_all=0 if is_adaptive(method) else total)


def find_budget(run: Run, kind: CostKind = "steps") -> float:
    """The total that the rivals of a method get, of local steps or of another kind of cost.

    Where its run diverged or ended early it is what all of its rounds would have taken at the pace of those that it
    has, or with tau_0 if it has none.
    """
    e, total = run.experiment, sum(measure_cost(record, kind) for record in run.rounds)
    if not run.diverged and not run.ended:
        return round(total, 6)
    if not run.rounds and kind != "steps":
        raise UserError(f"{e.method} seed {e.seed} has no round, so that there is no budget of {COST_NAMES[kind]}")
    pace = total / len(run.rounds) if run.rounds else e.tau_0 * clients_per_round(e.clients, e.participation)
    return max(1, round(pace * e.rounds))


def folder_name(method: Method) -> str:
    """A method's name, fit for a folder."""
    if isinstance(method, str):
        return name_folder(method)
    return re.sub(r"[^\w.=]+", "-", name_of("method", method).removeprefix(CUSTOM)).strip("-")


def make_table(runs: list[Run]) -> list[TableRow]:
    """One row per method: last and kept model, mean and standard deviation over the seeds that did not diverge."""
    rows = []
    for method in dict.fromkeys(r.experiment.method for r in runs):
        mine = [r for r in runs if r.experiment.method == method]
        steps = mean_and_spread(None if r.diverged else r.summary["tau_all"] for r in mine).mean
        row: TableRow = {
            "method": method,
            "seeds": [r.experiment.seed for r in mine],
            "tau_all": steps,
            "last": _collect(mine, "last"),
            "kept": _collect(mine, "kept"),
        }
        if all("rows" in r.summary for r in mine):
            row["rows"] = mean_and_spread(None if r.diverged else r.summary["rows"] for r in mine).mean
        if any(r.diverged for r in mine):
            row["diverged"] = [r.experiment.seed for r in mine if r.diverged]
        rows.append(row)
    return rows


def _collect(runs: list[Run], which: Literal["last", "kept"]) -> dict[str, SeedValues]:
    out: dict[str, SeedValues] = {}
    for name in dict.fromkeys(("test_loss", runs[0].metric, *list_test_values(runs[0].summary[which]))):
        values = [None if r.diverged else get_number(r.summary[which], name) for r in runs]
        mean, std, _ = mean_and_spread(values)
        out[name] = {"mean": mean, "std": std, "values": values}
    return out
