"""One flat, validated description of a run: the same keys in Python, TOML and on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from fedveca.tasks import data as datasets
from fedveca.tasks.partition import RULES

LARGEST = 2**31 - 1  # of whole numbers: counts beyond it would only fail later
METHODS = ("fedveca", "fedavg", "fedprox", "fednova", "scaffold", "centralised")


def option(
    default: Any, text: str, *, of: tuple[str, ...] = (), low: float = -math.inf, high: float = math.inf,
    open_ends: bool = False,
) -> Any:
    """A field with its default, its range and one line of text."""
    return dataclasses.field(
        default=default, metadata={"text": text, "of": of, "low": low, "high": high, "open": open_ends}
    )


@dataclass(frozen=True)
class Experiment:
    """All that decides a run's numbers."""

    method: str = option("fedveca", "how clients and server work together", of=METHODS)
    data: str = option("digits", "data set", of=datasets.NAMES)
    model: str = option("mlp", "svm, cnn, mlp, or your own package.module:factory")
    partition: str = option("case3", "which client owns which rows", of=tuple(RULES))
    clients: int = option(5, "number of clients N", low=1)
    participation: float = option(1.0, "share of the clients drawn each round, at least one", low=0, high=1)
    rounds: int = option(100, "communication rounds K", low=1)
    batch: int = option(100, "rows of a mini-batch B", low=1)
    lr: float = option(0.01, "learning rate eta", low=0, open_ends=True)
    seed: int = option(0, "of all chance", low=0, high=LARGEST)
    alpha: float = option(0.95, "FedVeca: how far tau may rise, at most 1/(1-alpha)", low=0, high=1, open_ends=True)
    tau_0: int = option(10, "local steps before they are adapted; every round's where they are not", low=1, high=10**5)
    tau_max: int = option(50, "FedVeca: the most local steps", low=2, high=10**5)
    tau_all: int = option(0, "fixed-step methods: local steps of the whole run, shared by size (0: tau_0 each)", low=0)
    probe: int = option(1024, "rows of each client for F_i(w_k) and its gradient (0: all)", low=0)
    keep: str = option("best", "the model handed out", of=("best", "last", "rollback"))
    mu: float = option(0.1, "FedProx: pull towards w_k", low=0)
    concentration: float = option(0.5, "dirichlet, quantity: small is uneven", low=0, open_ends=True)
    shards: int = option(2, "shards: pieces of one label each client gets", low=1)
    heterogeneity: float = option(1.0, "synthetic: 0 makes all clients alike", low=0)
    hidden: int = option(64, "mlp: hidden units", low=1)
    init: str = option("paper", "cnn: w_0 as the paper's (truncated normal, sd 0.1) or torch's", of=("paper", "torch"))
    pixels: str = option("auto", "how rows become inputs", of=("auto", "as-is", "unit", "standardised"))
    precision: str = option("float32", "cnn, mlp: arithmetic of the layers", of=("float32", "bfloat16"))
    test_every: int = option(1, "rounds between evaluations on the test set", low=1)
    checkpoint_every: int = option(1, "rounds between checkpoints", low=1)
    engine: str = option("local", "where the clients run", of=("local",))
    round_timeout: float = option(300.0, "Flower: seconds a round may take", low=0, high=86400, open_ends=True)
    min_clients: int = option(1, "Flower: a round with fewer answers is void and repeated", low=1)
    wire: str = option("float32", "Flower: form of vectors on the wire", of=("float32", "float16", "bfloat16"))
    data_dir: str = option("", "folder that holds the data set (else FEDVECA_DATA, the cache, the mirrors)")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        if ":" not in self.model and self.model not in ("svm", "cnn", "mlp"):
            near = difflib.get_close_matches(self.model, ("svm", "cnn", "mlp"), 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"model={self.model} is not known{hint}; it is svm, cnn, mlp or package.module:factory")

    def toml(self) -> str:
        """Complete: enough to run it again."""
        return "".join(f"{key} = {_toml(value)}\n" for key, value in dataclasses.asdict(self).items())


TYPES: dict[str, type] = get_type_hints(Experiment)
FIELDS = {field.name: field for field in dataclasses.fields(Experiment)}


def read(text: str, source: str) -> dict[str, Any]:
    """The keys of a TOML file, each known."""
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{source} is not TOML: {error}") from error
    for key in table:
        known(key)
    return table


def preset(name: str) -> dict[str, Any]:
    """A preset of the package, or a TOML file of the user's."""
    if name.endswith(".toml"):
        try:
            return read(Path(name).read_text("utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{name} cannot be read: {error}") from error
    if name not in presets():
        near = difflib.get_close_matches(name, presets(), 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"preset {name} is not known{hint}; it is one of {', '.join(presets())}, or a .toml file")
    return read((resources.files("fedveca") / "presets" / f"{name}.toml").read_text("utf-8"), name)


def presets() -> list[str]:
    names = (path.name for path in (resources.files("fedveca") / "presets").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def parse(words: list[str]) -> dict[str, Any]:
    """`key=value` words as typed settings."""
    out = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} is not key=value")
        out[key] = _typed(known(key), value)
    return out


def known(key: str) -> str:
    if key in FIELDS:
        return key
    near = difflib.get_close_matches(key, FIELDS, 1)
    hint = f"did you mean {near[0]}?" if near else "`fedveca list` shows all"
    raise ValueError(f"{key} is not a setting; {hint}")


def range_of(field: dataclasses.Field[Any]) -> str:
    """The allowed values, in words."""
    m = field.metadata
    if m["of"]:
        return " | ".join(m["of"])
    if TYPES[field.name] is str:
        return "text"
    left, right = ("(", ")") if m["open"] else ("[", "]")
    if math.isinf(m["high"]):
        return f"{'>' if m['open'] else '>='} {m['low']}"
    return f"{left}{m['low']}, {m['high']}{right}"


def _typed(key: str, value: str) -> Any:
    kind = TYPES[key]
    try:
        return kind(value)
    except ValueError:
        word = {int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"{key}={value} is not {word}; allowed: {range_of(FIELDS[key])}") from None


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    kind, m = TYPES[field.name], field.metadata
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ValueError(f"{field.name}={value!r} is not {kind.__name__}; allowed: {range_of(field)}")
    if m["of"] and value not in m["of"]:
        near = difflib.get_close_matches(value, m["of"], 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"{field.name}={value} is not known{hint}; allowed: {range_of(field)}")
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError(f"{field.name}={value!r} is not UTF-8 text")
    if isinstance(value, int) and value > LARGEST:
        raise ValueError(f"{field.name}={value} is out of range; at most {LARGEST}")
    if isinstance(value, int | float):
        inside = m["low"] < value < m["high"] if m["open"] else m["low"] <= value <= m["high"]
        if not inside or not math.isfinite(value):
            raise ValueError(f"{field.name}={value} is out of range; allowed: {range_of(field)}")
    return value


def _toml(value: Any) -> str:
    if isinstance(value, str):
        quoted = (f"\\u{ord(c):04x}" if c in '"\\\x7f' or ord(c) < 32 else c for c in value)
        return f'"{"".join(quoted)}"'
    return repr(value)
