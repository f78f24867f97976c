"""What a message's process and the node's process say to each other: vectors, and one JSON object in their header.

Loads no PyTorch: Flower starts a process for every message.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

if TYPE_CHECKING:
    from fedveca.cohorts.contract import HeldPart  # at run time it would load PyTorch

PROCESS = "node_process"  # in a node's folder: the log of its process, the file with its id, and its socket
ConfigValue = bool | int | float | str
Arrays = dict[str, NDArray[np.generic]]


class NodeOrder(TypedDict):
    """What the server asks of one client; without a round, who it is and how many rows it has.

    A server that has no data does not know the classes either, and asks what the rows look like.
    """

    classes: NotRequired[int]
    pixels: NotRequired[str]
    tokens: NotRequired[bool]  # whether whole numbers in x stay whole
    fixed: NotRequired[str]  # a hash of the model's frozen part at the server
    check: NotRequired[bool]  # whether to report on the machine as well
    size: NotRequired[int]  # P at the server, in a check
    round: NotRequired[int]
    tau: NotRequired[int]
    part: NotRequired[HeldPart]  # in place of tau: the rows to evaluate the model on
    finetune: NotRequired[int]  # local steps before that
    wire: NotRequired[str]  # the form of the order's own vectors
    token: NotRequired[int]  # of the run
    known: NotRequired[int]  # the round whose memory counts; -1 is none
    stage: NotRequired[str]  # of secure aggregation, in a message of its own
    secure: NotRequired[str]  # its request, in base64
    next: NotRequired[str]  # the request for the next round's secrets
    fraction: NotRequired[int]  # bits behind the point of the integers that are masked


class NodeRequest(TypedDict):
    """An order, with what its message says of the run and of the node."""

    settings: dict[str, ConfigValue]
    client: int
    order: NodeOrder


class NodeAnswer(TypedDict, total=False):
    """A client's answer besides its vectors, or only the error in its place."""

    fields: dict[str, ConfigValue]
    numbers: dict[str, float]
    times: dict[str, float]  # seconds of parts of its work
    error: str


def encode(content: NodeRequest | NodeAnswer, vectors: Arrays) -> bytes:
    return save(vectors, {"content": json.dumps(content)})


def decode_request(data: bytes) -> tuple[NodeRequest, Arrays]:
    return cast(NodeRequest, _read_header(data)), load(data)


def decode_answer(data: bytes) -> tuple[NodeAnswer, Arrays]:
    return cast(NodeAnswer, _read_header(data)), load(data)


def _read_header(data: bytes) -> object:
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["content"])
