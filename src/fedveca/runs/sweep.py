"""Fair tuning: each method gets the values that do best on validation rows of other seeds, then all are compared."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, Unpack, get_args

from fedveca.algorithms.registry import concerns, is_adaptive, load_method, paper_methods
from fedveca.errors import UserError, show_value
from fedveca.runs.budget import RunBudget
from fedveca.runs.build import check_participation
from fedveca.runs.compare import FairBy, apply_budget, check_fair, make_budget, run_chains, set_method, sets_budget
from fedveca.runs.experiment import Experiment, name_folder
from fedveca.runs.files import write_atomic
from fedveca.runs.folder import Run
from fedveca.runs.local_steps import check_epochs
from fedveca.runs.method_options import check_method_options
from fedveca.runs.observers import Observer, check_observers
from fedveca.runs.overrides import (
    CustomObjects,
    check_experiment,
    check_folder,
    check_seeds_and_methods,
)
from fedveca.runs.pool import RunPlan, RunPool
from fedveca.runs.result_folders import require_sweep
from fedveca.runs.schema import Direction, get_number, pick_best
from fedveca.runs.search import (
    Search,
    Space,
    TrialSettings,
    TriedValue,
    ValueRange,
    ValueSet,
    check_space,
    make_search,
    parse_space,
)
from fedveca.runs.setting_checks import MOST_SEEDS
from fedveca.runs.statistics import mean_and_spread
from fedveca.runs.sweep_file import (
    REPORTED,
    SWEEP_FILE,
    TUNING,
    SweepContent,
    SweepState,
    TrialEntry,
    TuningEntry,
    choose_trial,
)

_log = logging.getLogger(__name__)
ChooseBy = Literal["validation", "training"]
DEFAULT_VAL = 0.1  # share of each client's rows, where the settings have none
DEFAULT_TRIALS = 20  # of a range
MOST_TRIALS = 10_000
FIRST_TUNING_SEED = MOST_SEEDS  # added to the first seed: further than any reported seed
LONGEST_FOLDER = 180  # letters
FoundRuns = dict[tuple[str, str, int], Run]  # by method, name of the settings and seed


class Sweep(NamedTuple):
    """A sweep that is finished.

    Attributes:
        settings: The chosen settings, by method.
        runs: The runs on the reported seeds, as `compare` returns them.
        content: All that was tried, as sweep.json has it.
        folder: The folder of it all.
    """

    settings: dict[str, TrialSettings]
    runs: list[Run]
    content: SweepContent
    folder: Path


def sweep(
    experiment: Experiment,
    grid: Mapping[str, object],
    seeds: int,
    out: Path | str,
    *,
    methods: tuple[str, ...] | None = None,
    tuning_seeds: int | None = None,
    trials: int = DEFAULT_TRIALS,
    device: str = "auto",
    workers: int = 1,
    observers: Iterable[Observer] = (),
    fair: FairBy = "steps",
    choose_by: ChooseBy = "validation",
    **custom: Unpack[CustomObjects],
) -> Sweep:
    """Tunes every method by itself, then compares all of them, each with its best settings.

    The settings of a method are those whose kept models have the best mean metric on validation rows, over seeds that
    are used for nothing else; test rows are never looked at. Only settings that a method has are tried for it. Where
    the first method chooses its own numbers of local steps, it is tuned first, and its rivals get the total that its
    best settings take, seed by seed, as in `compare`.

    A run that is already there, finished and with the same settings, is not repeated; one that was interrupted is
    resumed. So the same call continues a sweep, and one with more values, seeds or trials extends it.

    Args:
        experiment: The settings; its seed is the first reported one. Where `val` is 0 and the choice is by validation
            rows, it becomes 0.1.
        grid: What is tried, by setting: a list of values, or a text such as "0.01,0.1", or "0.001..0.1" for a range,
            which needs Optuna (`fedveca[sweep]`).
        seeds: How many seeds the comparison has.
        out: The folder: `tuning` holds the runs that choose, `reported` the comparison, and sweep.json the result.
        methods: Names; those of the paper's Table I where none are given.
        tuning_seeds: How many other seeds choose; as many as the comparison has where it is None.
        trials: How many settings of each method are tried where a range is among them.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        workers: Runs in processes side by side; observers then see only the end of each run, unless they
            are a `ComparisonObserver`.
        observers: Objects that see each round as it ends.
        fair: What every method may use up as much of as the first one: see `compare`.
        choose_by: "validation" chooses by the metric on validation rows; "training" by the lowest training loss of a
            run, the rule of `keep=best`, with all rows left to train on.
        **custom: `data`, `model`, `loss`, `metric`, `partition` and `augment` as objects: see `CustomObjects`.

    Returns:
        The chosen settings, the runs of the comparison, and all that was tried.

    Raises:
        UserError: With one sentence, where something given does not fit, or every run of a method diverged.
        Stopped: At Ctrl-C or SIGTERM, after the rounds under way, with everything saved.
    """
    check_experiment(experiment)
    check_folder(out)
    observers, out = check_observers(observers), Path(out)
    names = check_seeds_and_methods(seeds, paper_methods() if methods is None else methods, workers)
    tuning_seeds = seeds if tuning_seeds is None else tuning_seeds
    for name, count, most in (("tuning_seeds", tuning_seeds, MOST_SEEDS), ("trials", trials, MOST_TRIALS)):
        if type(count) is not int or not 1 <= count <= most:
            raise UserError(f"{name}={show_value(count)} is out of range; it is a whole number from 1 to {most}")
    space = parse_space(grid)
    check_space(experiment, space)
    check_fair(experiment, fair)
    _check_methods(experiment, names, space, custom, workers, fair)
    require_sweep(out)
    check_choose_by(experiment, choose_by)
    if not experiment.val and choose_by == "validation":
        experiment = replace(experiment, val=DEFAULT_VAL)
    plan = _Plan(experiment, names, space, out, seeds, tuning_seeds, trials, device, fair)
    with RunPool(workers, observers, custom) as pool:
        chosen = plan.tune(pool)
        runs = run_chains(pool, experiment, seeds, out / REPORTED, names, device, chosen, fair)
    plan.write("finished")
    return Sweep(chosen, runs, plan.content, out)


def _check_methods(
    e: Experiment, names: tuple[str, ...], space: Space, custom: CustomObjects, workers: int, fair: FairBy
) -> None:
    if odd := next((name for name in names if not isinstance(name, str)), None):
        raise UserError(f"methods: {show_value(odd)} is an object, whose settings are fixed; a sweep takes names")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"methods: {twice} is named twice")
    if custom.get("method") is not None:
        raise UserError("sweep takes methods=(...), which are names, not method=")
    if workers > 1 and custom:
        raise UserError(f"workers={workers}: runs with custom objects are in this process, workers=1")
    check_method_options(e.method_options, [load_method(name).algorithm for name in names])
    for name in names:
        check_epochs(e.epochs, name)
        check_participation(e, load_method(name).algorithm, name)
    if unused := next(
        (key for key in space if not any(key in list_tuned(e, names, name, space, fair) for name in names)), ""
    ):
        raise UserError(f"{unused} is not a setting of {', '.join(names)}; there is nothing to choose")


def list_tuned(
    e: Experiment, names: Sequence[str], method: str, space: Space, fair: FairBy = "steps"
) -> dict[str, ValueSet]:
    """What is tried for a method: its own settings and those of all; not the steps that another method sets for it."""
    given_steps = fair == "steps" and sets_budget(e, names[0], fair) and not is_adaptive(method)
    return {key: v for key, v in space.items() if concerns(key, method) and not (given_steps and key == "tau_0")}


def check_choose_by(e: Experiment, choose_by: str) -> None:
    """UserError where settings cannot be chosen so."""
    if choose_by not in get_args(ChooseBy):
        raise UserError(f"choose_by={show_value(choose_by)} is not known; it is one of {', '.join(get_args(ChooseBy))}")
    if choose_by == "training" and e.val:
        raise UserError(f"val={e.val} holds rows back to choose by; take choose_by='validation'")
    if choose_by == "training" and (e.participation < 1 or e.keep == "last"):
        name = f"participation={e.participation}" if e.participation < 1 else "keep=last"
        raise UserError(
            f"{name} leaves no training loss by which settings could be chosen; take val above 0, such as val=0.1"
        )


class _Plan:
    """A sweep under way: what was tried so far is its content, which is on the disk after every step."""

    def __init__(
        self,
        experiment: Experiment,
        names: tuple[str, ...],
        space: Space,
        out: Path,
        seeds: int,
        tuning_seeds: int,
        trials: int,
        device: str,
        fair: FairBy,
    ) -> None:
        self.experiment, self.names, self.space, self.out = experiment, names, space, out
        self.trials, self.device, self.fair = trials, device, fair
        first = experiment.seed + FIRST_TUNING_SEED
        self.content: SweepContent = {
            "state": "tuning",
            "quantity": "",
            "better": "higher",
            "val": experiment.val,
            "space": {key: _describe_values(values) for key, values in space.items()},
            "seeds": list(range(experiment.seed, experiment.seed + seeds)),
            "tuning_seeds": list(range(first, first + tuning_seeds)),
            "methods": [{"method": name, "chosen": None, "trials": []} for name in names],
        }
        self.budgets: dict[int, RunBudget] = {}  # by tuning seed

    def tune(self, pool: RunPool) -> dict[str, TrialSettings]:
        """Chooses the settings of every method; the first alone where it sets the budget of the others."""
        entries, apart = self.content["methods"], sets_budget(self.experiment, self.names[0], self.fair)
        found: FoundRuns = {}
        searches = {entry["method"]: self._make_search(entry["method"]) for entry in entries}
        seeds = self.content["tuning_seeds"]
        total = sum(search.planned for search in searches.values())
        for watcher in pool.watching:
            watcher.plan_tuning(
                self.experiment, self.names, tuple(self.space), total, len(seeds), pool.workers, self.out
            )
        for group in (entries[:1], entries[1:]) if apart else (entries,):
            self._tune_group(pool, group, searches, found)
            for entry in group:
                entry["chosen"] = self._choose(entry)
            if apart and group == entries[:1] and len(entries) > 1:
                name, best = entries[0]["method"], _name_settings(entries[0]["chosen"] or {})
                self.budgets = {seed: make_budget(found[name, best, seed], self.fair) for seed in seeds}
        self.write("comparing")
        return {entry["method"]: entry["chosen"] or {} for entry in entries}

    def _make_search(self, method: str) -> Search:
        mine = list_tuned(self.experiment, self.names, method, self.space, self.fair)
        # The direction is not known before the first run: a lower-is-better value is negated.
        return make_search(mine, self.trials, self.experiment.seed, "higher")

    def _tune_group(
        self,
        pool: RunPool,
        group: Sequence[TuningEntry],
        searches: Mapping[str, Search],
        found: FoundRuns,
    ) -> None:
        seeds = self.content["tuning_seeds"]
        while asked := {entry["method"]: some for entry in group if (some := searches[entry["method"]].ask())}:
            jobs = {
                (method, _name_settings(settings), seed): self._make_job(method, settings, seed)
                for method, some in asked.items()
                for settings in some
                for seed in seeds
                if (method, _name_settings(settings), seed) not in found
            }
            pool.share_data(self.experiment, [plan.folder for plan in jobs.values()])
            found |= dict(zip(jobs, pool.complete(list(jobs.values())), strict=True))
            for entry in group:
                self._record(entry, asked.get(entry["method"], []), searches[entry["method"]], found)
            self.write("tuning")

    def _make_job(self, method: str, settings: TrialSettings, seed: int) -> RunPlan:
        e = set_method(self.experiment.replace(**settings, seed=seed), method)
        e = apply_budget(e, method, self.budgets.get(seed))
        home = self.out / TUNING / name_folder(method)
        return RunPlan(e, home / f"{_name_settings(settings)}-seed{seed}", self.device)

    def _record(
        self,
        entry: TuningEntry,
        asked: Sequence[TrialSettings],
        search: Search,
        found: Mapping[tuple[str, str, int], Run],
    ) -> None:
        means: list[float | None] = []
        for settings in asked:
            runs = [found[entry["method"], _name_settings(settings), seed] for seed in self.content["tuning_seeds"]]
            self.content["quantity"], self.content["better"] = _find_quantity(runs[0])
            trial = _make_trial(settings, runs, self.content["quantity"])
            if trial not in entry["trials"]:
                entry["trials"].append(trial)
                entry["rows"] = entry.get("rows", 0) + sum(run.summary.get("rows", 0) for run in runs)
            lower = self.content["better"] == "lower"
            means.append(-trial["mean"] if lower and trial["mean"] is not None else trial["mean"])
        if asked:
            search.tell(means)

    def _choose(self, entry: TuningEntry) -> TrialSettings:
        """The best settings; UserError where every run of the method diverged."""
        best = choose_trial(entry["trials"], self.content["better"])
        if best is None:
            tried = ", ".join(f"{key}={values}" for key, values in self.content["space"].items())
            raise UserError(
                f"every run of {entry['method']} diverged on at least one tuning seed: none of {tried} can be chosen; "
                "a smaller lr usually helps"
            )
        return best["settings"]

    def write(self, state: SweepState) -> None:
        """Replaces sweep.json."""
        self.content["state"] = state
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            write_atomic(self.out / SWEEP_FILE, json.dumps(self.content, indent=1, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise UserError(f"{self.out} cannot be written: {error.strerror or error}") from error


def _find_quantity(run: Run) -> tuple[str, Direction]:
    """By which settings are chosen: the metric on validation rows, or the loss where the metric has no direction.

    Without such rows it is the training loss.
    """
    if not run.experiment.val:
        return "train_loss", "lower"
    better = run.better(run.metric)
    return (f"val_{run.metric.removeprefix('test_')}", better) if better else ("val_loss", "lower")


def _make_trial(settings: TrialSettings, runs: Sequence[Run], quantity: str) -> TrialEntry:
    values = [None if run.diverged else _find_value(run, quantity) for run in runs]
    losses = [None if run.diverged else _find_value(run, f"{quantity.partition('_')[0]}_loss") for run in runs]
    mean = None if None in values else mean_and_spread(values).mean
    return {
        "settings": settings,
        "values": values,
        "losses": losses,
        "mean": mean,
        "loss": mean_and_spread(losses).mean,
    }


def _find_value(run: Run, quantity: str) -> float | None:
    """A value of the kept model; the training loss is the lowest one that a round has recorded."""
    if quantity != "train_loss":
        return get_number(run.summary["kept"], quantity)
    return pick_best((get_number(record, quantity) for record in run.rounds), "lower")


def _name_settings(settings: Mapping[str, TriedValue]) -> str:
    """TrialSettings as a folder's name; very many of them end in a hash."""
    name = ",".join(f"{key}={_show(value)}" for key, value in settings.items()) or "default"
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return name if len(name) <= LONGEST_FOLDER else f"{name[:LONGEST_FOLDER]}-{digest}"


def _show(value: TriedValue) -> str:
    return re.sub(r"[^\w.+-]+", "-", repr(value) if isinstance(value, float) else str(value))


def _describe_values(values: ValueSet) -> str:
    return str(values) if isinstance(values, ValueRange) else ",".join(map(str, values))
