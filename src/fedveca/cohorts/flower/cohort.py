"""The clients of a Flower federation as a cohort: orders out, answers checked and summed as they come."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Norms, Order, Report
from fedveca.cohorts.aggregate import LOSSES, AggregationRule, Mean
from fedveca.cohorts.client_memory import NodeLedger
from fedveca.cohorts.flower.messages import (
    MOST_ROWS,
    Refused,
    answer_of,
    bound_text,
    check_settings,
    list_names,
    number,
    order,
    packed,
    question,
    vector,
)
from fedveca.cohorts.flower.wire import DTYPES, narrow

POLL = 0.25  # seconds between looks for an answer; one that is half uploaded costs a second more
JOIN = 600.0  # seconds for all clients to be there at the start
AGAIN = 10.0  # seconds until a node that was rejected is asked again who it is
REPEATS = 10  # void rounds in a row before the server gives up
EARLY = 100  # faults before the first round that its line records


class TooFew(RuntimeError):
    """Too few clients, again and again; the run can go on later."""


class Sent(NamedTuple):
    """An order on its way."""

    message: str  # its id
    round: int
    until: float  # when Flower drops it


class FlowerCohort:
    """Clients known by their partition id; their memory stays with them, here is only which round's it is."""

    def __init__(
        self,
        grid: Any,  # flwr.serverapp.Grid
        algorithm: Algorithm,
        clients: int,
        note: dict[str, Any],  # what every node must know besides: classes, pixels
        *,
        loss: bool = True,
        after: bool = False,
        wire: str = "float32",
        timeout: float = 300.0,
        least: int = 1,
        aggregate: AggregationRule = Mean,
        say: Callable[[str], None] = print,
        nodes: dict[int, int] | None = None,  # client -> the node with that client's key, if keys are bound
    ) -> None:
        self.nodes = nodes
        self.grid, self.algorithm, self.note, self.wire, self.timeout = grid, algorithm, note, wire, timeout
        self.least, self.aggregate, self.say = min(least, clients), aggregate, say
        self.width = DTYPES[wire].itemsize  # bytes of a number on its way
        self.memory = NodeLedger(clients)
        self.faults: list[dict[str, Any]] = []  # of the last round
        self._names = _names(algorithm, loss, after)
        self._node: dict[int, int] = {}  # client -> Flower's node
        self._seen: dict[int, float] = {}  # Flower's nodes that were asked who they are, and when to ask again
        self._known: dict[int, int] = {}  # client -> its rows
        self._joined = False  # whether all clients were there once, so that their rows are fixed
        self._sure: set[int] = set()  # nodes that have said who they are since they came online
        self._rejected: dict[int, str] = {}  # nodes that do not take part, and why
        self._asked: dict[str, int] = {}  # question that is not answered yet -> Flower's node
        self._late: dict[int, list[Sent]] = {}  # orders that nobody waits for any more
        self.sizes = self._aggregate(clients)  # [N] D_i
        self._early = self.faults[:EARLY]  # before the first round

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """Who answered in time and in order, and what; a round of fewer than `least` is void and asked again."""
        self.faults, self._early = self._early, []
        for attempt in range(1, REPEATS + 1):
            self._welcome()
            who, report = self._round(k, order, ids.tolist(), dict(zip(ids.tolist(), tau.tolist(), strict=True)))
            if len(who) >= min(self.least, len(ids)) or (len(who) == 0 and self._all_wild(ids)):
                if int(tau.max()) > 0:
                    self.memory.rounds[who] = k
                faults = tuple(self.faults) if len(who) else ()  # where all ran away, so did the run
                return who, report._replace(faults=faults, width=self.width)
            for fault in self.faults:
                fault["what"] += "" if "void" in fault["what"] else f" (attempt {attempt}, void)"
            self.say(f"round {k + 1} is void: {len(who)} of {len(ids)} clients answered; asked again")
        need = min(self.least, len(ids))
        raise TooFew(f"round {k + 1}: fewer than {need} of {len(ids)} clients answered, {REPEATS} times in a row")

    def _round(self, k: int, order: Order, ids: list[int], tau: dict[int, int]) -> tuple[Tensor, Report]:
        sent, deadline = self._send(k, order, ids, tau), time.monotonic() + self.timeout
        aggregator = self.aggregate()
        each: dict[str, list[float]] = {}
        norms: list[list[float]] = []
        who: list[int] = []
        for i in ids:  # in a fixed order, so that sums are the same every time; who is not due waits at the SuperLink
            if i not in sent:
                continue
            try:
                numbers, vectors = self._answer(i, sent[i], tau[i], len(order.w), deadline)
            except Refused as error:
                self._fault(i, str(error))
                continue
            who.append(i)
            rows = self.sizes[i : i + 1].double()
            aggregator.add(aggregator.part(rows, {name: v.double()[None] for name, v in vectors.items()}))
            norms.append([float(v.double().norm()) for _, v in sorted(vectors.items())])
            for name, value in (numbers | {"tau": float(tau[i])}).items():
                each.setdefault(name, []).append(value)
        answered = torch.tensor(who, dtype=torch.int64)
        mass = float(self.sizes[answered].double().sum())
        mean = {name: v.to(order.w) for name, v in aggregator.close(mass).items()}
        numbers_of = aggregator.numbers({name: torch.tensor(v, dtype=torch.float64) for name, v in each.items()})
        lengths = Norms(answered, torch.tensor(norms).T) if who else None
        return answered, Report(mean, numbers_of, mass / float(self.sizes.double().sum()), norms=lengths)

    def _send(self, k: int, given: Order, ids: list[int], tau: dict[int, int]) -> dict[int, Sent]:
        """Orders to all of `ids` that are connected; waits a while where those are too few."""
        until = time.monotonic() + self.timeout
        while True:
            online = set(self.grid.get_node_ids())
            here = [i for i in ids if self._node.get(i) in online]
            if len(here) >= min(self.least, len(ids)) or time.monotonic() > until:
                break
            time.sleep(POLL)
        for i in set(ids) - set(here):
            self._fault(i, "is not connected")
        if not here:
            return {}
        named = {"w": given.w} | given.aux
        vectors = packed({name: narrow(v.detach().cpu().numpy(), self.wire) for name, v in named.items()})
        ttl = 2 * self.timeout + 60
        messages = []
        for i in here:
            words: dict[str, Any] = {"round": k, "tau": tau[i], "wire": self.wire} | self.note
            words |= {"token": self.memory.token, "known": int(self.memory.rounds[i])}  # whose memory counts
            messages.append(order(self._node[i], words, vectors, ttl, str(k + 1)))
        drop = time.monotonic() + ttl - 10
        sent = {i: Sent(str(m), k, drop) for i, m in zip(here, self.grid.push_messages(messages), strict=True) if m}
        for i in set(here) - set(sent):
            self._fault(i, "could not be asked: the SuperLink does not know its node")
        return sent

    def _answer(self, i: int, sent: Sent, tau: int, size: int, deadline: float) -> tuple[dict[str, float], Named]:
        """Numbers and vectors of one client, waited for until the deadline and checked."""
        while not (replies := list(self.grid.pull_messages([sent.message]))):
            if time.monotonic() > deadline:
                self._late.setdefault(i, []).append(sent)
                raise Refused(f"timed out after {self.timeout:g} s")
            time.sleep(POLL)
        said, numbers, arrays = answer_of(replies[0])
        wild = check_settings(said, {"client": i, "round": sent.round, "tau": tau})
        wanted, vectors = (set(), set()) if wild else self._names if tau else ({"loss"}, set())
        if set(numbers) != wanted or set(arrays) != vectors:
            raise Refused(f"sent {list_names([*numbers, *arrays])}, not {list_names([*wanted, *vectors])}")
        if wild:
            raise Refused(WILD)
        positive = {*self.algorithm.nonnegative, *LOSSES}  # a node minimises a loss of this package, so it is known
        return {name: number(value, name, name not in positive) for name, value in numbers.items()}, {
            name: torch.from_numpy(vector(array, size, self.wire, name)) for name, array in arrays.items()
        }

    def _aggregate(self, clients: int) -> Tensor:
        """[N] the rows of every client: each is waited for once, at the start."""
        until, told = time.monotonic() + max(self.timeout, JOIN), -1
        while len(self._node) < clients:
            self._ask_new(clients)
            if len(self._node) != told:
                told = len(self._node)
                self.say(f"{told} of {clients} clients are there")
            if time.monotonic() > until:
                missing = sorted(set(range(clients)) - set(self._node))
                why = "".join(f"; node {node} {reason}" for node, reason in sorted(self._rejected.items())[:3])
                raise TooFew(f"clients {', '.join(map(str, missing))} of {clients} did not connect{why}")
            time.sleep(POLL)
        self._joined = True
        return torch.tensor([self._known[i] for i in range(clients)])

    def _welcome(self) -> None:
        """Nodes that came since, and answers that came too late."""
        self._ask_new(len(self.sizes))
        for i, orders in self._late.items():
            orders[:] = [sent for sent in orders if sent.until > time.monotonic()]  # Flower may know no others
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
        questions = [question(node, self.note, 3600) for node in new]
        self._asked |= {str(m): node for m, node in zip(self.grid.push_messages(questions), new, strict=True) if m}
        self._seen |= dict.fromkeys(new, math.inf)
        for message in list(self.grid.pull_messages(list(self._asked))) if self._asked else []:
            self._meet(message, self._asked.pop(message.metadata.reply_to_message_id), clients)

    def _meet(self, message: Any, node: int, clients: int) -> None:
        """One node's answer to who it is."""
        try:
            i: Any = -1
            said, _, _ = answer_of(message)
            i, rows = said.get("client"), said.get("rows")
            if type(i) is not int or not 0 <= i < clients:
                raise Refused(f"says it is client {bound_text(i)}; there are clients 0 to {clients - 1}")
            most = min(MOST_ROWS, 2**62 // clients)  # the rows of all can be added
            if type(rows) is not int or not 1 <= rows <= most:
                raise Refused(f"says it has {bound_text(rows)} rows; allowed: 1 to {most}")
            if self._joined and self._known[i] != rows:
                raise Refused(f"says client {i} has {rows} rows; it had {self._known[i]}")
            if self.nodes is not None and self.nodes.get(i) != node:
                raise Refused(f"says it is client {i}, but its key is not client {i}'s")
            if self._node.get(i, node) != node and self._node[i] in self._sure:
                raise Refused(f"says it is client {i}, which another node is")
        except Refused as error:
            self._seen[node] = time.monotonic() + AGAIN  # it may have been started anew by then, with what it lacked
            if self._rejected.get(node) != str(error):  # the same once only
                self._rejected[node] = str(error)
                self.say(f"node {node} {error}")
                self._fault(i if type(i) is int and 0 <= i < clients else -1, f"node {node} {error}; it is not asked")
            return
        self._rejected.pop(node, None)
        self._sure.add(node)
        self._known[i] = rows
        self._node = {client: known for client, known in self._node.items() if known != node} | {i: node}

    def _fault(self, client: int, what: str) -> None:
        self.faults.append({"client": client, "what": what})

    def _all_wild(self, ids: Tensor) -> bool:
        """Whether every client said that its numbers ran away: asking again would not help."""
        return {f["client"] for f in self.faults if f["what"] == WILD} == set(ids.tolist())


WILD = "has numbers that are not finite"


def _names(algorithm: Algorithm, loss: bool, after: bool) -> tuple[set[str], set[str]]:
    """The numbers and vectors of a full answer, found by walking one step with one number."""
    w = torch.zeros(1, 1)
    given = algorithm.order(algorithm.init(w[0], torch.ones(1, dtype=torch.int64)))
    s = algorithm.start(given, {name: v[None] for name, v in algorithm.memory(w[0]).items()}, w)
    vectors, numbers, _ = algorithm.finish(given, s, w, torch.ones(1, 1))
    more = {"loss"} if loss or algorithm.needs_gradient else set()
    return {*numbers} | more | ({"after"} if after else set()), {*vectors}
