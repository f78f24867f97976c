"""Whether a federation is ready: every node asked, over the connection that training uses, before the first round.

`fedveca deploy check` starts a run of the pinned app whose setting `check` names a file. Its server asks each node who
it is, as at the start of any run, and for a report on its machine; it writes what they answer into that file. Nothing
that a node reports is trusted: what is not a number in its range or a short text is a sentence about the node instead.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from fedveca.cohorts.flower.forms import NodeForm, agree_on_form, read_form
from fedveca.cohorts.flower.messages import MOST_ROWS, InvalidAnswer, Value, bound_text, make_question, read_answer
from fedveca.cohorts.flower.versions import compare_version
from fedveca.deploy.certificates import WARNING_DAYS, count_days
from fedveca.deploy.inspection import list_versions
from fedveca.errors import UserError
from fedveca.runs.files import write_atomic

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

CLOCK_SECONDS = 5.0  # Flower rejects requests of a clock that is further ahead, or 305 s behind
LEAST_DISK, LEAST_MEMORY = 2**30, 2**29  # bytes
NO_DISK = 100 * 2**20  # bytes with which a node cannot run for long
_POLL_SECONDS = 0.25
_LATEST = 4e9  # seconds since 1970
_WORD = re.compile(r"[\w.+-]{1,40}", re.ASCII)


class NodeCheck(TypedDict, total=False):
    """What is known of one node; a value that it did not report, or not within its range, is missing."""

    client: int
    problems: list[str]  # why the federation should not start
    warnings: list[str]
    version: str  # of this package
    python: str
    torch: str
    flwr: str
    device: str
    rows: int
    val: int
    test: int
    skew: float  # seconds that its clock is ahead of the server's
    skew_error: float  # at most so much more or less
    disk: float  # bytes that are free
    memory: float
    row_seconds: float  # that a row of a local step takes
    expiry: float  # of its ca.pem, in seconds since 1970


class FederationCheck(TypedDict):
    """What a check found."""

    error: str  # why there was no check
    server: dict[str, str]  # its versions
    nodes: list[NodeCheck]


def check_nodes(
    grid: Grid,
    clients: int,
    note: Mapping[str, Value],
    nodes: Mapping[int, int] | None,
    wait: float,
    timeout: float,
) -> list[NodeCheck]:
    """Asks every node that is connected, and judges its answer.

    Args:
        grid: Flower's connection to the nodes.
        clients: Number of clients N.
        note: What every node must know: classes, pixels and the model's size, where the server has data. Without it,
            most nodes decide what rows look like.
        nodes: Client -> the node with that client's key, if keys are bound.
        wait: Seconds to wait for nodes that are not connected.
        timeout: Seconds to wait for their answers.

    Returns:
        One report per client, in order.
    """
    until = time.monotonic() + wait
    while len(online := set(grid.get_node_ids())) < clients and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    asked = sorted(online)
    questions = [make_question(node, {**note, "check": True}, timeout + 60) for node in asked]
    sent = time.time()
    pending = {str(m): node for m, node in zip(grid.push_messages(questions), asked, strict=True) if m}
    found: dict[int, NodeCheck] = {}
    forms: dict[int, NodeForm] = {}
    others: list[str] = []
    owners = {node: client for client, node in (nodes or {}).items()}
    until = time.monotonic() + timeout
    while pending and time.monotonic() < until:
        for message in grid.pull_messages(list(pending)):
            node = pending.pop(message.metadata.reply_to_message_id)
            _take_answer(message, node, clients, owners if nodes is not None else None, sent, found, forms, others)
        if pending:
            time.sleep(_POLL_SECONDS)
    for node in pending.values():
        _blame(found, owners.get(node), node, f"did not answer within {timeout:g} s", others)
    if forms and not note:
        for client, why in agree_on_form(forms)[1].items():
            found[client]["problems"].append(why)
    for client in range(clients):
        found.setdefault(client, {"client": client, "problems": ["is not connected"], "warnings": []})
    for sentence in others:
        found[0]["warnings"].append(sentence)
    return [found[client] for client in sorted(found)]


def _take_answer(
    message: Message,
    node: int,
    clients: int,
    owners: Mapping[int, int] | None,
    sent: float,
    found: dict[int, NodeCheck],
    forms: dict[int, NodeForm],
    others: list[str],
) -> None:
    """One node's report, among those of the others."""
    now = time.time()
    try:
        settings, _, _ = read_answer(message)
        client = settings.get("client")
        if type(client) is not int or not 0 <= client < clients:
            raise InvalidAnswer(f"says it is client {bound_text(client)}; there are clients 0 to {clients - 1}")
        if owners is not None and owners.get(node) != client:
            raise InvalidAnswer(f"says it is client {client}, but its key is not client {client}'s")
        if client in found and "version" in found[client]:
            raise InvalidAnswer(f"says it is client {client}, which another node is")
        found[client] = judge_report(settings, client, sent, now)
        if "shape" in settings:
            forms[client] = read_form(settings)
    except InvalidAnswer as error:
        _blame(found, None if owners is None else owners.get(node), node, str(error), others)


def _blame(found: dict[int, NodeCheck], client: int | None, node: int, why: str, others: list[str]) -> None:
    """Notes a problem with the client whose key the node has; where it is nobody's, as a word about the node."""
    if client is None:
        others.append(f"node {node} {why}")
        return
    found.setdefault(client, {"client": client, "problems": [], "warnings": []})["problems"].append(why)


def judge_report(settings: Mapping[str, object], client: int, sent: float, now: float) -> NodeCheck:
    """A node's report, checked value by value, with what is wrong about it.

    Args:
        settings: what the node sent.
        client: which client it is.
        sent: when it was asked, by the server's clock, in seconds since 1970.
        now: when its answer was there.
    """
    check: NodeCheck = {"client": client, "problems": [], "warnings": []}
    problems, warnings, here = check["problems"], check["warnings"], list_versions()
    for name in ("version", "python", "torch", "flwr", "device"):
        word = settings.get(name)
        if isinstance(word, str) and _WORD.fullmatch(word):
            check[name] = word
    if said := compare_version(settings.get("version"), here["version"]):
        problems.append(said)
    for name in ("python", "torch", "flwr"):
        if name in check and check[name] != here[name]:  # type: ignore[literal-required]
            warnings.append(f"has {name} {check[name]}, the server {here[name]}")  # type: ignore[literal-required]
    for name in ("rows", "val", "test"):
        count = settings.get(name)
        if type(count) is int and 0 <= count <= MOST_ROWS:
            check[name] = count  # type: ignore[literal-required]
    for name, high in (("disk", 2.0**70), ("memory", 2.0**60), ("row_seconds", 1e6), ("expiry", _LATEST)):
        number = settings.get(name)
        if type(number) is float and math.isfinite(number) and 0 <= number <= high:
            check[name] = number  # type: ignore[literal-required]
    if (problem := settings.get("problem")) is not None:
        problems.append(bound_text(problem, 400, bare=True))
    elif not check.get("rows") and "shape" in settings:
        problems.append("has no rows")
    _judge_clock(check, settings.get("began"), settings.get("time"), sent, now)
    _judge_room(check)
    if (expiry := check.get("expiry")) is not None:
        days = count_days(expiry, now)
        if days < 0:
            problems.append(f"has a ca.pem that expired {-days} days ago; copy the server's to it")
        elif days <= WARNING_DAYS:
            warnings.append(f"has a ca.pem that expires in {days} days")
    return check


def _judge_clock(check: NodeCheck, began: object, ended: object, sent: float, now: float) -> None:
    """How far a node's clock is ahead, from four times: asked, begun, ended, answered.

    What is left of the way there and back, without the node's work, may be all of it on one side, so that half of it is
    the error.
    """
    if type(began) is not float or type(ended) is not float or not 0 <= began <= ended <= _LATEST:
        return
    check["skew"] = ((began - sent) + (ended - now)) / 2
    check["skew_error"] = max((now - sent) - (ended - began), 0.0) / 2
    least = abs(check["skew"]) - check["skew_error"]
    if least > CLOCK_SECONDS:
        side = "ahead of" if check["skew"] > 0 else "behind"
        check["warnings"].append(f"has a clock at least {least:.0f} s {side} the server's")


def _judge_room(check: NodeCheck) -> None:
    disk, memory = check.get("disk"), check.get("memory")
    if disk is not None and disk < NO_DISK:
        check["problems"].append(f"has {disk / 2**20:.0f} MB of disk left")
    elif disk is not None and disk < LEAST_DISK:
        check["warnings"].append(f"has {disk / 2**20:.0f} MB of disk left")
    if memory is not None and memory < LEAST_MEMORY:
        check["warnings"].append(f"has {memory / 2**20:.0f} MB of memory left")


def write_check(path: Path, nodes: list[NodeCheck], error: str = "") -> None:
    """Writes what a check found, for whoever asked for it."""
    result: FederationCheck = {"error": error, "server": list_versions(), "nodes": nodes}
    write_atomic(path, json.dumps(result).encode())


def read_check(path: Path) -> FederationCheck | None:
    """What a check found; None while it is not there. The server wrote it, of checked values."""
    if not path.exists():
        return None
    found: FederationCheck = json.loads(path.read_bytes())
    if found["error"]:
        raise UserError(found["error"])
    return found
