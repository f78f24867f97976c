"""A study is a TOML file: which methods are compared, on what, over how many seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict

from fedveca.errors import UserError, printable, show_value, suggest
from fedveca.runs.catalog import known_methods
from fedveca.runs.compare import SeedValues, compare
from fedveca.runs.experiment import Experiment, preset, reject_custom
from fedveca.runs.folder import Run
from fedveca.runs.observers import Observer
from fedveca.runs.overrides import check_folder, check_seeds_and_methods
from fedveca.runs.presets import read_toml
from fedveca.runs.result_folders import require_comparison, require_studies
from fedveca.runs.schema import get_number, list_test_values
from fedveca.runs.setting_checks import check_setting
from fedveca.runs.statistics import mean_and_spread, paired_difference

StudySetting = str | int | float
KEYS = ("name", "preset", "settings", "methods", "seeds")
METHODS = ["fedveca", "fedavg"]  # of an example
FOLDER_NAME = re.compile(r"\w[\w.=+-]{0,199}")


@dataclass(frozen=True)
class Study:
    """One comparison: a preset, the settings that differ from it, the methods and the number of seeds.

    Attributes:
        name: The folder of its runs.
        preset: A preset's name, or a TOML file of settings.
        settings: What differs from the preset; `seed` is the first seed.
        methods: The first method, if it chooses its local steps, sets the others' total.
        seeds: The number of seeds.
    """

    name: str
    preset: str
    settings: dict[str, StudySetting]
    methods: tuple[str, ...]
    seeds: int = 3

    def experiment(self) -> Experiment:
        """Builds the experiment of the first seed."""
        return Experiment(**(preset(self.preset) | self.settings))


class Gap(TypedDict):
    """A method's values minus the first method's, seed by seed."""

    mean: float
    interval: tuple[float, float] | None
    n: int


class StudyColumn(SeedValues):
    """One test value over the seeds that did not diverge, and its difference from the first method's."""

    minus_first: Gap | None  # None for the first method itself, and where no seed has both


class MethodRow(TypedDict):
    """One method of a study. Runs that diverged are left out of its values."""

    method: str
    seeds: list[int]
    diverged: list[int]
    tau_all: float | None
    kept: dict[str, StudyColumn]
    last: dict[str, StudyColumn]


class StudyTable(TypedDict):
    """What study.json holds for each study."""

    name: str
    preset: str
    settings: dict[str, StudySetting]
    methods: tuple[str, ...]
    rows: list[MethodRow]


def read_study(path: Path | str) -> tuple[Study, ...]:
    """Reads the studies of a TOML file.

    Keys at the top of the file are the defaults of every `[[study]]` table; without such a table they are one study.

    Args:
        path: The file. Each study has `methods` and, where the default does not do, `preset` (digits-case3),
            `settings`, `seeds` (3) and `name` (the preset's).

    Returns:
        The studies, in the order of the file, all of them checked.

    Raises:
        UserError: If the file cannot be read, or a key or a value is not a study's.
    """
    source = printable(str(path))
    common = read_toml(str(path))
    entries = common.pop("study", [{}])
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{source}: study={show_value(entries)} is not a list of tables; each begins with [[study]]")
    try:
        studies = tuple(_make_study(common, entry) for entry in entries)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    names = [study.name for study in studies]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{source}: two studies have the name {twice}; each needs one of its own")
    return studies


def _make_study(common: Mapping[str, object], entry: Mapping[str, object]) -> Study:
    settings: dict[str, StudySetting] = {}
    for table in (common, entry):
        for key in table:
            if key not in KEYS:
                hint = suggest(key, KEYS)
                raise UserError(f"{printable(key)} is not a key of a study{hint}; it is one of {', '.join(KEYS)}")
        more = table.get("settings", {})
        if not isinstance(more, dict):
            raise UserError(f"settings={show_value(more)} is not a table of settings")
        settings |= {check_setting(key): value for key, value in more.items()}
    values: dict[str, object] = {"preset": "digits-case3", "seeds": 3, "methods": list(METHODS), **common, **entry}
    base = values["preset"]
    if not isinstance(base, str):
        raise UserError(f"preset={show_value(base)} is not a text; it names a preset or a .toml file")
    name = values.get("name", Path(base).stem)
    if not isinstance(name, str) or not FOLDER_NAME.fullmatch(name):
        raise UserError(f"name={show_value(name)} is not a name of letters, digits and . = + - _, for a folder")
    if "method" in settings:
        raise UserError(f"method={show_value(settings['method'])} is not a setting of a study; `methods` lists them")
    methods, seeds = values["methods"], values["seeds"]
    if not isinstance(methods, list) or not methods or not all(isinstance(method, str) for method in methods):
        raise UserError(f"methods={show_value(methods)} is not a list of methods such as {METHODS}")
    check_seeds_and_methods(seeds, methods, 1)
    assert isinstance(seeds, int)
    if twice := next((method for method in methods if methods.count(method) > 1), None):
        raise UserError(f"methods names {twice} twice")
    reject_custom(preset(base) | settings)
    study = Study(name, base, settings, tuple(methods), seeds)
    study.experiment()
    if not any("methods" in table for table in (common, entry)):  # after what is wrong with the other keys
        raise UserError(f"methods is missing; it is a list such as {METHODS}, of {', '.join(known_methods())}")
    return study


def run_study(
    studies: Sequence[Study],
    out: Path | str,
    *,
    seeds: int | None = None,
    device: str = "auto",
    workers: int = 1,
    data_dir: str = "",
    observers: Iterable[Observer] = (),
) -> dict[str, list[Run]]:
    """Runs studies, each into a folder of its name; runs that are finished there are not repeated.

    Args:
        studies: What `read_study` returned.
        out: The folder of the studies' folders.
        seeds: The number of seeds in place of each study's own.
        device: "auto", "cpu" or "cuda".
        workers: Processes, each with runs of its own.
        data_dir: The folder that holds the data sets.
        observers: Objects that see each round as it ends; with several workers only the end of each run.

    Returns:
        The runs of each study, by its name.

    Raises:
        UserError: If a folder holds a run with other settings or something else, or the data cannot be found.
    """
    check_folder(out)
    require_studies(out)
    for study in studies:
        require_comparison(Path(out) / study.name)
    runs, observers = {}, tuple(observers)
    for study in studies:
        experiment = study.experiment()
        runs[study.name] = compare(
            replace(experiment, data_dir=data_dir) if data_dir else experiment,
            seeds or study.seeds,
            Path(out) / study.name,
            methods=study.methods,
            device=device,
            workers=workers,
            observers=observers,
        )
    return runs


def tabulate_study(study: Study, runs: Sequence[Run]) -> StudyTable:
    """Tabulates a study's runs: mean and spread per method, and its paired difference from the first method.

    Args:
        study: The study.
        runs: Its runs, as `run_study` returned them.

    Returns:
        One row per method. The seed of a run that diverged is named in its row, and its values are left out.
    """
    all_runs = {m: {r.experiment.seed: r for r in runs if r.experiment.method == m} for m in study.methods}
    ended = {m: {seed: r for seed, r in sorted(mine.items()) if not r.diverged} for m, mine in all_runs.items()}
    first = ended[study.methods[0]]
    rows: list[MethodRow] = [
        {
            "method": method,
            "seeds": list(mine),
            "diverged": sorted(all_runs[method].keys() - mine.keys()),
            "tau_all": mean_and_spread(run.summary["tau_all"] for run in mine.values()).mean,
            "kept": _columns(mine, first, "kept"),
            "last": _columns(mine, first, "last"),
        }
        for method, mine in ended.items()
    ]
    return {
        "name": study.name,
        "preset": study.preset,
        "settings": study.settings,
        "methods": study.methods,
        "rows": rows,
    }


def _columns(
    mine: Mapping[int, Run], first: Mapping[int, Run], which: Literal["kept", "last"]
) -> dict[str, StudyColumn]:
    """The test values of the kept or the last model."""
    columns: dict[str, StudyColumn] = {}
    one = next(iter(mine.values()), None)
    for name in dict.fromkeys(("test_loss", one.metric, *list_test_values(one.summary[which]))) if one else ():
        a, b = ({seed: get_number(run.summary[which], name) for seed, run in of.items()} for of in (mine, first))
        both = [seed for seed in a if a[seed] is not None and b.get(seed) is not None]
        gap: Gap | None = None
        if both and mine is not first:
            found = paired_difference([a[seed] for seed in both], [b[seed] for seed in both])
            gap = {"mean": found.mean, "interval": found.interval, "n": found.n}
        spread = mean_and_spread(a.values())
        columns[name] = {"mean": spread.mean, "std": spread.std, "values": list(a.values()), "minus_first": gap}
    return columns
