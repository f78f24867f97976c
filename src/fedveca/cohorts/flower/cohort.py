"""The clients of a Flower federation as a cohort: orders go out, answers are checked and aggregated as they come."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedveca.algorithms.contract import STATISTICS, Algorithm, Fault, Named, Order, Report
from fedveca.cohorts.aggregate import LOSS_NUMBERS, AggregationRule, Mean
from fedveca.cohorts.client_memory import NodeLedger
from fedveca.cohorts.clock.profiles import LATE_ANSWER
from fedveca.cohorts.contract import ClientScores, HeldPart
from fedveca.cohorts.flower import roster
from fedveca.cohorts.flower.answers import AnswerForm, NodeRows, NodeTask, PendingOrder
from fedveca.cohorts.flower.forms import NodeForm
from fedveca.cohorts.flower.messages import (
    InvalidAnswer,
    Value,
    check_number,
    check_range,
    check_settings,
    make_order,
    pack_vectors,
    quote_names,
    read_answer,
)
from fedveca.cohorts.flower.payload import read_vectors
from fedveca.cohorts.flower.roster import Roster, TooFewClients
from fedveca.cohorts.flower.tally import AnswerTally
from fedveca.cohorts.flower.times import AnswerTimes, Inbox, measure_answer, report_times
from fedveca.cohorts.flower.wire import ROUNDING, narrow
from fedveca.cohorts.scores import LOSS
from fedveca.cohorts.transfer import PLAIN, VectorTransfer

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

_SHORT_POLL = 0.05  # for an answer, while little time has passed
_ATTEMPTS = 10  # void rounds in a row before the server gives up
_EARLY_FAULTS = 100  # before the first round that its line records
_NOT_FINITE = "has numbers that are not finite"


class ClientDiverged(InvalidAnswer):
    """A client reports that its numbers are not finite."""


class FlowerCohort:
    """Clients known by their partition id; their memory stays with them, and only its round is known here."""

    def __init__(
        self,
        grid: Grid,
        algorithm: Algorithm,
        clients: int,
        task: NodeTask | Callable[[NodeForm], NodeTask],
        *,
        want_loss: bool = True,
        want_loss_after: bool = False,
        transfer: VectorTransfer = PLAIN,
        timeout: float = 300.0,
        deadline: float = math.inf,
        min_clients: int = 1,
        aggregate: AggregationRule = Mean,
        equal_weights: bool = False,
        say: Callable[[str], None] = print,
        nodes: Mapping[int, int] | None = None,
        known: Mapping[int, NodeRows] | None = None,
    ) -> None:
        """Waits until all clients are connected.

        Args:
            grid: Flower's connection to the nodes.
            algorithm: The method, of which the clients' half runs on the nodes.
            clients: Number of clients N.
            task: The clients' task; or what makes it of the form of their rows, where only they have data: the nodes
                are asked for it first, and one whose rows have another form than most is rejected.
            want_loss: Whether F_i(w_k) is reported by a method that does not need its gradient.
            want_loss_after: Whether F_i after the client's steps is reported as well (A2.9).
            transfer: The form in which vectors travel.
            timeout: Seconds until a client that has not answered is left out of a round.
            deadline: Seconds after which a round with local steps ends, where that is earlier; who has not answered
                then is late, and is not asked again before it has answered.
            min_clients: A round with fewer answers is void and repeated.
            aggregate: Makes each round's aggregator of the clients' vectors.
            equal_weights: Whether every client counts the same, instead of by its number of rows.
            say: Reports who connects and which rounds are void.
            nodes: Client -> the node with that client's key, if keys are bound; it may change meanwhile.
            known: How many rows each client has, where that was known before: then those that are away are not waited
                for longer than a minute.

        Raises:
            TooFewClients: If clients do not connect in time.
        """
        self.grid, self.transfer, self.timeout, self.deadline = grid, transfer, timeout, deadline
        self.inbox = Inbox(grid)
        self.min_clients, self.aggregate, self.say = min(min_clients, clients), aggregate, say
        self.memory = NodeLedger(clients)
        self.faults: list[Fault] = []  # of the last round
        self._diverged: set[int] = set()  # clients that say so in this attempt
        self._want_loss, self._want_loss_after = want_loss, want_loss_after
        self._form: AnswerForm | None = None  # of a full answer, known with the first order
        self._late: dict[int, list[PendingOrder]] = {}  # orders that nobody waits for any more
        self.roster = Roster(
            grid,
            clients,
            timeout=timeout,
            min_clients=self.min_clients,
            say=say,
            record_fault=self._fault,
            keys=nodes,
            known=known,
        )
        self.task = task if isinstance(task, NodeTask) else task(self.roster.learn_form())
        self.algorithm = algorithm.with_layout(self.task.layout)
        self.roster.join(self.task.note)
        each = [self.roster.rows[i] for i in range(clients)]
        self.sizes = torch.tensor([rows.train for rows in each])  # [N] D_i
        self.weights = torch.ones_like(self.sizes) if equal_weights else self.sizes  # [N]
        self.held = {part: torch.tensor([rows[at] for rows in each]) for at, part in enumerate(NodeRows._fields)}
        self._early = self.faults[:_EARLY_FAULTS]  # before the first round

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """Who sent a valid answer in time, and the report; a round of fewer than `min_clients` is void and repeated."""
        self.faults, self._early = self._early, []
        need, marked, start = min(self.min_clients, len(ids)), 0, time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            self._check_arrivals()
            who, report = self._round(k, order, ids.tolist(), dict(zip(ids.tolist(), tau.tolist(), strict=True)))
            if len(who) >= need or self._diverged == set(ids.tolist()):  # asking all again would not help
                if int(tau.max()) > 0:
                    self.memory.rounds[who] = k
                faults = tuple(self.faults) if len(who) else ()  # where all diverged, so did the run
                lasted = round(time.monotonic() - start, 6)
                timing = report.timing and report.timing._replace(seconds=lasted)  # void attempts took their time too
                return who, self.transfer.label(report._replace(faults=faults, timing=timing))
            for fault in self.faults[marked:]:
                fault["what"] += f" (attempt {attempt}, void)"
            marked = len(self.faults)
            self.say(f"round {k + 1} is void: {len(who)} of {len(ids)} clients answered; it is repeated")
        raise TooFewClients(
            f"round {k + 1}: fewer than {need} of {len(ids)} clients answered, {_ATTEMPTS} times in a row"
        )

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        """What each client finds on the rows that it holds back; one without a valid answer in time is left out."""
        rows, before = self.held[part], self.faults
        self.faults = []
        self._check_arrivals()
        ids = torch.nonzero(rows).flatten().tolist()
        asked: Mapping[str, Value] = {"part": part, "finetune": finetune}
        sent, deadline = self._send(k, order, ids, dict.fromkeys(ids, asked)), time.monotonic() + self.timeout
        found: dict[int, list[float]] = {}
        seconds: dict[int, float] = {}
        for i in (i for i in ids if i in sent):
            try:
                found[i] = self._wait_for_scores(i, sent[i], int(rows[i]), deadline)
                seconds[i] = round(self.inbox.arrived[sent[i].message], 6)
            except ClientDiverged:
                found[i] = [math.nan] * len(self.task.scores)
            except InvalidAnswer as error:
                self._fault(i, str(error))
        faults, self.faults = self.faults, before
        who = torch.tensor(list(found), dtype=torch.int64)
        table = torch.tensor(list(found.values()), dtype=torch.float64).view(-1, len(self.task.scores))
        values = dict(zip(self.task.scores, table.unbind(1), strict=True))
        what = "validation" if part == "val" else "test"
        named = (Fault(client=fault["client"], what=f"{what}: {fault['what']}") for fault in faults)
        took = torch.tensor([seconds.get(i, math.nan) for i in found], dtype=torch.float64)
        return ClientScores(who, rows[who], values, tuple(named), took)

    def _wait_for_scores(self, i: int, sent: PendingOrder, rows: int, deadline: float) -> list[float]:
        """The values of one client, checked."""
        settings, numbers, arrays = read_answer(self._wait_for_reply(i, sent, deadline))
        diverged = check_settings(settings, {"client": i, "round": sent.round, "rows": rows})
        need, allowed = (set[str](), set[str]()) if diverged else ({LOSS}, set(self.task.scores))
        if not need <= numbers.keys() <= allowed or arrays:
            raise InvalidAnswer(f"sent {quote_names([*numbers, *arrays])}, not {quote_names(allowed)}")
        if diverged:
            raise ClientDiverged(_NOT_FINITE)
        known = {name: check_range(numbers[name], name, *self.task.scores[name]) for name in numbers}
        return [known.get(name, math.nan) for name in self.task.scores]  # the rows may not define a metric

    def _round(self, k: int, order: Order, ids: list[int], tau: dict[int, int]) -> tuple[Tensor, Report]:
        form, limit, late = self._find_form(order), self.timeout, ""
        if self.deadline < limit and any(tau.values()):
            limit, late, ids = self.deadline, LATE_ANSWER, self._drop_busy(ids)
        asked = {i: {"tau": steps} for i, steps in tau.items()}
        sent, deadline = self._send(k, order, ids, asked), time.monotonic() + limit
        tally, self._diverged = AnswerTally(self.aggregate(), self.weights), set()
        times: list[AnswerTimes] = []
        for i in (i for i in ids if i in sent):  # in a fixed order, so that sums are the same every time
            try:
                message = self._wait_for_reply(i, sent[i], deadline, late)
                numbers, vectors = self._read_reply(i, message, sent[i], tau[i], form)
                took = self._measure_reply(message, sent[i], numbers, vectors)
                self._check_variances(order, vectors)
            except InvalidAnswer as error:
                self._diverged |= {i} if isinstance(error, ClientDiverged) else set()
                self._fault(i, str(error))
                continue
            tally.add(i, tau[i], numbers, vectors)
            times.append(took)
        who, report = tally.close(order.w)
        return who, report._replace(timing=report_times(0.0, times))

    def _measure_reply(
        self, message: Message, sent: PendingOrder, numbers: dict[str, float], vectors: Named
    ) -> AnswerTimes:
        """How long a client took; its answer has its numbers, tau, and its vectors."""
        up = self.transfer.count_bytes({name: v.numel() for name, v in vectors.items()}) + 8 * (len(numbers) + 1)
        return measure_answer(message, self.inbox.arrived[sent.message], self.inbox.wall, self.inbox.down, up)

    def _find_form(self, order: Order) -> AnswerForm:
        """Of a full answer: the same in every round."""
        if self._form is None:
            wanted = self._want_loss, self._want_loss_after, self.task.statistics
            self._form = AnswerForm.find(self.algorithm, order, *wanted)
        return self._form

    def _drop_busy(self, ids: list[int]) -> list[int]:
        """Those of `ids` that are not at work on an order of an earlier round; waits where they are too few."""
        until = time.monotonic() + self.timeout
        while True:
            busy = set(self.roster.list_connected(i for i, orders in self._late.items() if orders))
            idle = [i for i in ids if i not in busy]
            if len(idle) >= min(self.min_clients, len(ids)):
                break
            if time.monotonic() > until:
                return ids
            time.sleep(roster.POLL_SECONDS)
            self._check_arrivals()
        for i in set(ids) & busy:
            self._fault(i, LATE_ANSWER)
        return idle

    def _send(
        self, k: int, order: Order, ids: list[int], asked: Mapping[int, Mapping[str, Value]]
    ) -> dict[int, PendingOrder]:
        """Orders to all of `ids` that are connected; waits a while where those are too few."""
        until = time.monotonic() + self.timeout
        while True:
            here = self.roster.list_connected(ids)
            if len(here) >= min(self.min_clients, len(ids)) or time.monotonic() > until:
                break
            time.sleep(roster.POLL_SECONDS)
        for i in set(ids) - set(here):
            self._fault(i, "is not connected")
        if not here:
            return {}
        named = {"w": order.w} | order.aux
        wire = self.transfer.down
        vectors = pack_vectors({name: narrow(v.detach().cpu().numpy(), wire) for name, v in named.items()})
        ttl = 2 * self.timeout + 60
        messages = []
        for i in here:
            settings = {"round": k, **asked[i], "wire": wire, **self.task.note}
            settings |= {"token": self.memory.token, "known": int(self.memory.rounds[i])}  # whose memory counts
            messages.append(make_order(self.roster.nodes[i], settings, vectors, ttl, str(k + 1)))
        drop = time.monotonic() + ttl - 10
        self.inbox.start_clock()
        ids_sent = zip(here, self.grid.push_messages(messages), strict=True)
        pending = {i: PendingOrder(str(message), k, drop) for i, message in ids_sent if message}
        bytes_down = self.transfer.width * sum(v.numel() for v in named.values()) + 8
        self.inbox.await_answers([sent.message for sent in pending.values()], bytes_down)
        for i in set(here) - set(pending):
            self._fault(i, "could not be asked: the SuperLink does not know its node")
        return pending

    def _read_reply(
        self, i: int, message: Message, sent: PendingOrder, tau: int, form: AnswerForm
    ) -> tuple[dict[str, float], Named]:
        """Numbers and vectors of one client, checked."""
        settings, numbers, arrays = read_answer(message)
        diverged = check_settings(settings, {"client": i, "round": sent.round, "tau": tau})
        wanted, lengths = AnswerForm(set(), {}) if diverged else form if tau else AnswerForm({"loss"}, {})
        forms = self.transfer.find_forms(lengths)
        if set(numbers) != wanted or set(arrays) != set(forms):
            raise InvalidAnswer(f"sent {quote_names([*numbers, *arrays])}, not {quote_names([*wanted, *forms])}")
        if diverged:
            raise ClientDiverged(_NOT_FINITE)
        positive = {*self.algorithm.nonnegative, *LOSS_NUMBERS}  # a node minimises a loss of this package: it is known
        found = {name: check_number(value, name, name not in positive) for name, value in numbers.items()}
        return found, read_vectors(arrays, lengths, self.transfer)

    def _check_variances(self, order: Order, vectors: Named) -> None:
        """InvalidAnswer where a client's running variance is negative by more than the rounding on the wire."""
        which = self.task.variances
        if which is None or STATISTICS not in vectors:
            return
        before = order.aux[STATISTICS].detach().cpu().double()[which]
        after = before + vectors[STATISTICS].double()[which]
        rounding = 4 * ROUNDING[self.transfer.down] * before.abs() + 1e-6
        if bool((after < -rounding).any()):
            raise InvalidAnswer(f"sent statistics with a running variance of {float(after.min()):.3g}; it is 0 or more")

    def _wait_for_reply(self, i: int, sent: PendingOrder, deadline: float, late: str = "") -> Message:
        """A client's answer; InvalidAnswer, with the text `late`, where there is none until the deadline."""
        while (reply := self.inbox.take(sent.message)) is None:
            if time.monotonic() > deadline:
                self._late.setdefault(i, []).append(sent)
                raise InvalidAnswer(late or f"timed out after {self.timeout:g} s")
            waited = time.monotonic() - self.inbox.start
            time.sleep(min(max(waited / 10, _SHORT_POLL), roster.POLL_SECONDS))
        return reply

    def _find_reply(self, sent: PendingOrder) -> Message | None:
        return next(iter(self.grid.pull_messages([sent.message])), None)

    def _check_arrivals(self) -> None:
        """Asks new nodes who they are, and records answers that came too late."""
        self.roster.update()
        for i, orders in self._late.items():
            orders[:] = [sent for sent in orders if sent.until > time.monotonic()]  # Flower has dropped the others
            for sent in list(orders):
                if replies := list(self.grid.pull_messages([sent.message])):
                    orders.remove(sent)
                    if not replies[0].has_error():
                        self._fault(i, f"answered round {sent.round + 1} too late")

    def _fault(self, client: int, what: str) -> None:
        self.faults.append(Fault(client=client, what=what))
