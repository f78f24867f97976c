"""Fair tuning: each method gets the values that do best on validation rows of other seeds, then all are compared."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, Unpack, cast

from fedveca.algorithms.registry import concerns, is_adaptive, load_method, paper_methods
from fedveca.errors import UserError, show_value
from fedveca.runs.build import check_epochs, check_participation
from fedveca.runs.compare import find_budget, run_chains, set_method
from fedveca.runs.experiment import FIELDS, Experiment, name_folder
from fedveca.runs.files import read_object, write_atomic
from fedveca.runs.folder import Run, require_free
from fedveca.runs.interrupt import StopRequest
from fedveca.runs.method_options import check_method_options
from fedveca.runs.observers import Observer, check_observers
from fedveca.runs.overrides import (
    MOST_SEEDS,
    CustomObjects,
    check_experiment,
    check_folder,
    check_seeds_and_methods,
)
from fedveca.runs.pool import NO_OBJECTS, RunPool, complete_run
from fedveca.runs.schema import Direction, finite_number, get_number, is_count
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
from fedveca.runs.statistics import mean_and_spread

_log = logging.getLogger(__name__)
SWEEP_FILE = "sweep.json"
TUNING, REPORTED = "tuning", "reported"  # the folders of the runs that choose, and of those that are compared
DEFAULT_VAL = 0.1  # share of each client's rows, where the settings have none
DEFAULT_TRIALS = 20  # of a range
MOST_TRIALS = 10_000
FIRST_TUNING_SEED = MOST_SEEDS  # added to the first seed: further than any reported seed
LONGEST_FOLDER = 180  # letters
SWEEP_BYTES = 2**24  # the most of a sweep.json that is read
FoundRuns = dict[tuple[str, str, int], Run]  # by method, name of the settings and seed
SweepState = Literal["tuning", "comparing", "finished"]


class TrialEntry(TypedDict):
    """Some settings of a method and what they gave, by tuning seed; null for a run that diverged."""

    settings: TrialSettings
    values: list[float | None]  # of the metric, on validation rows
    losses: list[float | None]
    mean: float | None  # over all tuning seeds; null where a run diverged
    loss: float | None


class TuningEntry(TypedDict):
    """How the settings of one method were chosen."""

    method: str
    chosen: TrialSettings | None  # null until all were tried, and where every run diverged
    trials: list[TrialEntry]


class SweepContent(TypedDict):
    """What sweep.json holds."""

    state: SweepState
    quantity: str  # by which settings are chosen, such as val_accuracy
    better: Direction
    val: float
    space: dict[str, str]  # what was tried, as the command line has it
    seeds: list[int]
    tuning_seeds: list[int]
    methods: list[TuningEntry]


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


class TrialRun(NamedTuple):
    """One run that tunes."""

    experiment: Experiment
    folder: Path
    device: str

    @property
    def folders(self) -> list[Path]:
        """Its folder."""
        return [self.folder]

    def __call__(
        self, stop: StopRequest, observers: tuple[Observer, ...] = (), custom: CustomObjects = NO_OBJECTS
    ) -> list[Run]:
        return [complete_run(self.experiment, self.folder, self.device, stop, observers, custom)]


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
        experiment: The settings; its seed is the first reported one. Where `val` is 0, it becomes 0.1.
        grid: What is tried, by setting: a list of values, or a text such as "0.01,0.1", or "0.001..0.1" for a range,
            which needs Optuna (`fedveca[sweep]`).
        seeds: How many seeds the comparison has.
        out: The folder: `tuning` holds the runs that choose, `reported` the comparison, and sweep.json the result.
        methods: Names; those of the paper's Table I where none are given.
        tuning_seeds: How many other seeds choose; as many as the comparison has where it is None.
        trials: How many settings of each method are tried where a range is among them.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        workers: Runs that go on in processes side by side; observers then see only the end of each run, unless they
            are a `ComparisonObserver`.
        observers: Objects that see each round as it ends.
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
    _check_methods(experiment, names, space, custom, workers)
    require_free(out)
    if not experiment.val:
        experiment = replace(experiment, val=DEFAULT_VAL)
    plan = _Plan(experiment, names, space, out, seeds, tuning_seeds, trials, device)
    with RunPool(workers, observers, custom) as pool:
        chosen = plan.tune(pool)
        runs = run_chains(pool, experiment, seeds, out / REPORTED, names, device, chosen)
    plan.write("finished")
    return Sweep(chosen, runs, plan.content, out)


def _check_methods(e: Experiment, names: tuple[str, ...], space: Space, custom: CustomObjects, workers: int) -> None:
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
        (key for key in space if not any(key in list_tuned(e, names, name, space) for name in names)), ""
    ):
        raise UserError(f"{unused} is not a setting of {', '.join(names)}; there is nothing to choose")


def list_tuned(e: Experiment, names: Sequence[str], method: str, space: Space) -> dict[str, ValueSet]:
    """What is tried for a method: its own settings and those of all; not the steps that another method sets for it."""
    given_steps = sets_budget(e, names) and not is_adaptive(method)
    return {key: v for key, v in space.items() if concerns(key, method) and not (given_steps and key == "tau_0")}


def sets_budget(e: Experiment, names: Sequence[str]) -> bool:
    """Whether the first method chooses the total of local steps that its rivals get."""
    return is_adaptive(names[0]) and not e.epochs


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
    ) -> None:
        self.experiment, self.names, self.space, self.out = experiment, names, space, out
        self.trials, self.device = trials, device
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
        self.budgets: dict[int, int] = {}  # by tuning seed

    def tune(self, pool: RunPool) -> dict[str, TrialSettings]:
        """Chooses the settings of every method; the first alone where it sets the budget of the others."""
        entries, apart = self.content["methods"], sets_budget(self.experiment, self.names)
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
                self.budgets = {seed: find_budget(found[name, best, seed]) for seed in seeds}
        self.write("comparing")
        return {entry["method"]: entry["chosen"] or {} for entry in entries}

    def _make_search(self, method: str) -> Search:
        mine = list_tuned(self.experiment, self.names, method, self.space)
        # The direction is not known before the first run: values are told with their sign turned where lower is better.
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
            pool.share_data(self.experiment, [job.folder for job in jobs.values()])
            for key, (done,) in zip(jobs, pool.run(list(jobs.values())), strict=True):
                found[key] = done
            for entry in group:
                self._record(entry, asked.get(entry["method"], []), searches[entry["method"]], found)
            self.write("tuning")

    def _make_job(self, method: str, settings: TrialSettings, seed: int) -> TrialRun:
        e = set_method(self.experiment.replace(**settings, seed=seed), method)
        e = replace(e, tau_all=0 if is_adaptive(method) else self.budgets.get(seed, e.tau_all))
        home = self.out / TUNING / name_folder(method)
        return TrialRun(e, home / f"{_name_settings(settings)}-seed{seed}", self.device)

    def _record(
        self,
        entry: TuningEntry,
        asked: Sequence[TrialSettings],
        search: Search,
        found: Mapping[tuple[str, str, int], Run],
    ) -> None:
        told: list[float | None] = []
        for settings in asked:
            runs = [found[entry["method"], _name_settings(settings), seed] for seed in self.content["tuning_seeds"]]
            self.content["quantity"], self.content["better"] = _find_quantity(runs[0])
            trial = _make_trial(settings, runs, self.content["quantity"])
            if trial not in entry["trials"]:
                entry["trials"].append(trial)
            lower = self.content["better"] == "lower"
            told.append(-trial["mean"] if lower and trial["mean"] is not None else trial["mean"])
        if asked:
            search.tell(told)

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


def choose_trial(trials: Sequence[TrialEntry], better: Direction) -> TrialEntry | None:
    """The trial with the best mean; of equal ones that with the lower loss, then the first. None where all diverged."""
    whole = [trial for trial in trials if trial["mean"] is not None]
    sign = -1 if better == "higher" else 1

    def rank(trial: TrialEntry) -> tuple[float, float]:
        loss = trial["loss"]
        return sign * cast(float, trial["mean"]), float("inf") if loss is None else loss

    return min(whole, key=rank) if whole else None


def list_edges(entry: TuningEntry) -> list[str]:
    """The chosen values that are the lowest or the highest of three or more: one beyond may be better."""
    found = []
    for key, value in (entry["chosen"] or {}).items():
        tried = {trial["settings"][key] for trial in entry["trials"]}
        numbers = [v for v in tried if not isinstance(v, str)]
        if len(numbers) == len(tried) > 2 and value in (min(numbers), max(numbers)):
            found.append(f"{key}={value}")
    return found


def _find_quantity(run: Run) -> tuple[str, Direction]:
    """By which settings are chosen: the metric on validation rows, or the loss where the metric has no direction."""
    better = run.better(run.metric)
    return (f"val_{run.metric.removeprefix('test_')}", better) if better else ("val_loss", "lower")


def _make_trial(settings: TrialSettings, runs: Sequence[Run], quantity: str) -> TrialEntry:
    values = [None if run.diverged else get_number(run.summary["kept"], quantity) for run in runs]
    losses = [None if run.diverged else get_number(run.summary["kept"], "val_loss") for run in runs]
    mean = None if None in values else mean_and_spread(values).mean
    return {
        "settings": settings,
        "values": values,
        "losses": losses,
        "mean": mean,
        "loss": mean_and_spread(losses).mean,
    }


def _name_settings(settings: Mapping[str, TriedValue]) -> str:
    """TrialSettings as a folder's name; very many of them end in a hash."""
    name = ",".join(f"{key}={_show(value)}" for key, value in settings.items()) or "default"
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return name if len(name) <= LONGEST_FOLDER else f"{name[:LONGEST_FOLDER]}-{digest}"


def _show(value: TriedValue) -> str:
    return re.sub(r"[^\w.+-]+", "-", repr(value) if isinstance(value, float) else str(value))


def _describe_values(values: ValueSet) -> str:
    return str(values) if isinstance(values, ValueRange) else ",".join(map(str, values))


def read_sweep(folder: Path) -> SweepContent | None:
    """What the sweep.json of a folder says; None where there is none that a sweep writes."""
    try:
        found = read_object(folder, SWEEP_FILE, SWEEP_BYTES)
    except (OSError, ValueError):
        return None
    space, methods = found.get("space"), found.get("methods")
    good = isinstance(found.get("quantity"), str) and found.get("better") in ("higher", "lower")
    good &= found.get("state") in ("tuning", "comparing", "finished") and finite_number(found.get("val")) is not None
    good &= isinstance(space, dict) and all(key in FIELDS and isinstance(v, str) for key, v in space.items())
    for name in ("seeds", "tuning_seeds"):
        seeds = found.get(name)
        good &= isinstance(seeds, list) and all(map(is_count, seeds))
    good &= isinstance(methods, list) and all(_is_entry(entry, found.get("tuning_seeds")) for entry in methods)
    return cast(SweepContent, found) if good else None


def _is_entry(entry: object, seeds: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("method"), str):
        return False
    trials, chosen = entry.get("trials"), entry.get("chosen")
    if not isinstance(trials, list) or not (chosen is None or _are_settings(chosen)):
        return False
    return all(_is_trial(trial, len(seeds) if isinstance(seeds, list) else -1) for trial in trials)


def _is_trial(trial: object, seeds: int) -> bool:
    if not isinstance(trial, dict) or not _are_settings(trial.get("settings")):
        return False
    lists = [trial.get(name) for name in ("values", "losses")]
    if not all(isinstance(each, list) and len(each) == seeds for each in lists):
        return False
    numbers = [trial.get("mean"), trial.get("loss"), *(v for each in lists if isinstance(each, list) for v in each)]
    return all(v is None or finite_number(v) is not None for v in numbers)


def _are_settings(value: object) -> bool:
    return isinstance(value, dict) and all(key in FIELDS and type(v) in (str, int, float) for key, v in value.items())
