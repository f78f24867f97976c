"""The clients of a Flower federation under secure aggregation: their vectors reach the server as one sum.

A Flower message costs a second or two, so the stages of the protocol (cohorts/secure/session.py) take as few as they
can. A client's channel key is asked for once. The secrets of a round are shared in the message that unmasks the round
before, where all clients take part; else in a message before the order. So a round is two exchanges in place of one:
the order, which brings masked vectors, and the unmasking. No stage is left out, and none happens before what it needs.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, Message
from torch import Tensor

from fedveca.algorithms.contract import Order, Report
from fedveca.cohorts.aggregate import LOSS_NUMBERS
from fedveca.cohorts.flower.answers import AnswerForm, PendingOrder
from fedveca.cohorts.flower.cohort import FlowerCohort
from fedveca.cohorts.flower.messages import (
    InvalidAnswer,
    Value,
    bound_text,
    check_number,
    check_settings,
    make_question,
    quote_names,
    read_answer,
)
from fedveca.cohorts.flower.times import AnswerTimes, measure_answer, report_times
from fedveca.cohorts.secure.fixed_point import LARGEST_NORM, choose_fraction, decode
from fedveca.cohorts.secure.identity import ProtocolError
from fedveca.cohorts.secure.lengths import SESSION_BYTES, WORD_BYTES, count_text
from fedveca.cohorts.secure.masks import Words, split_vector
from fedveca.cohorts.secure.secure_settings import find_threshold
from fedveca.cohorts.secure.server import ServerSession
from fedveca.cohorts.secure.session import Session, SignedKey, read_revealed, read_signed

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 15.0  # for the others, once enough clients have answered a stage
ADVERTISE, SHARE, UNMASK = "advertise", "share", "unmask"  # stages that are messages of their own
NEXT = "next"  # the request for the next session's secrets, and the answer to it, next to an unmasking


class SecureFlowerCohort(FlowerCohort):
    """A `FlowerCohort` whose server sees vectors as sums only; a round below the threshold is void and repeated."""

    def __init__(self, *args: object, secure_threshold: int = 0, **options: object) -> None:
        """Waits until all clients are connected; the arguments are those of `FlowerCohort`.

        Args:
            *args: Those of `FlowerCohort`.
            secure_threshold: Answers without which a round is void; 0 is two thirds of the clients that are asked.
            **options: Those of `FlowerCohort`.
        """
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.secure_threshold = secure_threshold
        self.fraction = choose_fraction(int(self.weights.sum()))
        self._channels: dict[int, SignedKey] = {}  # by client
        self._questions: dict[int, PendingOrder] = {}  # for channel keys, not answered yet
        self._silent: set[int] = set()  # clients that did not answer the last time: nobody waits for their keys
        self._next: ServerSession | None = None  # prepared while the last round was unmasked
        self._down = self._up = 0  # bytes of the protocol since the last round that counted
        self._times: dict[int, AnswerTimes] = {}  # of the round's clients

    def _round(self, k: int, order: Order, ids: list[int], tau: dict[int, int]) -> tuple[Tensor, Report]:
        if max(tau.values()) == 0:
            return super()._round(k, order, ids, tau)  # losses only
        form, self._diverged, self._times = self._find_form(order), set(), {}
        none = torch.empty(0, dtype=torch.int64), Report({}, {}, 0.0)
        threshold = find_threshold(len(ids), self.secure_threshold)
        session = self._open_session(ids, threshold)
        if session is None:
            return none
        lengths = form.vectors
        total = np.zeros(sum(lengths.values()), "<u8")
        numbers = self._collect_masked(k, order, session, tau, total)
        arrived = sorted(numbers)
        if len(arrived) < threshold:
            self.say(f"round {k + 1}: {len(arrived)} masked vectors arrived; the threshold is {threshold}")
            return none
        try:
            self._unmask(session, arrived, total, everyone=len(ids) == len(self.sizes))
        except ProtocolError as error:
            self._fault(-1, f"the sum cannot be unmasked: {error}")
            return none
        who = torch.tensor([i for i in arrived if i not in self._diverged], dtype=torch.int64)
        mass = float(self.weights[who].double().sum())
        sums = {name: torch.from_numpy(v.view("<i8").copy()) for name, v in split_vector(total, lengths).items()}
        mean = {name: decode(v, self.fraction, mass) for name, v in sums.items()} if mass else {}
        if any(bool((v.abs() > LARGEST_NORM).any()) for v in mean.values()):
            self._fault(-1, "the sum is beyond what clients may send: one of them did not keep to the protocol")
            return none
        each = {name: [numbers[i][name] for i in who.tolist()] for name in (*form.numbers, "tau")}
        return who, Report(
            {name: v.to(order.w) for name, v in mean.items()},
            {name: torch.tensor(v, dtype=torch.float64) for name, v in each.items()} if len(who) else {},
            mass / float(self.weights.double().sum()),
            timing=report_times(0.0, [self._times[i] for i in who.tolist()]),
            overhead=self._take_overhead(len(total), len(arrived), len(who)),
        )

    def _take_overhead(self, numbers: int, arrived: int, counted: int) -> tuple[int, int]:
        """Bytes of the protocol since the last round, with what masked numbers are longer than float32."""
        down, up, self._down, self._up = self._down, self._up, 0, 0
        return down, up + numbers * (WORD_BYTES * arrived - self.transfer.width * counted)

    def _open_session(self, ids: list[int], threshold: int) -> ServerSession | None:
        """A session of the clients that are there, with their secrets shared; None where they are too few."""
        here = self.roster.list_connected(ids)
        self._learn_channels(here, threshold)
        members = tuple(i for i in here if i in self._channels)
        for i in set(ids) - set(members):
            self._fault(i, "has no key for this round" if i in here else "is not connected")
        prepared, self._next = self._next, None
        if prepared is not None and tuple(prepared.active) == members and prepared.session.threshold == threshold:
            session = prepared
        elif len(members) < threshold:
            self.say(f"{len(members)} of {len(ids)} clients can share secrets; the threshold is {threshold}")
            return None
        else:
            session = self._make_session(members, threshold)
            request = _to_text(session.request)
            answers = self._exchange({key: {"stage": SHARE, "secure": request} for key in members}, threshold)
            for i, settings in answers.items():
                self._add_shares(session, i, settings.get("secure"))
        for i in set(members) - set(session.active):
            self._lose(i, "shared no secrets")
        return session if len(session.active) >= threshold else None

    def _make_session(self, members: tuple[int, ...], threshold: int) -> ServerSession:
        session = Session(secrets.token_bytes(SESSION_BYTES), threshold, members)
        return ServerSession(session, {i: self._channels[i] for i in members})

    def _add_shares(self, session: ServerSession, i: int, text: object) -> None:
        """A client's shares; where its process is a new one it sends its new channel key alone, for the next time."""
        try:
            data = _read_text(text)
            self._up += count_text(len(data))
            if len(data) == len(self._channels[i].pack()):
                self._channels[i] = read_signed(data)
            else:
                session.add_shares(i, data)
        except ProtocolError as error:
            self._fault(i, f"sent garbage: {error}")

    def _learn_channels(self, here: list[int], threshold: int) -> None:
        """Asks clients for the channel keys that are not known; waits for those that answered the last time."""
        now = time.monotonic()
        self._questions = {i: sent for i, sent in self._questions.items() if sent.until > now}
        new = [i for i in here if i not in self._channels and i not in self._questions]
        self._questions |= self._push({key: {"stage": ADVERTISE} for key in new})
        awaited = {i for i in here if i in self._questions and i not in self._silent}
        self._silent |= self._poll_channels(awaited, max(0, threshold - len(self._channels.keys() & set(here))))

    def _poll_channels(self, awaited: set[int], enough: int) -> set[int]:
        """The clients among those awaited that did not answer; others are not waited for."""
        until = time.monotonic() + (self.timeout if enough else min(self.timeout, _PATIENCE_SECONDS))
        while True:
            for i, sent in list(self._questions.items()):
                for reply in self.grid.pull_messages([sent.message]):
                    del self._questions[i]
                    try:
                        data = _read_text(read_answer(reply)[0].get("secure"))
                        self._channels[i] = read_signed(data)
                    except (InvalidAnswer, ProtocolError) as error:
                        self._fault(i, str(error))
                        continue
                    self._up += count_text(len(data))
                    self._silent.discard(i)
                    enough -= 1
                    if enough <= 0:
                        until = min(until, time.monotonic() + _PATIENCE_SECONDS)
            left = awaited & self._questions.keys()
            if not left or time.monotonic() > until:
                return left
            time.sleep(_POLL_SECONDS)

    def _collect_masked(
        self, k: int, order: Order, session: ServerSession, tau: dict[int, int], total: Words
    ) -> dict[int, dict[str, float]]:
        """Sends the orders and adds masked vectors to `total` as they come; returns the numbers of their clients."""
        active, form = session.active, self._find_form(order)
        asked: dict[int, Mapping[str, Value]] = {}
        for i in active:
            text = _to_text(session.make_mask_request(i))
            asked[i] = {"tau": tau[i], "secure": text, "fraction": self.fraction}
            self._down += len(text) + 8
        sent, deadline = self._send(k, order, active, asked), time.monotonic() + self.timeout
        found: dict[int, dict[str, float]] = {}
        for i in (i for i in active if i in sent):
            try:
                reply = self._wait_for_reply(i, sent[i], deadline)
                numbers, vectors = self._read_masked(i, reply, k, tau[i], form)
                up = WORD_BYTES * sum(form.vectors.values()) + 8 * (len(numbers) + 1)  # with tau
                arrived = self.inbox.arrived[sent[i].message]
                self._times[i] = measure_answer(reply, arrived, self.inbox.wall, self.inbox.down, up)
            except InvalidAnswer as error:
                self._lose(i, str(error))
                continue
            found[i] = numbers | {"tau": float(tau[i])}
            start = 0
            for name in sorted(vectors):
                total[start : start + len(vectors[name])] += vectors[name]
                start += len(vectors[name])
        return found

    def _read_masked(
        self, i: int, reply: Message, k: int, tau: int, form: AnswerForm
    ) -> tuple[dict[str, float], dict[str, Words]]:
        """Numbers and masked vectors of one client, checked; one that diverged sends masked zeros and no number."""
        settings, numbers, arrays = read_answer(reply)
        diverged = check_settings(settings, {"client": i, "round": k, "tau": tau})
        wanted = set() if diverged else form.numbers
        if set(numbers) != wanted or set(arrays) != set(form.vectors):
            raise InvalidAnswer(f"sent {quote_names([*numbers, *arrays])}, not {quote_names([*wanted, *form.vectors])}")
        positive = {*self.algorithm.nonnegative, *LOSS_NUMBERS}
        checked = {name: check_number(value, name, name not in positive) for name, value in numbers.items()}
        vectors = {name: _check_words(array, form.vectors[name], name) for name, array in arrays.items()}
        if diverged:
            self._diverged.add(i)
            self._fault(i, "has numbers that are not finite")
        return checked, vectors

    def _unmask(self, session: ServerSession, arrived: list[int], total: Words, everyone: bool) -> None:
        """Takes the masks off the sum, with shares of those whose vectors arrived; prepares the next session."""
        threshold = session.session.threshold
        asked: dict[str, Value] = {"stage": UNMASK, "secure": _to_text(session.make_unmask_request(arrived))}
        upcoming = self._make_session(tuple(arrived), threshold) if everyone else None
        if upcoming:
            asked[NEXT] = _to_text(upcoming.request)
        revealed = dict[int, dict[int, bytes]]()
        answers = self._exchange(dict.fromkeys(arrived, asked), threshold)
        for i, settings in answers.items():
            try:
                data = _read_text(settings.get("secure"))
                self._up += count_text(len(data))
                revealed[i] = read_revealed(data, session.active)
            except ProtocolError as error:
                self._lose(i, f"sent garbage: {error}")
                continue
            if upcoming:
                self._add_shares(upcoming, i, settings.get(NEXT))
        for i in set(arrived) - set(answers):
            self._lose(i, "did not help to unmask")
        self._next = upcoming
        session.unmask(total, arrived, revealed)

    def _exchange(self, asked: Mapping[int, Mapping[str, Value]], enough: int) -> dict[int, dict[str, object]]:
        """Asks each client and collects the answers; once enough are there, the others have a few seconds more."""
        pending, until = self._push(asked), time.monotonic() + self.timeout
        found: dict[int, dict[str, object]] = {}
        while pending and time.monotonic() < until:
            for i, sent in list(pending.items()):
                for reply in self.grid.pull_messages([sent.message]):
                    del pending[i]
                    try:
                        found[i] = read_answer(reply)[0]
                    except InvalidAnswer as error:
                        self._fault(i, str(error))
            if len(found) >= enough:
                until = min(until, time.monotonic() + _PATIENCE_SECONDS)
                enough = len(asked) + 1
            if pending:
                time.sleep(_POLL_SECONDS)
        return found

    def _push(self, asked: Mapping[int, Mapping[str, Value]]) -> dict[int, PendingOrder]:
        """Sends a stage's messages."""
        ttl = 2 * self.timeout + 60
        for settings in asked.values():
            self._down += sum(len(str(settings[name])) for name in ("secure", NEXT) if name in settings)
        messages = [make_question(self.roster.nodes[i], settings, ttl) for i, settings in asked.items()]
        drop = time.monotonic() + ttl - 10
        sent = zip(asked, self.grid.push_messages(messages), strict=True)
        return {i: PendingOrder(str(message), -1, drop) for i, message in sent if message}

    def _lose(self, i: int, why: str) -> None:
        """Records a client that fails in a stage; its channel key is asked for again, without waiting for it."""
        self._fault(i, why)
        self._channels.pop(i, None)
        self._silent.add(i)


def _check_words(array: Array, size: int, name: str) -> Words:
    """One masked vector, checked: whole numbers of 64 bits, [size]."""
    name = bound_text(name, bare=True)
    try:
        v = array.numpy()
    except Exception as error:
        raise InvalidAnswer(f"sent garbage for {name}") from error
    if v.shape != (size,) or v.dtype != np.dtype("<u8"):
        raise InvalidAnswer(
            f"sent {name} as {bound_text(str(v.dtype), bare=True)} of shape {bound_text(list(v.shape))}"
        )
    return v


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _read_text(text: object) -> bytes:
    """The bytes of a text that a node sent."""
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise ProtocolError("a message of secure aggregation is not base64 text")
