"""The commands that make the runs of a report again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache

from fedveca.algorithms.registry import is_adaptive, paper_methods
from fedveca.runs.experiment import Experiment, preset
from fedveca.runs.folder import Run
from fedveca.runs.presets import presets
from fedveca.runs.setting_checks import FIELDS
from fedveca.tasks.names import CUSTOM
from fedveca.views.comparison import find_protocol
from fedveca.views.series import Curve

SettingValue = str | int | float
MOST_LINES = 100
PYTHON_NOTE = "# started from Python with custom objects: {} runs; make them again there, with the same objects"


def make_commands(curves: Sequence[Curve]) -> list[str]:
    """One comparison where the runs are one, else a line per run; those with custom objects are only counted."""
    runs = [run for curve in curves for run in curve.runs]
    experiments = [run.experiment for run in runs if not is_from_python(run)]
    if len(experiments) == len(runs) and (comparison := _make_comparison(curves)):
        return [comparison]
    lines = [f"fedveca run {' '.join(make_words(asdict(e)))}" for e in experiments[:MOST_LINES]]
    if len(experiments) > MOST_LINES:
        lines.append(f"# and {len(experiments) - MOST_LINES} more, each from its experiment.toml")
    from_python = len(runs) - len(experiments)
    return lines + ([PYTHON_NOTE.format(from_python)] if from_python else [])


def make_words(settings: dict[str, SettingValue]) -> list[str]:
    """The nearest preset, and what differs from it; where the data are is the machine's matter."""
    settings = {key: value for key, value in settings.items() if key != "data_dir"}
    near = min(presets(), key=lambda name: len(_differ(settings, name)))
    return [near, *(shlex.quote(f"{key}={settings[key]}") for key in _differ(settings, near))]


def _make_comparison(curves: Sequence[Curve]) -> str:
    """`fedveca compare` where it makes exactly these runs."""
    methods = [curve.method for curve in curves]
    seeds = [run.experiment.seed for run in curves[0].runs]
    if len(set(methods)) < len(methods) or seeds != list(range(seeds[0], seeds[0] + len(seeds))):
        return ""
    if len(curves) * len(seeds) == 1:
        return ""  # one run
    if any([run.experiment.seed for run in curve.runs] != seeds for curve in curves):
        return ""
    experiments = [run.experiment for curve in curves for run in curve.runs]
    shared = [key for key in FIELDS if key not in ("method", "seed", "tau_all", "data_dir")]
    protocol = find_protocol(curves)
    by_rounds = protocol is not None and protocol.kind != "steps"  # each rival runs as long as the budget lasts
    shared = [key for key in shared if not by_rounds or key not in ("budget", "rounds")]
    totals = {e.tau_all for e in experiments if not is_adaptive(e.method)}
    adaptive = {e.tau_all for e in experiments if is_adaptive(e.method)}
    if len({tuple(getattr(e, key) for key in shared) for e in experiments}) > 1 or adaptive - {0}:
        return ""
    settings: dict[str, SettingValue] = {key: getattr(experiments[0], key) for key in (*shared, "seed")}
    fair = ""
    if protocol:  # the setter comes first, and the others get its total
        setter = protocol.setter
        methods.sort(key=lambda method: method != setter.method)
        if by_rounds:
            settings["rounds"] = setter.runs[0].experiment.rounds
            fair = f" --fair {'time' if protocol.kind == 'seconds' else protocol.kind}"
    elif len(totals) > 1:
        return ""
    else:
        settings["tau_all"] = max(totals, default=0)
        methods.sort(key=is_adaptive)
    named = "" if tuple(methods) == paper_methods() else f" --methods {','.join(methods)}"
    return f"fedveca compare {' '.join(make_words(settings))}{named} --seeds {len(seeds)}{fair}"


def is_from_python(run: Run) -> bool:
    """Whether the run had custom objects, which only Python can give."""
    return any(str(value).startswith(CUSTOM) for value in asdict(run.experiment).values())


def _differ(settings: dict[str, SettingValue], name: str) -> list[str]:
    has = _read_preset(name)
    return [key for key, value in settings.items() if has[key] != value]


@cache
def _read_preset(name: str) -> dict[str, SettingValue]:
    return asdict(Experiment(**preset(name)))
