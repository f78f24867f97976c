"""Orders and answers as Flower messages. Loads no PyTorch: a node starts a process for every message."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedveca.cohorts.flower.wire import DTYPES, wide
from fedveca.errors import UserError

Vectors = dict[str, NDArray[Any]]
RECORDS = {"answer": ConfigRecord, "numbers": MetricRecord, "vectors": ArrayRecord}
MOST_TEXT = 200  # characters of a node's text that a sentence repeats
MOST_NAMES, MOST_NAME = 8, 60  # names that a sentence lists, and characters of each
MOST_ROWS = 2**40
LARGEST = float(np.finfo(np.float32).max)  # what a client computes in float32 is not beyond


def order_of(message: Message) -> tuple[dict[str, Any], Vectors]:
    """What the server asks: its settings, and the vectors as they travelled."""
    content = message.content
    sent: dict[str, Any] = dict(content["vectors"]) if "vectors" in content else {}
    return dict(content["order"]), {name: array.numpy() for name, array in sent.items()}


def reply(message: Message, settings: Mapping[str, Any], numbers: Mapping[str, float], vectors: Vectors) -> Message:
    """The answer to an order: vectors as they travel, numbers one by one."""
    return Message(_content("answer", settings, vectors, numbers), reply_to=message)


def question(node: int, settings: Mapping[str, Any], ttl: float) -> Message:
    """Who a node is, and how many rows it has."""
    return Message(_content("order", settings, {}, {}), node, "query", ttl=ttl)


def order(node: int, settings: Mapping[str, Any], vectors: ArrayRecord, ttl: float, group: str) -> Message:
    """One client's round; `vectors` is the same record for all, so that it goes to the SuperLink once."""
    content = RecordDict({"order": ConfigRecord(dict(settings)), "vectors": vectors})
    return Message(content, node, "train", ttl=ttl, group_id=group)


def packed(vectors: Vectors) -> ArrayRecord:
    return ArrayRecord({name: Array(v) for name, v in vectors.items()})


def _content(name: str, settings: Mapping[str, Any], vectors: Vectors, numbers: Mapping[str, float]) -> RecordDict:
    content = RecordDict({name: ConfigRecord(dict(settings))})
    if vectors:
        content["vectors"] = packed(vectors)
    if numbers:
        content["numbers"] = MetricRecord(dict(numbers))
    return content


class Refused(UserError):
    """An answer that does not count, and why."""


def bound_text(value: object, most: int = MOST_TEXT, bare: bool = False) -> str:
    """Anything that a node sent, as part of a sentence: printable, on one line, bounded; a text in quotes or bare."""
    if isinstance(value, list):
        value = [v[:most] if isinstance(v, str | bytes) else v for v in value[:most]]
    if isinstance(value, str | bytes):
        value = value[: most + 1]  # the repr of all of it may be four times as long
    text = value if bare and isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= most else f"{text[:most]}..."


def list_names(names: Collection[str]) -> str:
    """The first few names in order, and how many more there are."""
    first = [bound_text(name, MOST_NAME) for name in sorted(names)[:MOST_NAMES]]
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return f"[{', '.join(first + more)}]"


def answer_of(message: Message) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Settings, numbers and vectors of an answer, none of them trusted yet."""
    if message.has_error():
        raise Refused(_why(message))
    try:
        content = dict(message.content)
    except Exception as error:
        raise Refused("sent garbage: its reply cannot be read") from error
    if "answer" not in content or not content.keys() <= RECORDS.keys():
        raise Refused(f"sent garbage: no answer in its reply, but {list_names(content.keys())}")
    if any(not isinstance(content[name], RECORDS[name]) for name in content):
        raise Refused("sent garbage: a record of its reply is of the wrong kind")
    said, numbers, vectors = (dict(content.get(name, {})) for name in RECORDS)
    return said, numbers, vectors


def check_settings(said: Mapping[str, Any], right: Mapping[str, int]) -> bool:
    """Whether the client says that its numbers ran away; Refused where it answers another order, or more than asked."""
    for name, value in right.items():
        if type(said.get(name)) is not int or said[name] != value:
            raise Refused(f"answered with {name} {bound_text(said.get(name))}, not {value}")
    more = said.keys() - right.keys() - {"wild"}
    if more:
        raise Refused(f"answered with {list_names(more)} besides {', '.join(right)}")
    if said.get("wild", True) is not True:
        raise Refused(f"answered with wild {bound_text(said['wild'])}, not True")
    return "wild" in said


def number(value: Any, name: str, negative: bool) -> float:
    """One number of an answer, checked: finite, within float32, and below 0 only where it can be."""
    if type(value) is not float or not math.isfinite(value):
        raise Refused(f"sent {bound_text(name, bare=True)} = {bound_text(value)}, which is not a finite number")
    if abs(value) > LARGEST:
        raise Refused(f"sent {bound_text(name, bare=True)} = {value}, which is beyond float32")
    if value < 0 and not negative:
        raise Refused(f"sent {bound_text(name, bare=True)} = {value}, which cannot be negative")
    return value


def vector(array: Any, size: int, wire: str, name: str) -> NDArray[Any]:
    """One vector of an answer, checked: float32 [size], every number and the square of its norm finite."""
    name = bound_text(name, bare=True)
    try:
        v = array.numpy()
    except Exception as error:
        raise Refused(f"sent garbage for {name}") from error
    if v.shape != (size,):
        raise Refused(f"sent {name} of shape {bound_text(list(v.shape))}, not [{size}]")
    if v.dtype != DTYPES[wire]:
        raise Refused(f"sent {name} as {bound_text(str(v.dtype), bare=True)}, not as {wire}")
    v = wide(v, wire)
    if not np.isfinite(v).all():
        raise Refused(f"sent {name} with a number that is not finite")
    norm = float(np.linalg.norm(v.astype(np.float64)))
    if norm * norm > LARGEST:
        raise Refused(f"sent {name} of norm {norm:.3g}, whose square is beyond float32")
    return v


def _why(message: Message) -> str:
    """Flower's error in a few words."""
    reason = (message.error.reason or "")[: 4 * MOST_TEXT].strip().splitlines() or ["no reason given"]
    return f"failed: {bound_text(reason[0], bare=True)} (Flower's error {message.error.code})"
