"""How a setting is declared: the names that it may have, its default, range, text and subject."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from fedveca.algorithms.hyper import OpenEnds, Range
from fedveca.runs.catalog import known_hyper, load_catalog

_NAMES = load_catalog()  # of data sets, models and so on

# What an editor offers; a test compares them with what is accepted. Objects and registered methods have other names.
MethodName = Literal[
    "fedveca",
    "fedavg",
    "fedprox",
    "fednova",
    "scaffold",
    "centralised",
    "adacomm",
    "adaptivetau",
    "corrected",
    "equaltime",
    "fedacg",
    "fedadagrad",
    "fedadam",
    "fedavgm",
    "feddyn",
    "fedexp",
    "fedlc",
    "fedveca_time",
    "fedvecam",
    "fedyogi",
    "mimelite",
    "moon",
    "scaffnew",
]
DataName = Literal["cifar10", "digits", "fashion-mnist", "heart", "mnist", "shakespeare", "synthetic"]
ModelName = Literal["svm", "logistic", "mlp", "cnn", "lenet", "vgg11", "resnet18", "lstm", "gpt"]
LossName = Literal["auto", "cross_entropy", "squared_error"]
MetricName = Literal[
    "auto",
    "accuracy",
    "absolute_error",
    "f1",
    "balanced_accuracy",
    "precision",
    "recall",
    "top5",
    "auc",
    "perplexity",
]
PartitionName = Literal[
    "case1",
    "case2",
    "case3",
    "iid",
    "dirichlet",
    "dirichlet_niid",
    "dirichlet_balanced",
    "labels",
    "shards",
    "quantity",
    "power_law",
    "writer",
]
AggregationName = Literal["mean", "clip", "trimmed", "median"]
Keep = Literal["best", "last", "rollback"]
TestBy = Literal["server", "client", "both"]
Init = Literal["paper", "torch"]
Pixels = Literal["auto", "as-is", "unit", "standardised", "channels"]
Sampling = Literal["random", "shuffle"]
Precision = Literal["float32", "bfloat16"]
Engine = Literal["local", "ray", "debug"]
Norm = Literal["auto", "none", "group", "batch"]
NormStatistics = Literal["average", "local", "fixed"]
Wire = Literal["float32", "float16", "bfloat16", "int8", "topk"]
LocalOptimizerName = Literal["sgd", "adam", "adamw"]
ServerOptimizerName = Literal["auto", "sgd", "momentum", "adam", "yogi", "adagrad"]
ScheduleName = Literal["constant", "cosine", "step"]
OptimizerState = Literal["reset", "keep"]
OnOff = Literal["off", "on"]
GuardChoice = Literal["auto", "on", "off"]
Share = Literal["floor", "exact"]
Weights = Literal["rows", "uniform"]
# what a list says about each of those values
TEST_BY_TEXTS: dict[TestBy, str] = {
    "server": "the server, on the test rows of the data set",
    "client": "each client, on rows of its own that it never trains on; the server needs no data",
    "both": "the server and each client",
}
LOCAL_OPTIMIZER_TEXTS: dict[LocalOptimizerName, str] = {
    "sgd": "stochastic gradient descent, with momentum and nesterov where they are set",
    "adam": "Adam with beta1, beta2 and adam_eps; the weight decay is part of the gradient",
    "adamw": "Adam whose weight decay shrinks the weights directly",
}
SERVER_OPTIMIZER_TEXTS: dict[ServerOptimizerName, str] = {
    "auto": "the method's: momentum for fedavgm, adam for fedadam, ...; sgd for most",
    "sgd": "the step times server_lr",
    "momentum": "the sum of the steps so far, each former one times server_momentum",
    "adam": "steps divided by the root of a moving mean of their squares",
    "yogi": "as adam, but the mean of the squares changes by bounded amounts",
    "adagrad": "steps divided by the root of the sum of their squares",
}
SCHEDULE_TEXTS: dict[ScheduleName, str] = {
    "constant": "lr in every round",
    "cosine": "half a cosine from lr down to lr_final times lr",
    "step": "times lr_decay after every lr_every rounds",
}
OPTIMIZER_STATE_TEXTS: dict[OptimizerState, str] = {
    "reset": "every round starts from zero",
    "keep": "each client keeps them in its memory until its next round",
}
SHARE_TEXTS: dict[Share, str] = {
    "floor": "each client's share per round is rounded down, as in the paper, so that steps are lost",
    "exact": "the rounded shares of all clients and rounds add up to tau_all",
}
WEIGHTS_TEXTS: dict[Weights, str] = {
    "rows": "its share of the rows of all clients that answered",
    "uniform": "the same for all, so that the objective is the plain mean of the clients' losses",
}
WIRE_TEXTS: dict[Wire, str] = {
    "float32": "4 bytes per number, down and up",
    "float16": "2 bytes per number, down and up",
    "bfloat16": "2 bytes per number, down and up, with float32's range",
    "int8": "up 1 byte per number, rounded at random so that the mean is right; down as float32",
    "topk": "up the share wire_share of the numbers that are largest; the rest is added later; down as float32",
}
Auto = Literal["auto"]


class TaskDefault(NamedTuple):
    """A default that the data set or the model of an experiment brings with it."""

    by: Literal["data", "model"]
    name: str

    def find(self, value: str) -> str | int | float:
        """The default with this data set or model; custom ones have those of a small task."""
        if self.by == "model":
            return _NAMES["rates"].get(value, _NAMES["rates"]["mlp"])
        return _NAMES["recommended"].get(value, _NAMES["recommended"][""])[self.name]

    def __repr__(self) -> str:
        """The most common value, then those that differ: `100 (digits 80)`."""
        values = {name: self.find(name) for name in _NAMES["data" if self.by == "data" else "models"]}
        usual = max(values.values(), key=list(values.values()).count)
        others = ", ".join(f"{name} {value}" for name, value in values.items() if value != usual)
        return f"{usual} ({others})" if others else str(usual)


def option(
    default: Any,
    text: str,
    *,
    of: Callable[[], Iterable[str]] | Iterable[str] = (),
    low: float = -math.inf,
    high: float = math.inf,
    open_ends: OpenEnds = False,
    some: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    forms: Iterable[str] = (),
    custom: bool = False,
    group: str,
    rare: bool = False,
) -> Any:
    """A field with its default, its range and one line of text; `custom` where an object may be given from Python.

    `words` are allowed next to numbers; `forms` says what a text looks like that is read by a function of its own.
    `group` is the subject under which a list shows it; a list folds what is `rare`.
    """
    more = {"some": some, "words": words, "forms": tuple(forms), "range": Range(low, high, open_ends)}
    metadata = {"text": text, "of": of, **more, "custom": custom, "group": group, "rare": rare}
    return dataclasses.field(default=default, metadata=metadata)


class SettingGroup:
    """Makes the settings of one subject; `rare` those that few people need."""

    def __init__(self, title: str) -> None:
        self.make = functools.partial(option, group=title)
        self.rare = functools.partial(option, group=title, rare=True)

    def __call__(self, default: Any, text: str, **more: Any) -> Any:
        return self.make(default, text, **more)


def method_option(make: Callable[..., Any], name: str) -> Any:
    """A setting that is a hyperparameter of some methods, as they declare it."""
    declared, owners = known_hyper(name)
    low, high, open_ends = declared.range
    return make(declared.default, f"{', '.join(owners)}: {declared.text}", low=low, high=high, open_ends=open_ends)
