"""Orders and answers as Flower messages. Loads no PyTorch: a node starts a process for every message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedveca.cohorts.wire import DTYPES, wide

Vectors = dict[str, NDArray[Any]]


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


class Refused(ValueError):
    """An answer that does not count, and why."""


def answer_of(message: Message) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Settings, numbers and vectors of an answer, none of them trusted yet."""
    if message.has_error():
        raise Refused(_why(message))
    try:
        content = message.content
        vectors: dict[str, Any] = dict(content["vectors"]) if "vectors" in content else {}
        numbers: dict[str, Any] = dict(content["numbers"]) if "numbers" in content else {}
        return dict(content["answer"]), numbers, vectors
    except Exception as error:
        raise Refused("sent garbage: no answer in its reply") from error


def vector(array: Any, size: int, wire: str, name: str) -> NDArray[Any]:
    """One vector of an answer, checked: float32 [size], every number finite."""
    try:
        v = array.numpy()
    except Exception as error:
        raise Refused(f"sent garbage for {name}") from error
    if v.shape != (size,):
        raise Refused(f"sent {name} of shape {list(v.shape)}, not [{size}]")
    if v.dtype != DTYPES[wire]:
        raise Refused(f"sent {name} as {v.dtype}, not as {wire}")
    v = wide(v, wire)
    if not np.isfinite(v).all():
        raise Refused(f"sent {name} with a number that is not finite")
    return v


def _why(message: Message) -> str:
    """Flower's error in a few words."""
    reason = (message.error.reason or "").strip().splitlines() or ["no reason given"]
    return f"failed: {reason[0][:200]} (Flower's error {message.error.code})"
