"""One flat, validated description of a run: the same keys in Python, TOML and on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import stat
import tomllib
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from fedveca.algorithms.contract import LR
from fedveca.algorithms.hyper import LARGEST, OpenEnds, Range
from fedveca.algorithms.registry import find_hyper, methods
from fedveca.cohorts import faults as adversity
from fedveca.cohorts.aggregate import AGGREGATION_RULES
from fedveca.errors import UserError, printable, quoted, show_value, suggest
from fedveca.tasks.custom import CUSTOM
from fedveca.tasks.datasets.dataset import DATASETS
from fedveca.tasks.losses import LOSSES, METRICS
from fedveca.tasks.models import INITS, MODELS, NORMS
from fedveca.tasks.partition import RULES

LEAST_NOISE = 1e-30  # of dp_noise: the epsilon of less is not a finite number
PRESET_BYTES = 2**20  # of a TOML file
DOTS = 4096  # of a TOML file: the time and memory of a dotted key grow with the square of its parts
TRACKERS = ("tensorboard", "mlflow", "wandb")
KNOWN_MODELS = f"{', '.join(MODELS)} or package.module:factory"
RENAMED = {"gather": "aggregate", "gather_clip": "aggregate_clip", "gather_trim": "aggregate_trim"}  # of version 0.1
FACTORY = re.compile(r"[\w.-]+:[\w.]+")  # package.module:factory
LINES = ("Cc", "Zl", "Zp")  # Unicode categories: control characters and what separates lines


def option(
    default: Any,
    text: str,
    *,
    of: Callable[[], Iterable[str]] | Iterable[str] = (),
    low: float = -math.inf,
    high: float = math.inf,
    open_ends: OpenEnds = False,
    some: tuple[str, ...] = (),
    custom: bool = False,
) -> Any:
    """A field with its default, its range and one line of text; `custom` where an object may be given from Python."""
    allowed = Range(low, high, open_ends)
    return dataclasses.field(
        default=default, metadata={"text": text, "of": of, "some": some, "range": allowed, "custom": custom}
    )


def method_option(name: str) -> Any:
    """A setting that is a hyperparameter of some methods, as they declare it."""
    declared, owners = find_hyper(name)
    low, high, open_ends = declared.range
    return option(declared.default, f"{', '.join(owners)}: {declared.text}", low=low, high=high, open_ends=open_ends)


@dataclass(frozen=True)
class Experiment:
    """All that decides a run's numbers."""

    method: str = option("fedveca", "how clients and server work together", of=methods, custom=True)
    data: str = option("digits", "data set", of=DATASETS, custom=True)
    model: str = option("mlp", KNOWN_MODELS, custom=True)
    loss: str = option("auto", "cross_entropy of labels, squared_error of numbers", of=("auto", *LOSSES), custom=True)
    metric: str = option("auto", "accuracy of labels, absolute_error of numbers", of=("auto", *METRICS), custom=True)
    partition: str = option("case3", "which client owns which rows", of=RULES, custom=True)
    clients: int = option(5, "number of clients N", low=1)
    participation: float = option(
        1.0, "share of the clients drawn per round, at least one", low=0, high=1, open_ends="low"
    )
    rounds: int = option(100, "communication rounds K", low=1)
    batch: int = option(100, "rows of a mini-batch B", low=1)
    lr: float = option(0.01, "learning rate eta", low=LR.low, open_ends=LR.open_ends)
    seed: int = option(0, "of all chance", low=0, high=LARGEST)
    alpha: float = method_option("alpha")
    tau_0: int = option(10, "local steps before they are adapted; every round's where they are not", low=1, high=10**5)
    tau_max: int = method_option("tau_max")
    smooth: float = method_option("smooth")
    probe_steps: float = method_option("probe_steps")
    tau_all: int = option(0, "fixed-step methods: local steps of the whole run, shared by size (0: tau_0 each)", low=0)
    probe: int = option(1024, "rows of each client for F_i(w_k) and its gradient (0: all)", low=0)
    keep: str = option("best", "the model handed out", of=("best", "last", "rollback"))
    mu: float = method_option("mu")
    concentration: float = option(0.5, "dirichlet, quantity: small is uneven", low=0, open_ends=True)
    shards: int = option(2, "shards: pieces of one label each client gets", low=1)
    heterogeneity: float = option(1.0, "synthetic: 0 makes all clients alike", low=0)
    hidden: int = option(64, "mlp, lstm, gpt: hidden units; vgg11, resnet18: channels of the first stage", low=1)
    layers: int = option(2, "lstm, gpt: number of layers", low=1, high=1000)
    norm: str = option("auto", "vgg11, resnet18: normalisation (auto: none for vgg11, group for resnet18)", of=NORMS)
    dropout: float = option(0.0, "vgg11, lstm, gpt: share of units dropped in local steps", low=0, high=0.95)
    init: str = option(
        "paper", "w_0: paper, as each model was published; torch, PyTorch's; or the path of a model or a run folder"
    )
    pixels: str = option("auto", "how rows become inputs", of=("auto", "as-is", "unit", "standardised"))
    precision: str = option("float32", "arithmetic of the layers, except for svm", of=("float32", "bfloat16"))
    compile: str = option(
        "off", "on a CUDA device, fuse the model's operations: faster steps after half a minute", of=("off", "on")
    )
    norm_stats: str = option(
        "average",
        "running statistics of BatchNorm: averaged with the model, kept at each client, or as they were at the start",
        of=("average", "local", "fixed"),
    )
    test_every: int = option(1, "rounds between evaluations on the test set", low=1)
    checkpoint_every: int = option(1, "rounds between checkpoints", low=1)
    track: str = option("", "trackers that see the run too, with commas between", some=TRACKERS)
    faults: str = option("", "what goes wrong: drop:P,crash:P:ROUNDS,late:P,nan:S,scale:S:FACTOR,flip:S,lie:S")
    aggregate: str = option("mean", "how the clients' vectors become one", of=AGGREGATION_RULES)
    aggregate_clip: float = option(0.0, "aggregate=clip: the largest norm (0: the round's median)", low=0)
    aggregate_trim: float = option(0.2, "robust aggregation: share distrusted at each end", low=0, high=0.5)
    dp_noise: float = option(0.0, "differential privacy: noise on sums, times dp_clip (0: off)", low=0)
    dp_clip: float = option(1.0, "differential privacy: the largest norm of a client's vectors", low=0, open_ends=True)
    dp_bound: float = option(10.0, "differential privacy: the largest loss, beta or spread", low=1, open_ends=True)
    dp_delta: float = option(1e-5, "differential privacy: delta of the epsilon", low=0, high=1, open_ends=True)
    dp_seed: int = option(0, "differential privacy: seed of the noise (-1: secret, never the same)", low=-1)
    memory_mb: int = option(1024, "MB of the clients' memory (SCAFFOLD's c_i) held in RAM, more on disk", low=0)
    engine: str = option(
        "local", "where clients run: here, on a Ray cluster, or one by one to find errors", of=("local", "ray", "debug")
    )
    workers: int = option(0, "ray: processes that share the clients (0: one for each core or GPU share)", low=0)
    worker_gpus: float = option(0.0, "ray: GPUs of a worker, such as 0.25 (0: it steps on its core)", low=0, high=1)
    ray_address: str = option("", "ray: auto or HOST:PORT of a running cluster (else a new one on this machine)")
    round_timeout: float = option(300.0, "Flower: seconds a round may take", low=0, high=86400, open_ends=True)
    min_clients: int = option(1, "Flower: a round with fewer answers is void and repeated", low=1)
    wire: str = option("float32", "Flower: form of vectors on the wire", of=("float32", "float16", "bfloat16"))
    data_dir: str = option("", "folder that holds the data set (else FEDVECA_DATA, the cache, the mirrors)")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        if self.model not in MODELS and not self.model.startswith(CUSTOM) and not FACTORY.fullmatch(self.model):
            hint = suggest(self.model, MODELS)
            raise UserError(f"model={printable(self.model)} is not known{hint}; it is {KNOWN_MODELS}")
        if self.init not in INITS and not is_path(self.init):
            hint = suggest(self.init, INITS)
            raise UserError(
                f"init={printable(self.init)} is not known{hint}; it is {', '.join(INITS)}, or the path of a "
                ".safetensors file or of a run folder, such as ./NAME"
            )
        adversity.parse_faults(self.faults)
        if 0 < self.dp_noise < LEAST_NOISE:
            raise UserError(f"dp_noise={self.dp_noise} is out of range; allowed: 0 or >= {LEAST_NOISE}")
        if self.dp_noise and self.aggregate != "mean":
            raise UserError(
                f"aggregate={self.aggregate} cannot go with dp_noise: the noise is measured for aggregate=mean"
            )

    def toml(self) -> str:
        """Complete: enough to run it again."""
        return "".join(f"{key} = {_toml(value)}\n" for key, value in dataclasses.asdict(self).items())


def is_path(init: str) -> bool:
    """Whether `init` names a file or a folder."""
    return init not in INITS and (init.endswith(".safetensors") or "/" in init or "\\" in init)


TYPES: dict[str, type] = get_type_hints(Experiment)
FIELDS = {field.name: field for field in dataclasses.fields(Experiment)}


def read_experiment(text: str) -> Experiment:
    """The settings of a run folder, also of one that an older version wrote."""
    return Experiment(**parse_toml(text, "experiment.toml"))


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The keys of a TOML file, each known; those that an older version named otherwise get their name of today."""
    return _check_settings(_load_toml(text, source))


def read_toml(name: str) -> dict[str, object]:
    """The tables of a TOML file of the user's."""
    try:
        text = _read_file(Path(name))
    except (OSError, ValueError) as error:  # not UTF-8, or a name that no file can have
        raise UserError(f"{printable(name)} cannot be read: {printable(str(error))}") from error
    return _load_toml(text, printable(name))


def _load_toml(text: str, source: str) -> dict[str, object]:
    if text.count(".") > DOTS:
        raise UserError(f"{source} is not a table of settings: it holds more than {DOTS} dots")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are the former too
        why = "nested too deeply" if isinstance(error, RecursionError) else printable(str(error))
        raise UserError(f"{source} is not TOML: {why}") from error


def _check_settings(table: dict[str, object]) -> dict[str, Any]:
    """The settings of a TOML file in their names of today, each known."""
    settings = upgrade_settings(table)
    for key in settings:
        check_setting(key)
    return settings


def upgrade_settings(table: dict[str, Any]) -> dict[str, Any]:
    """Settings as version 0.1 named them, in the names of today."""
    out = {RENAMED.get(key, key): value for key, value in table.items()}
    for key, value in out.items():
        if key in FIELDS and FIELDS[key].metadata["custom"] and isinstance(value, str) and value.startswith("own:"):
            out[key] = CUSTOM + value.removeprefix("own:")
    return out


def preset(name: str) -> dict[str, Any]:
    """A preset of the package, or a TOML file of the user's."""
    if name.endswith(".toml"):
        return _check_settings(read_toml(name))
    if name not in presets():
        hint = suggest(name, presets())
        all_of_them = ", ".join(presets())
        raise UserError(f"preset {quoted(name)} is not known{hint}; it is one of {all_of_them}, or a .toml file")
    return parse_toml((resources.files("fedveca") / "presets" / f"{name}.toml").read_text("utf-8"), name)


def _read_file(path: Path) -> str:
    if path.exists() and not (stat.S_ISREG(path.stat().st_mode) or path.is_dir()):
        raise UserError("it is not a regular file")  # a pipe or a device may have no end
    with open(path, "rb") as file:
        content = file.read(PRESET_BYTES + 1)
    if len(content) > PRESET_BYTES:
        raise UserError(f"it is longer than {PRESET_BYTES} bytes")
    return content.decode("utf-8")


def reject_custom(settings: dict[str, Any]) -> None:
    """ValueError where a preset or the command line names an object that only Python can give."""
    for key, value in settings.items():
        if FIELDS[key].metadata["custom"] and isinstance(value, str) and value.startswith(CUSTOM):
            known_ones = KNOWN_MODELS if key == "model" else range_of(FIELDS[key])
            said = f"{key}={printable(value)} is an object that was given from Python"
            raise UserError(f"{said}; here allowed: {known_ones}")


def presets() -> list[str]:
    names = (path.name for path in (resources.files("fedveca") / "presets").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def parse_settings(words: list[str]) -> dict[str, Any]:
    """`key=value` words as typed settings."""
    out = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"{printable(repr(word))} is not key=value")
        out[key] = _typed(check_setting(key), value)
    return out


def check_setting(key: str) -> str:
    if key in FIELDS:
        return key
    near = [RENAMED[key]] if key in RENAMED else difflib.get_close_matches(key, FIELDS, 1)
    hint = f"did you mean {near[0]}?" if near else "`fedveca list` shows all"
    raise UserError(f"{quoted(key)} is not a setting; {hint}")


def choices(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    """The names that a setting may have, empty where it is free; asked anew, as methods may have been added."""
    of = field.metadata["of"]
    return tuple(of() if callable(of) else of)


def range_of(field: dataclasses.Field[Any]) -> str:
    """The allowed values, in words."""
    if names := choices(field):
        return " | ".join(names)
    if some := field.metadata["some"]:
        return f"some of {', '.join(some)}"
    return "text" if TYPES[field.name] is str else str(field.metadata["range"])


def _typed(key: str, value: str) -> Any:
    kind = TYPES[key]
    try:
        return kind(value)
    except ValueError:
        word = {int: "a whole number", float: "a number"}[kind]
        raise UserError(f"{key}={printable(value)} is not {word}; allowed: {range_of(FIELDS[key])}") from None


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    kind, m = TYPES[field.name], field.metadata
    if kind is not str:
        return m["range"].check(field.name, value, kind)
    if type(value) is not str:
        raise UserError(f"{field.name}={show_value(value, 120)} is not str; allowed: {range_of(field)}")
    if field.name != "data_dir" and any(unicodedata.category(c) in LINES for c in value):
        of = "" if range_of(field) == "text" else f"; allowed: {range_of(field)}"
        raise UserError(f"{field.name}={printable(repr(value))} holds a control character or the end of a line{of}")
    names = choices(field)
    if names and value not in names and not (m["custom"] and value.startswith(CUSTOM)):
        hint = suggest(value, names)
        raise UserError(f"{field.name}={printable(value)} is not known{hint}; allowed: {range_of(field)}")
    for word in value.split(",") if m["some"] and value else ():
        if word.strip() not in m["some"]:
            hint = suggest(word, m["some"])
            said = f"{field.name}={printable(value)}: {printable(repr(word))}"
            raise UserError(f"{said} is not known{hint}; allowed: {range_of(field)}")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise UserError(f"{field.name}={printable(repr(value))} is not UTF-8 text")
    return value


def _toml(value: Any) -> str:
    if isinstance(value, str):
        quoted = (f"\\u{ord(c):04x}" if c in '"\\\x7f' or ord(c) < 32 else c for c in value)
        return f'"{"".join(quoted)}"'
    return repr(value)
