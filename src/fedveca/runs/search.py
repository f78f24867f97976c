"""What a sweep tries: lists of values in every combination, or ranges that Optuna searches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from fedveca.errors import UserError, printable, show_value
from fedveca.runs.experiment import Experiment, parse_settings
from fedveca.runs.schema import Direction
from fedveca.runs.setting_checks import FIELDS, TYPES, check_setting, choices

if TYPE_CHECKING:
    from optuna.trial import Trial

TriedValue = str | int | float
RATE_FACTORS = (0.1, 1 / 3, 1, 3, 10)  # of lr, where nothing else is said
SERVER_RATES = (0.3, 1.0, 3.0)
MOST_COMBINATIONS = 10_000
TRIALS_AT_ONCE = 4  # of a range, whatever the workers: the same values are tried with any number of them
DIGITS = 3  # of a value from a range of real numbers
TASK_GROUPS = ("clients", "records", "machines", "evaluation")  # what is learned and how it is run, not how to learn
TASK_SETTINGS = (
    "method",
    "method_options",
    "data",
    "loss",
    "metric",
    "data_dir",
    "seed",
    "rounds",
    "keep",
    "tau_all",
    "epochs",
    "faults",
)


class ValueRange(NamedTuple):
    """The values from low to high; on a log scale where both are positive."""

    low: float
    high: float
    whole: bool

    @property
    def log(self) -> bool:
        """Whether the search is even on a log scale."""
        return self.low > 0

    def __str__(self) -> str:
        """As the command line has it."""
        return f"{self.low:g}..{self.high:g}"


ValueSet = tuple[TriedValue, ...] | ValueRange
Space = Mapping[str, ValueSet]  # what is tried, by setting
TrialSettings = dict[str, TriedValue]


def split_sweep(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The words of a command: those with one value, and the texts of those that are swept, by key."""
    fixed, swept = [], {}
    for word in words:
        key, equals, text = word.partition("=")
        if equals and _is_swept(check_setting(key), text):
            swept[key] = text
        else:
            fixed.append(word)
    return fixed, swept


def make_grid(text: str, experiment: Experiment) -> dict[str, object]:
    """The values to try of settings that are named with commas between them, some with values of their own.

    Args:
        text: Such as `lr,server_lr`, whose values are known, or `lr=0.01,0.1,server_lr`.
        experiment: Its learning rate is the middle one of those that are tried.

    Raises:
        UserError: With one sentence, where a setting has no values, and none are known for it.
    """
    known = {
        "lr": tuple(float(f"{experiment.lr * factor:.3g}") for factor in RATE_FACTORS),
        "server_lr": SERVER_RATES,
    }
    grid: dict[str, object] = {}
    key = ""
    for word in text.split(","):
        name, equals, value = word.strip().partition("=")
        if equals or name in FIELDS or not key:
            key = check_setting(name)
            if key in grid:
                raise UserError(f"{printable(text)}: {key} stands there twice")
            if not equals and key not in known:
                raise UserError(f"{key} has no usual values to try; name some, such as {key}=A,B")
            grid[key] = value if equals else known[key]
        elif isinstance(grid[key], str):
            grid[key] = f"{grid[key]},{name}"
        else:
            raise UserError(f"{printable(text)}: {printable(repr(name))} is not a setting")
    return grid


def parse_space(grid: Mapping[str, object]) -> dict[str, ValueSet]:
    """What is to be tried, each value of the type of its setting.

    Args:
        grid: By setting, a list of values, or a text such as "0.01,0.1" or "0.001..0.1".

    Raises:
        UserError: With one sentence, where a setting or a value cannot be swept.
    """
    if not isinstance(grid, Mapping) or not grid:
        raise UserError(f"grid={show_value(grid)} names no values to try; it is a dict such as {{'lr': (0.01, 0.1)}}")
    return {key: _parse_values(check_setting(key), values) for key, values in grid.items()}


def _is_swept(key: str, text: str) -> bool:
    if TYPES[key] is str:
        return "," in text and bool(choices(FIELDS[key])) and key != "metric"
    return "," in text or ".." in text


def _parse_values(key: str, given: object) -> ValueSet:
    field = FIELDS[key]
    text = given if isinstance(given, str) else show_value(given)
    if key in TASK_SETTINGS or field.metadata["group"] in TASK_GROUPS or field.metadata["some"]:
        raise UserError(
            f"{key}={printable(text)} cannot be swept: it is the same for all runs of a sweep; name one value"
        )
    if isinstance(given, str) and ".." in given:
        return _parse_range(key, given)
    if isinstance(given, str):
        values = [parse_settings([f"{key}={part.strip()}"])[key] for part in given.split(",")]
    elif isinstance(given, Sequence) and given:
        values = list(given)
    else:
        raise UserError(f"{key}={text} is not a list of values, nor a text such as '0.01,0.1' or '0.001..0.1'")
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{key}={printable(text)} names {show_value(value)} twice")
    return tuple(values)


def _parse_range(key: str, text: str) -> ValueRange:
    if TYPES[key] is str:
        raise UserError(f"{key}={printable(text)} is not a list of values; only numbers have ranges")
    low, high = (parse_settings([f"{key}={part.strip()}"])[key] for part in text.split("..", 1))
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"{key}={printable(text)} is not a range; its first number is below its second one")
    return ValueRange(low, high, TYPES[key] is int)


def check_space(experiment: Experiment, space: Space) -> None:
    """UserError where a value that may be tried is not allowed."""
    for key, values in space.items():
        for value in (values.low, values.high) if isinstance(values, ValueRange) else values:
            experiment.replace(**{key: value})
    lists = [len(values) for values in space.values() if not isinstance(values, ValueRange)]
    if math.prod(lists) > MOST_COMBINATIONS:
        raise UserError(f"the lists have {math.prod(lists):,} combinations; at most {MOST_COMBINATIONS:,} can be tried")


class Search(Protocol):
    """Says which settings are tried next, from what the former ones gave."""

    planned: int  # settings in all

    def ask(self) -> list[TrialSettings]:
        """The next settings; none at the end."""

    def tell(self, values: Sequence[float | None]) -> None:
        """What those of the last call gave; None for settings whose runs diverged."""


class GridSearch:
    """All combinations at once, the last setting changing fastest; without settings, one that changes nothing."""

    def __init__(self, space: Mapping[str, tuple[TriedValue, ...]]) -> None:
        self._left = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
        self.planned = len(self._left)

    def ask(self) -> list[TrialSettings]:
        """All of them, then none."""
        now, self._left = self._left, []
        return now

    def tell(self, values: Sequence[float | None]) -> None:
        """Nothing follows from them."""


class OptunaSearch:
    """Ranges, searched by Optuna's TPE sampler; its seed is fixed, so the same results lead to the same settings.

    Args:
        space: Ranges, and lists of which one value is chosen.
        trials: How many settings are tried.
        seed: Of the sampler.
        better: Whether a higher or a lower value is better.

    Raises:
        UserError: Without Optuna.
    """

    def __init__(self, space: Space, trials: int, seed: int, better: Direction) -> None:
        try:
            import optuna
        except ImportError as error:
            key, values = next((key, v) for key, v in space.items() if isinstance(v, ValueRange))
            raise UserError(
                f"{key}={values} is a range, which needs the extra fedveca[sweep]: pip install 'fedveca[sweep]'"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.planned, self._space, self._optuna = trials, space, optuna
        sampler = optuna.samplers.TPESampler(seed=seed)
        directions = optuna.study.StudyDirection
        direction = directions.MAXIMIZE if better == "higher" else directions.MINIMIZE
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        self._asked: list[Trial] = []

    def ask(self) -> list[TrialSettings]:
        """A few at a time."""
        left = self.planned - len(self._study.trials)
        self._asked = [self._study.ask() for _ in range(min(left, TRIALS_AT_ONCE))]
        return [{key: _suggest(trial, key, values) for key, values in self._space.items()} for trial in self._asked]

    def tell(self, values: Sequence[float | None]) -> None:
        """A run that diverged is a trial that failed."""
        for trial, value in zip(self._asked, values, strict=True):
            if value is None:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, value)


def _suggest(trial: Trial, key: str, values: ValueSet) -> TriedValue:
    if not isinstance(values, ValueRange):
        return cast(TriedValue, trial.suggest_categorical(key, list(values)))
    if values.whole:
        return int(trial.suggest_int(key, int(values.low), int(values.high), log=values.log))
    found = float(f"{trial.suggest_float(key, values.low, values.high, log=values.log):.{DIGITS}g}")
    return min(max(found, values.low), values.high)


def make_search(space: Space, trials: int, seed: int, better: Direction) -> Search:
    """The search that these values need."""
    lists = {key: values for key, values in space.items() if not isinstance(values, ValueRange)}
    return GridSearch(lists) if len(lists) == len(space) else OptunaSearch(space, trials, seed, better)
