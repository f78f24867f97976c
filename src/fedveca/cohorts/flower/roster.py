"""Which of Flower's nodes is which client: nodes are asked who they are, and those that cannot be it are rejected."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from fedveca.cohorts.flower.answers import NodeRows
from fedveca.cohorts.flower.forms import NodeForm, agree_on_form, read_form
from fedveca.cohorts.flower.messages import MOST_ROWS, InvalidAnswer, Value, bound_text, make_question, read_answer
from fedveca.cohorts.flower.versions import compare_version

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

POLL_SECONDS = 0.25  # between looks for something new
_JOIN_SECONDS = 600.0  # for all clients to connect at the start
_REJOIN_SECONDS = 60.0  # for those that were there before, after the server was killed
_RETRY_SECONDS = 10.0  # until a node that was rejected is asked again who it is


class TooFewClients(RuntimeError):
    """Too few clients answered, again and again; the run can be resumed later."""


class Roster:
    """The clients that are there, by their partition ids, and how many rows each has."""

    def __init__(
        self,
        grid: Grid,
        clients: int,
        *,
        timeout: float,
        min_clients: int,
        say: Callable[[str], None],
        record_fault: Callable[[int, str], None],
        keys: Mapping[int, int] | None,
        known: Mapping[int, NodeRows] | None,
    ) -> None:
        """Knows no client yet.

        Args:
            grid: Flower's connection to the nodes.
            clients: Number of clients N.
            timeout: Seconds for which clients are waited for at least.
            min_clients: How many are enough, where all were there before.
            say: Reports who connects and who is rejected.
            record_fault: Takes a client, -1 where nobody knows which, and what is wrong with it.
            keys: Client -> the node with that client's key, if keys are bound; it may change meanwhile.
            known: How many rows each client has, where that was known before.
        """
        self.grid, self.clients, self.timeout, self.min_clients = grid, clients, timeout, min_clients
        self.say, self.record_fault, self.keys = say, record_fault, keys
        self.nodes: dict[int, int] = {}  # client -> Flower's node
        self.rows: dict[int, NodeRows] = dict(known or {})  # by client
        self._note: Mapping[str, Value] = {}  # what every node must know
        self._joined = bool(known)  # whether all clients were there once, so that their rows are fixed
        self._forms: dict[int, NodeForm] | None = None  # by client, while the form of their rows is learned
        self._seen: dict[int, float] = {}  # Flower's nodes that were asked who they are, and when to ask again
        self._sure: set[int] = set()  # nodes that have identified themselves since they came online
        self._asked: dict[str, int] = {}  # question that is not answered yet -> Flower's node
        self._rejected: dict[int, str] = {}  # nodes that do not take part, and why
        self._versions: dict[int, str] = {}  # what was said of a node's version

    def learn_form(self) -> NodeForm:
        """Waits for all clients; the form of most clients' rows. Afterwards they are asked again, with the task.

        Raises:
            TooFewClients: If clients do not connect in time, or their rows have another form than those of most.
        """
        self._forms = {}
        self._wait()
        form = agree_on_form(self._forms)[0]
        self.nodes, self._seen, self.rows, self._forms = {}, {}, {}, None
        return form

    def join(self, note: Mapping[str, Value]) -> None:
        """Waits until every client is there, and knows what every node must know; then their rows are fixed.

        Raises:
            TooFewClients: If clients do not connect in time.
        """
        self._note = note
        self._wait()
        self._joined = True

    def list_connected(self, ids: Iterable[int]) -> list[int]:
        """Those of `ids` that are connected now."""
        online = set(self.grid.get_node_ids())
        return [i for i in ids if self.nodes.get(i) in online]

    def update(self) -> None:
        """Drops clients whose keys were revoked, and asks new nodes who they are. Does not wait."""
        for i, node in list(self.nodes.items()):
            if self.keys is not None and self.keys.get(i) != node:
                del self.nodes[i]
                self.record_fault(i, "has lost its key, which was revoked")
        self._ask_new()

    def _wait(self) -> None:
        """Each client is waited for once, at the start."""
        clients = self.clients
        until, connected = time.monotonic() + max(self.timeout, _JOIN_SECONDS), -1
        soon = time.monotonic() + _REJOIN_SECONDS
        while len(self.nodes) < clients:
            self._ask_new()
            if self._forms is not None and len(self.nodes) == clients:
                self._reject_odd(self._forms)
            if len(self.nodes) != connected:
                connected = len(self.nodes)
                self.say(f"{connected} of {clients} clients are connected")
            if self._joined and len(self.nodes) >= self.min_clients and time.monotonic() > soon:
                missing = sorted(set(range(clients)) - set(self.nodes))
                self.say(f"the run is resumed without clients {', '.join(map(str, missing))}, which may join later")
                return
            if time.monotonic() > until:
                missing = sorted(set(range(clients)) - set(self.nodes))
                why = "".join(f"; node {node} {reason}" for node, reason in sorted(self._rejected.items())[:3])
                raise TooFewClients(f"clients {', '.join(map(str, missing))} of {clients} did not connect{why}")
            time.sleep(POLL_SECONDS)

    def _reject_odd(self, forms: Mapping[int, NodeForm]) -> None:
        """Rejects clients whose rows have another form than those of most."""
        for i, why in agree_on_form({i: forms[i] for i in self.nodes})[1].items():
            self._reject(self.nodes.pop(i), i, why)

    def _ask_new(self) -> None:
        """Asks who they are: nodes never seen, back from being offline, or rejected a while ago. Does not wait."""
        online, now = set(self.grid.get_node_ids()), time.monotonic()
        self._seen = {node: again for node, again in self._seen.items() if node in online}
        self._sure &= online
        new = [node for node in sorted(online) if self._seen.get(node, 0.0) <= now]
        questions = [make_question(node, self._note, 3600) for node in new]
        self._asked |= {str(m): node for m, node in zip(self.grid.push_messages(questions), new, strict=True) if m}
        self._seen |= dict.fromkeys(new, math.inf)
        for message in list(self.grid.pull_messages(list(self._asked))) if self._asked else []:
            self._check_node(message, self._asked.pop(message.metadata.reply_to_message_id))

    def _check_node(self, message: Message, node: int) -> None:
        """One node's answer to who it is."""
        clients = self.clients
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
            if self._joined and self.rows[i].train != rows:
                raise InvalidAnswer(f"says client {i} has {rows} rows; it had {self.rows[i].train}")
            if self._joined and self.rows[i] != has:
                raise InvalidAnswer(f"says client {i} holds back {held} rows; it had {list(self.rows[i][1:])}")
            form = None if self._forms is None else read_form(settings)
            if self.keys is not None and self.keys.get(i) != node:
                raise InvalidAnswer(f"says it is client {i}, but its key is not client {i}'s")
            if self.nodes.get(i, node) != node and self.nodes[i] in self._sure:
                raise InvalidAnswer(f"says it is client {i}, which another node is")
        except InvalidAnswer as error:
            self._reject(node, i, str(error))
            return
        if self._forms is None:  # else it may still be rejected, for the form of its rows
            self._rejected.pop(node, None)
        self._sure.add(node)
        self.rows[i] = has
        said = compare_version(settings.get("version"))
        if said and self._versions.get(node) != said:
            self.say(f"client {i} {said}")
            self.record_fault(i, said)
        self._versions[node] = said
        if self._forms is not None and form is not None:
            self._forms[i] = form
        self.nodes = {client: known for client, known in self.nodes.items() if known != node} | {i: node}

    def _reject(self, node: int, i: object, why: str) -> None:
        """Does not ask a node; who it is is asked again later: it may have been restarted then, with what it lacked."""
        self._seen[node] = time.monotonic() + _RETRY_SECONDS
        if self._rejected.get(node) != why:  # the same reason only once
            self._rejected[node] = why
            self.say(f"node {node} {why}")
            self.record_fault(
                i if type(i) is int and 0 <= i < self.clients else -1, f"node {node} {why}; it is not asked"
            )
