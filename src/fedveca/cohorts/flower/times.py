"""When answers arrive, and how long a node was at work: what a deployment measures of every order and answer.

The server times an order from its sending to the arrival of the answer. What happens in between only the node knows: it
reports how long it worked, and when its program received the order by its own clock. Reports are not trusted: a
duration is cut to what the server saw, and a clock that disagrees with the server's says nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named, Timing
from fedveca.cohorts.flower.messages import TIMES, InvalidAnswer, bound_text

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

RECEIVED, WORK, PROBE, STEPS = "received", "work", "probe", "steps"
_NAMES = {RECEIVED, WORK, PROBE, STEPS}
HELD_BYTES = 256 * 2**20  # of answers that have arrived and are not due yet
_LOOKS = 16  # at other answers, while one is due
CLOCK_DIFFERENCE = 0.05  # by which a node's clock may differ from the server's


class Inbox:
    """The answers of a round as they come: when each arrived, and those whose turn has not come yet."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.start_clock()

    def start_clock(self, room: int = HELD_BYTES) -> None:
        """Forgets all answers; the next orders are sent now.

        Args:
            room: Bytes of answers that may be here before their turn; beyond it they wait at the SuperLink, and count
                as arrived when they are looked for.
        """
        self.start, self.wall, self.room = time.monotonic(), time.time(), room
        self.arrived: dict[str, float] = {}  # by message: seconds since the start
        self._open: list[str] = []
        self._held: dict[str, Message] = {}

    def await_answers(self, messages: Iterable[str], down: int) -> None:
        """Looks for answers to these messages from now on, to orders of so many bytes."""
        self.down, self._open = down, list(messages)

    def take(self, message: str) -> Message | None:
        """Looks once for answers, one order after another, so that none can pass for another's; the one if it came."""
        others = [m for m in self._open if m != message][:_LOOKS]
        for each in ([] if message in self._held else [message]) + others:
            if each != message and self.room <= 0:
                break
            if replies := list(self.grid.pull_messages([each])):
                self.arrived[each] = time.monotonic() - self.start
                self._held[each] = replies[0]
                self._open = [m for m in self._open if m != each]
                self.room -= _count_bytes(replies[0])
        self._open = [m for m in self._open if m not in others] + [m for m in others if m in self._open]  # in turns
        found = self._held.pop(message, None)
        if found is not None:
            self.room += _count_bytes(found)
        return found


def _count_bytes(message: Message) -> int:
    """Of the vectors of an answer."""
    if message.has_error() or not message.has_content():
        return 0
    return sum(len(a.data) for record in message.content.array_records.values() for a in record.values())


class AnswerTimes(NamedTuple):
    """How long one client took in a round, in seconds; None where its node does not say, or cannot be right."""

    total: float  # from the order to the answer
    wait: float | None  # until the node's program received the order
    work: float | None  # of that program
    probe: float | None  # of its work: F_i(w_k) and its gradient
    steps: float | None  # of its work: the local steps
    down: int  # bytes of the order
    up: int  # bytes of the answer


def measure_answer(message: Message, total: float, wall: float, down: int, up: int) -> AnswerTimes:
    """What is known of an answer.

    Args:
        message: The answer, which can be read.
        total: Seconds since its order was sent.
        wall: When it was sent, by the server's clock.
        down: Bytes of the order.
        up: Bytes of the answer.

    Returns:
        Its times. What the node reports is never longer than what the server saw.

    Raises:
        InvalidAnswer: Where the node reports what is not a time.
    """
    said = dict(message.content.metric_records.get(TIMES, {}))
    if not said.keys() <= _NAMES:
        raise InvalidAnswer(f"sent times {bound_text(sorted(said))}; allowed: {', '.join(sorted(_NAMES))}")
    for name, value in said.items():
        if type(value) is not float or not math.isfinite(value) or value < 0:
            raise InvalidAnswer(f"sent the time {name} = {bound_text(value)}; allowed: a number of seconds, 0 or more")
    seconds: dict[str, float] = {name: value for name, value in said.items() if isinstance(value, float)}
    work = min(seconds[WORK], total) if WORK in seconds else None
    probe = None if work is None or PROBE not in seconds else min(seconds[PROBE], work)
    steps = None if work is None or STEPS not in seconds else min(seconds[STEPS], work - (probe or 0.0))
    wait = None
    if work is not None and RECEIVED in seconds:
        longest = total - work
        said_wait = seconds[RECEIVED] - wall
        if -CLOCK_DIFFERENCE <= said_wait <= longest + CLOCK_DIFFERENCE:
            wait = min(max(said_wait, 0.0), longest)
    return AnswerTimes(total, wait, work, probe, steps, down, up)


def report_times(seconds: float, times: Iterable[AnswerTimes]) -> Timing:
    """The timing of a round, with the parts of each client that answered under the names of the record."""
    each = list(times)
    parts: Named = {
        "wait_seconds": _list([t.wait for t in each]),
        "work_seconds": _list([t.work for t in each]),
        "probe_seconds": _list([t.probe for t in each]),
        "step_seconds": _list([t.steps for t in each]),
        "order_bytes": torch.tensor([t.down for t in each], dtype=torch.int64),
        "answer_bytes": torch.tensor([t.up for t in each], dtype=torch.int64),
    }
    total, steps = _list([t.total for t in each]), parts["step_seconds"]
    return Timing(seconds, total, None, parts=parts, steps=torch.where(steps.isnan(), total, steps))


def _list(values: list[float] | list[float | None]) -> Tensor:
    """To the microsecond; NaN, which a record writes as null, where a value is not known."""
    known = [math.nan if v is None else round(v, 6) for v in values]
    return torch.tensor(known, dtype=torch.float64)
