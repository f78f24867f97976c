"""One flat, validated description of a run: the same keys in Python, TOML and on the command line."""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveca.algorithms.registry import shorten_method
from fedveca.errors import UserError, printable
from fedveca.runs.catalog import known_methods
from fedveca.runs.presets import load_preset, load_toml
from fedveca.runs.setting_checks import (
    FIELDS,
    RENAMED,
    check_setting,
    check_together,
    check_value,
    parse_value,
    range_of,
)
from fedveca.runs.setting_fields import TaskDefault
from fedveca.runs.settings import KNOWN_MODELS, SettingList
from fedveca.tasks.names import CUSTOM

SETTINGS_FILE = "experiment.toml"  # of a run folder
FEWEST_PROBED, MOST_PROBED = 32, 1024  # rows of probe=auto
SettingValues = dict[str, Any]  # values by key, of the types that the fields have
FORMER_DEFAULTS: dict[str, str | int | float] = {  # of version 0.1, for what a folder of it lacks
    "model": "mlp",
    "partition": "case3",
    "rounds": 100,
    "batch": 100,
    "lr": 0.01,
    "probe": 1024,
}


@dataclass(frozen=True)
class Experiment(SettingList):
    """All settings of a run, each of them checked; some defaults depend on the data set or the model."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, TaskDefault):  # data and model are checked before what depends on them
                value = value.find(getattr(self, value.by))
            object.__setattr__(self, field.name, check_value(field, value))
        check_together(self)

    @classmethod
    def preset(cls, name: str, **settings: object) -> Experiment:
        """The experiment of a preset.

        Args:
            name: One that `fedveca.presets()` lists, or the path of a .toml file with settings.
            **settings: SettingValues in place of the preset's.

        Returns:
            The experiment.

        Raises:
            UserError: With one sentence, where the preset or a setting is not known, or a value is not allowed.

        Examples:
            >>> Experiment.preset("digits-case3", rounds=20).rounds
            20
        """
        return cls(**preset(name)).replace(**settings)

    def replace(self, **settings: object) -> Experiment:
        """The same experiment with other values of the settings that are named; all others stay as they are.

        Args:
            **settings: The settings that change.

        Returns:
            A new experiment.

        Raises:
            UserError: With one sentence, where a setting is not known, or a value is not allowed.

        Examples:
            >>> Experiment(lr=0.1).replace(method="fedavg").lr
            0.1
        """
        return dataclasses.replace(self, **settings)  # type: ignore[arg-type]

    def toml(self) -> str:
        """Complete: enough to run it again."""
        return "".join(f"{key} = {_toml(value)}\n" for key, value in dataclasses.asdict(self).items())


_init = Experiment.__init__


@functools.wraps(_init)
def _init_known(self: Experiment, *values: object, **settings: object) -> None:
    for key in settings:
        check_setting(key, "help(fedveca.Experiment) shows all")
    _init(self, *values, **settings)  # type: ignore[arg-type]


Experiment.__init__ = _init_known  # type: ignore[method-assign]


def reject_custom(settings: SettingValues) -> None:
    """ValueError where a preset or the command line names an object that only Python can give."""
    for key, value in settings.items():
        if FIELDS[key].metadata["custom"] and isinstance(value, str) and value.startswith(CUSTOM):
            known_ones = KNOWN_MODELS if key == "model" else range_of(FIELDS[key])
            said = f"{key}={printable(value)} is an object that was given from Python"
            raise UserError(f"{said}; here allowed: {known_ones}")


def parse_settings(words: list[str]) -> SettingValues:
    """`key=value` words as typed settings; of a setting that is given twice the last value counts."""
    out = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"{printable(repr(word))} is not key=value")
        out[key] = parse_value(check_setting(key), value)
    return out


def _toml(value: Any) -> str:
    if isinstance(value, str):
        quoted = (f"\\u{ord(c):04x}" if c in '"\\\x7f' or ord(c) < 32 else c for c in value)
        return f'"{"".join(quoted)}"'
    return repr(value)


def read_experiment(text: str) -> Experiment:
    """The settings of a run folder, also of one that an older version wrote; UserError that names the file."""
    return restore_experiment(load_toml(text, SETTINGS_FILE))


def restore_experiment(table: dict[str, object]) -> Experiment:
    """The settings of a run folder from the table that its file holds."""
    try:
        settings = _check_settings(table)
        for key, value in FORMER_DEFAULTS.items():
            settings.setdefault(key, value)
        return Experiment(**settings)
    except (ValueError, TypeError) as error:
        raise UserError(f"{SETTINGS_FILE}: {error}") from error


def parse_toml(text: str, source: str) -> SettingValues:
    """The keys of a TOML file, each known; those that an older version named otherwise get their name of today."""
    return _check_settings(load_toml(text, source))


def preset(name: str) -> SettingValues:
    """A preset of the package, or a TOML file of the user's."""
    return _check_settings(load_preset(name))


def _check_settings(table: dict[str, object]) -> SettingValues:
    """The settings of a TOML file in their names of today, each known."""
    settings = upgrade_settings(table)
    for key in settings:
        check_setting(key)
    return settings


def upgrade_settings(table: SettingValues) -> SettingValues:
    """SettingValues as version 0.1 named them, in the names of today."""
    out = {RENAMED.get(key, key): value for key, value in table.items()}
    for key, value in out.items():
        if key in FIELDS and FIELDS[key].metadata["custom"] and isinstance(value, str) and value.startswith("own:"):
            out[key] = CUSTOM + value.removeprefix("own:")
    return out


def find_default(key: str, e: Experiment) -> object:
    """A setting's default, which may depend on the experiment's data set or model."""
    default = FIELDS[key].default
    return default.find(getattr(e, default.by)) if isinstance(default, TaskDefault) else default


def count_probe_rows(e: Experiment) -> int:
    """The most rows of a client on which it computes F_i(w_k) and its gradient; 0 is all of them.

    `auto` is a fifth of the rows of tau_0 local steps, within bounds. It depends on settings alone: every engine, every
    node and a resumed run have the same number, and a client has the same rows in every round. FedVeca's clients take
    fewer steps than tau_0 on average, so that a fifth of those is up to a third of the steps that they take.
    """
    return max(FEWEST_PROBED, min(MOST_PROBED, e.tau_0 * e.batch // 5)) if e.probe == "auto" else e.probe


def name_experiment(e: Experiment, name: str = "digits-case3") -> str:
    """A name for the run's folder: the preset's, unless data, model or partition differ from it: `cnn-mnist-case3`."""
    base = Experiment.preset(name)
    if (e.data, e.model, e.partition) == (base.data, base.model, base.partition):
        return Path(name).stem
    return re.sub(r"[^\w.-]+", "-", f"{e.model}-{e.data}-{e.partition}").strip("-.")


def name_folder(method: str) -> str:
    """A method's name as a part of a folder's name: `my_methods:FedPer` is my_methods-FedPer."""
    return re.sub(r"[^\w.=-]+", "-", method).strip("-")


def describe_task(e: Experiment) -> str:
    """What runs, in a few words: `FedVeca, mlp on digits, 5 clients, case3`."""
    known = known_methods().get(e.method)
    parts = (
        known["title"] if known else shorten_method(e.method),
        f"{e.model} on {e.data}",
        f"{e.clients} clients",
        e.partition,
    )
    return ", ".join(part.removeprefix(CUSTOM) for part in parts)


def describe_default(key: str) -> str | int | float:
    """A setting's default: its value, or in words where it depends on the data set or the model."""
    default = FIELDS[key].default
    return repr(default) if isinstance(default, TaskDefault) else default  # type: ignore[return-value]


def describe_settings() -> str:
    """Every setting with its text, its default and what is allowed: a docstring's `Attributes`."""
    lines = ["Attributes:"]
    for name, field in FIELDS.items():
        default, allowed = field.default, "" if range_of(field) == "text" else f"; allowed: {range_of(field)}"
        lines.append(f"    {name}: {field.metadata['text']} (default {default!r}{allowed}).")
    return "\n".join(lines)


Experiment.__doc__ = f"{Experiment.__doc__}\n\n{describe_settings()}"
