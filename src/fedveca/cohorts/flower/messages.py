"""Orders and answers as Flower messages. Loads no PyTorch: a node starts a process for every message."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedveca.cohorts.flower.wire import DTYPES, widen
from fedveca.errors import UserError

Vectors = dict[str, NDArray[np.generic]]
Value = bool | int | float | str
Settings = Mapping[str, Value]
_RECORDS = {"answer": ConfigRecord, "numbers": MetricRecord, "vectors": ArrayRecord}
TIMES = "times"  # what a node measured; an answer need not have it
_TEXT_CHARACTERS = 200  # characters of a node's text that a sentence repeats
_NAMES, _NAME_CHARACTERS = 8, 60  # names that a sentence lists, and characters of each
MOST_ROWS = 2**40
_LARGEST = float(np.finfo(np.float32).max)  # what a client computes in float32 is not beyond


def read_order(message: Message) -> tuple[dict[str, object], Vectors]:
    """What the server asks: its settings, and the vectors as they travelled."""
    content = message.content
    arrays: Mapping[str, Array] = content.array_records.get("vectors", {})
    return dict(content.config_records["order"]), {name: array.numpy() for name, array in arrays.items()}


def make_reply(
    message: Message,
    settings: Settings,
    numbers: Mapping[str, float],
    vectors: Vectors,
    times: Mapping[str, float] | None = None,
) -> Message:
    """The answer to an order: vectors as they travel, numbers one by one, and what the node measured."""
    content = _make_content("answer", settings, vectors, numbers)
    if times:
        content[TIMES] = MetricRecord(dict(times))
    return Message(content, reply_to=message)


def make_question(node: int, settings: Settings, ttl: float) -> Message:
    """Asks a node which client it is, and how many rows it has."""
    return Message(_make_content("order", settings, {}, {}), node, "query", ttl=ttl)


def make_order(node: int, settings: Settings, vectors: ArrayRecord, ttl: float, group: str) -> Message:
    """One client's round; `vectors` is the same record for all, so that it goes to the SuperLink once."""
    content = RecordDict({"order": ConfigRecord(dict(settings)), "vectors": vectors})
    return Message(content, node, "train", ttl=ttl, group_id=group)


def pack_vectors(vectors: Vectors) -> ArrayRecord:
    return ArrayRecord({name: Array(v) for name, v in vectors.items()})


def _make_content(name: str, settings: Settings, vectors: Vectors, numbers: Mapping[str, float]) -> RecordDict:
    content = RecordDict({name: ConfigRecord(dict(settings))})
    if vectors:
        content["vectors"] = pack_vectors(vectors)
    if numbers:
        content["numbers"] = MetricRecord(dict(numbers))
    return content


class InvalidAnswer(UserError):
    """An answer that does not count; its text says why, after the name of the client."""


def bound_text(value: object, most: int = _TEXT_CHARACTERS, bare: bool = False) -> str:
    """Anything that a node sent, as part of a sentence: printable, on one line, bounded; a text in quotes or bare."""
    if isinstance(value, list):
        value = [v[:most] if isinstance(v, str | bytes) else v for v in value[:most]]
    if isinstance(value, str | bytes):
        value = value[: most + 1]  # the repr of all of it may be four times as long
    text = value if bare and isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= most else f"{text[:most]}..."


def quote_names(names: Collection[str]) -> str:
    """The first few names in order, and how many more there are."""
    first = [bound_text(name, _NAME_CHARACTERS) for name in sorted(names)[:_NAMES]]
    more = [f"{len(names) - _NAMES} more"] if len(names) > _NAMES else []
    return f"[{', '.join(first + more)}]"


def read_answer(message: Message) -> tuple[dict[str, object], dict[str, object], dict[str, Array]]:
    """Settings, numbers and vectors of an answer, none of them trusted yet."""
    if message.has_error():
        raise InvalidAnswer(_describe_error(message))
    try:
        content = dict(message.content)
    except Exception as error:
        raise InvalidAnswer("sent garbage: its reply cannot be read") from error
    if "answer" not in content or not content.keys() <= {*_RECORDS, TIMES}:
        raise InvalidAnswer(f"sent garbage: no answer in its reply, but {quote_names(content.keys())}")
    if any(not isinstance(content[name], _RECORDS.get(name, MetricRecord)) for name in content):
        raise InvalidAnswer("sent garbage: a record of its reply is of the wrong kind")
    empty: Mapping[str, object] = {}
    settings, numbers, vectors = (content.get(name, empty) for name in _RECORDS)
    return {**settings}, {**numbers}, {name: v for name, v in vectors.items() if isinstance(v, Array)}


def check_settings(settings: Mapping[str, object], right: Mapping[str, int]) -> bool:
    """Whether the client reports that it diverged; InvalidAnswer where it answers another order, or more than asked."""
    for name, value in right.items():
        if type(settings.get(name)) is not int or settings[name] != value:
            raise InvalidAnswer(f"answered with {name} {bound_text(settings.get(name))}, not {value}")
    more = settings.keys() - right.keys() - {"diverged"}
    if more:
        raise InvalidAnswer(f"answered with {quote_names(more)} besides {', '.join(right)}")
    if settings.get("diverged", True) is not True:
        raise InvalidAnswer(f"answered with diverged {bound_text(settings['diverged'])}, not True")
    return "diverged" in settings


def check_number(value: object, name: str, negative: bool) -> float:
    """One number of an answer, checked: finite, within float32, and below 0 only where it can be."""
    if type(value) is not float or not math.isfinite(value):
        raise InvalidAnswer(f"sent {bound_text(name, bare=True)} = {bound_text(value)}, which is not a finite number")
    if abs(value) > _LARGEST:
        raise InvalidAnswer(f"sent {bound_text(name, bare=True)} = {value}, which is beyond float32")
    if value < 0 and not negative:
        raise InvalidAnswer(f"sent {bound_text(name, bare=True)} = {value}, which cannot be negative")
    return value


def check_range(value: object, name: str, low: float, high: float) -> float:
    """One number of an evaluation, checked: finite, within float32 and from low to high."""
    number = check_number(value, name, low < 0)
    if not low <= number <= high:
        raise InvalidAnswer(f"sent {bound_text(name, bare=True)} = {number}; allowed: {low:g} to {high:g}")
    return number


def check_vector(array: Array, size: int, wire: str, name: str) -> NDArray[np.generic]:
    """One vector of an answer, checked: float32 [size], every number and the square of its norm finite."""
    return check_norm(widen(check_array(array, size, DTYPES[wire], wire, name), wire), name)


def check_array(array: Array, size: int, dtype: np.dtype[np.generic], said: str, name: str) -> NDArray[np.generic]:
    """One array of an answer, checked: [size] of this type, which a sentence calls `said`."""
    name = bound_text(name, bare=True)
    try:
        v: NDArray[np.generic] = array.numpy()
    except Exception as error:
        raise InvalidAnswer(f"sent garbage for {name}") from error
    if v.shape != (size,):
        raise InvalidAnswer(f"sent {name} of shape {bound_text(list(v.shape))}, not [{size}]")
    if v.dtype != dtype:
        raise InvalidAnswer(f"sent {name} as {bound_text(str(v.dtype), bare=True)}, not as {said}")
    return v


def check_norm(v: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    """A float32 vector of an answer, every number and the square of its norm checked to be finite."""
    name = bound_text(name, bare=True)
    if not np.isfinite(v).all():
        raise InvalidAnswer(f"sent {name} with a number that is not finite")
    norm = float(np.linalg.norm(v.astype(np.float64)))
    if norm * norm > _LARGEST:
        raise InvalidAnswer(f"sent {name} of norm {norm:.3g}, whose square is beyond float32")
    return v


def _describe_error(message: Message) -> str:
    """Flower's error in a few words."""
    reason = (message.error.reason or "")[: 4 * _TEXT_CHARACTERS].strip().splitlines() or ["no reason given"]
    return f"failed: {bound_text(reason[0], bare=True)} (Flower's error {message.error.code})"
