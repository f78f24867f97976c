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
from fedveca.cohorts.flower.answers import AnswerForm, NodeRows, NodeTask, PendingOrder
from fedveca.cohorts.flower.forms import NodeForm, agree_on_form, read_form
from fedveca.cohorts.flower.messages import (
    MOST_ROWS,
    InvalidAnswer,
    Value,
    bound_text,
    check_number,
    check_range,
    check_settings,
    make_order,
    make_question,
    pack_vectors,
    quote_names,
    read_answer,
)
from fedveca.cohorts.flower.payload import read_vectors
from fedveca.cohorts.flower.tally import AnswerTally
from fedveca.cohorts.flower.times import AnswerTimes, Inbox, measure_answer, report_times
from fedveca.cohorts.flower.versions import compare_version
from fedveca.cohorts.flower.wire import ROUNDING, narrow
from fedveca.cohorts.scores import LOSS
from fedveca.cohorts.transfer import PLAIN, VectorTransfer

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

_POLL_SECONDS = 0.25  # between looks for something new
_SHORT_POLL = 0.05  # for an answer, while little time has passed
_JOIN_SECONDS = 600.0  # for all clients to connect at the start
_REJOIN_SECONDS = 60.0  # for those that were there before, after the server was killed
_RETRY_SECONDS = 10.0  # until a node that was rejected is asked again who it is
_ATTEMPTS = 10  # void rounds in a row before the server gives up
_EARLY_FAULTS = 100  # before the first round that its line records
_NOT_FINITE = "has numbers that are not finite"


class TooFewClients(RuntimeError):
    """Too few clients answered, again and again; the run can be resumed later."""


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
        self.nodes = nodes
        self.grid, self.transfer, self.timeout, self.deadline = grid, transfer, timeout, deadline
        self.inbox = Inbox(grid)
        self.min_clients, self.aggregate, self.say = min(min_clients, clients), aggregate, say
        self.memory = NodeLedger(clients)
        self.faults: list[Fault] = []  # of the last round
        self._diverged: set[int] = set()  # clients that say so in this attempt
        self._want_loss, self._want_loss_after = want_loss, want_loss_after
        self._form: AnswerForm | None = None  # of a full answer, known with the first order
        self._node: dict[int, int] = {}  # client -> Flower's node
        self._seen: dict[int, float] = {}  # Flower's nodes that were asked who they are, and when to ask again
        self._known: dict[int, NodeRows] = dict(known or {})  # by client
        self._forms: dict[int, NodeForm] | None = None  # by client, while the form of their rows is learned
        self._joined = bool(known)  # whether all clients were there once, so that their rows are fixed
        self._versions: dict[int, str] = {}  # what was said of a node's version
        self._sure: set[int] = set()  # nodes that have identified themselves since they came online
        self._rejected: dict[int, str] = {}  # nodes that do not take part, and why
        self._asked: dict[str, int] = {}  # question that is not answered yet -> Flower's node
        self._late: dict[int, list[PendingOrder]] = {}  # orders that nobody waits for any more
        if isinstance(task, NodeTask):
            self.task = task
        else:
            self.task, self._forms = NodeTask({}), {}
            self._wait_for_clients(clients)
            self.task = task(agree_on_form(self._forms)[0])
            self._node, self._seen, self._known, self._forms = {}, {}, {}, None  # asked again, with the task
        self.algorithm = algorithm.with_layout(self.task.layout)
        self._wait_for_clients(clients)
        self._joined = True
        each = [self._known[i] for i in range(clients)]
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
            online = set(self.grid.get_node_ids())
            busy = {i for i, orders in self._late.items() if orders and self._node.get(i) in online}
            idle = [i for i in ids if i not in busy]
            if len(idle) >= min(self.min_clients, len(ids)):
                break
            if time.monotonic() > until:
                return ids
            time.sleep(_POLL_SECONDS)
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
            online = set(self.grid.get_node_ids())
            here = [i for i in ids if self._node.get(i) in online]
            if len(here) >= min(self.min_clients, len(ids)) or time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS)
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
            messages.append(make_order(self._node[i], settings, vectors, ttl, str(k + 1)))
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
            time.sleep(min(max(waited / 10, _SHORT_POLL), _POLL_SECONDS))
        return reply

    def _find_reply(self, sent: PendingOrder) -> Message | None:
        return next(iter(self.grid.pull_messages([sent.message])), None)

    def _wait_for_clients(self, clients: int) -> None:
        """Waits until every client is there; each is waited for once, at the start."""
        until, connected = time.monotonic() + max(self.timeout, _JOIN_SECONDS), -1
        soon = time.monotonic() + _REJOIN_SECONDS
        while len(self._node) < clients:
            self._ask_new(clients)
            if self._forms is not None and len(self._node) == clients:
                self._reject_odd(self._forms)
            if len(self._node) != connected:
                connected = len(self._node)
                self.say(f"{connected} of {clients} clients are connected")
            if self._joined and len(self._node) >= self.min_clients and time.monotonic() > soon:
                missing = sorted(set(range(clients)) - set(self._node))
                self.say(f"the run is resumed without clients {', '.join(map(str, missing))}, which may join later")
                return
            if time.monotonic() > until:
                missing = sorted(set(range(clients)) - set(self._node))
                why = "".join(f"; node {node} {reason}" for node, reason in sorted(self._rejected.items())[:3])
                raise TooFewClients(f"clients {', '.join(map(str, missing))} of {clients} did not connect{why}")
            time.sleep(_POLL_SECONDS)

    def _reject_odd(self, forms: Mapping[int, NodeForm]) -> None:
        """Rejects clients whose rows have another form than those of most."""
        for i, why in agree_on_form({i: forms[i] for i in self._node})[1].items():
            self._reject(self._node.pop(i), i, why, len(forms))

    def _check_arrivals(self) -> None:
        """Asks new nodes who they are, and records answers that came too late."""
        for i, node in list(self._node.items()):
            if self.nodes is not None and self.nodes.get(i) != node:
                del self._node[i]
                self._fault(i, "has lost its key, which was revoked")
        self._ask_new(len(self.sizes))
        for i, orders in self._late.items():
            orders[:] = [sent for sent in orders if sent.until > time.monotonic()]  # Flower has dropped the others
            for sent in list(orders):
                if replies := list(self.grid.pull_messages([sent.message])):
                    orders.remove(sent)
                    if not replies[0].has_error():
                        self._fault(i, f"answered round {sent.round + 1} too late")

    def _ask_new(self, clients: int) -> None:
        """Asks who they are: nodes never seen, back from being offline, or rejected a while ago. Does not wait."""
        online, now = set(self.grid.get_node_ids()), time.monotonic()
        self._seen = {node: again for node, again in self._seen.items() if node in online}
        self._sure &= online
        new = [node for node in sorted(online) if self._seen.get(node, 0.0) <= now]
        questions = [make_question(node, self.task.note, 3600) for node in new]
        self._asked |= {str(m): node for m, node in zip(self.grid.push_messages(questions), new, strict=True) if m}
        self._seen |= dict.fromkeys(new, math.inf)
        for message in list(self.grid.pull_messages(list(self._asked))) if self._asked else []:
            self._check_node(message, self._asked.pop(message.metadata.reply_to_message_id), clients)

    def _check_node(self, message: Message, node: int, clients: int) -> None:
        """One node's answer to who it is."""
        try:
            i: object = -1
            settings, _, _ = read_answer(message)
            i, rows = settings.get("client"), settings.get("rows")
            held = [settings.get(name, 0) for name in ("val", "test")]
            if type(i) is not int or not 0 <= i < clients:
                raise InvalidAnswer(f"says it is client {bound_text(i)}; there are clients 0 to {clients - 1}")
            most = min(MOST_ROWS, 2**62 // clients)  # so that the rows of all can be added
            if type(rows) is not int or not 1 <= rows <= most:
                raise InvalidAnswer(f"says it has {bound_text(rows)} rows; allowed: 1 to {most}")
            for count in held:
                if type(count) is not int or not 0 <= count <= most:
                    raise InvalidAnswer(f"says it holds back {bound_text(count)} rows; allowed: 0 to {most}")
            has = NodeRows(rows, *held)  # type: ignore[arg-type]
            if self._joined and self._known[i].train != rows:
                raise InvalidAnswer(f"says client {i} has {rows} rows; it had {self._known[i].train}")
            if self._joined and self._known[i] != has:
                raise InvalidAnswer(f"says client {i} holds back {held} rows; it had {list(self._known[i][1:])}")
            form = None if self._forms is None else read_form(settings)
            if self.nodes is not None and self.nodes.get(i) != node:
                raise InvalidAnswer(f"says it is client {i}, but its key is not client {i}'s")
            if self._node.get(i, node) != node and self._node[i] in self._sure:
                raise InvalidAnswer(f"says it is client {i}, which another node is")
        except InvalidAnswer as error:
            self._reject(node, i, str(error), clients)
            return
        if self._forms is None:  # else it may still be rejected, for the form of its rows
            self._rejected.pop(node, None)
        self._sure.add(node)
        self._known[i] = has
        said = compare_version(settings.get("version"))
        if said and self._versions.get(node) != said:
            self.say(f"client {i} {said}")
            self._fault(i, said)
        self._versions[node] = said
        if self._forms is not None and form is not None:
            self._forms[i] = form
        self._node = {client: known for client, known in self._node.items() if known != node} | {i: node}

    def _reject(self, node: int, i: object, why: str, clients: int) -> None:
        """Does not ask a node; who it is is asked again later: it may have been restarted then, with what it lacked."""
        self._seen[node] = time.monotonic() + _RETRY_SECONDS
        if self._rejected.get(node) != why:  # the same reason only once
            self._rejected[node] = why
            self.say(f"node {node} {why}")
            self._fault(i if type(i) is int and 0 <= i < clients else -1, f"node {node} {why}; it is not asked")

    def _fault(self, client: int, what: str) -> None:
        self.faults.append(Fault(client=client, what=what))
