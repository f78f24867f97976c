"""Nodes in this process that take part in secure aggregation, each with its own folder and key; some may be lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flower_grid import Grid
from flwr.app import Error, Message
from numpy.typing import NDArray

from fedveca.cohorts.flower.messages import make_reply, read_order
from fedveca.deploy.exchange import decode_answer, encode
from fedveca.deploy.node_process import work
from fedveca.deploy.peers import write_peers
from fedveca.deploy.provision import write_key
from fedveca.runs.experiment import Experiment
from fedveca.runs.secure import find_quorum

Stage = tuple[int, str, int]  # client, stage, and how often that client was asked for that stage before


class SecureGrid(Grid):
    """Answers as a deployment's nodes do; answers to the stages in `lost` never come back.

    The stages are "who", "advertise", "share", "order", "unmask", and "loss" for orders without steps.
    """

    def __init__(self, e: Experiment, folder: Path, lost: Iterable[Stage] = ()) -> None:
        super().__init__(e, folder, {}, e.clients)
        self.lost, self.counts = set(lost), dict[tuple[int, str], int]()
        self.sent: list[tuple[int, str]] = []  # every message, as (client, stage)
        self.seen: list[tuple[int, str, dict[str, NDArray[Any]]]] = []  # what the server sees
        self.missing: set[str] = set()
        for i in range(e.clients):
            write_key(folder / f"node-{i}" / "key", folder / "keys" / f"node-{i}.pub")
        write_peers([folder / f"node-{i}" for i in range(e.clients)], folder / "keys", find_quorum(e, e.clients)[1])

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            client, stage = message.metadata.dst_node_id - 100, find_stage(read_order(message)[0])
            before = self.counts.get((client, stage), 0)
            self.counts[client, stage] = before + 1
            self.sent.append((client, stage))
            ids += super().push_messages([message])
            if (client, stage, before) in self.lost:
                self.missing.add(ids[-1])
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return super().pull_messages([i for i in ids if i not in self.missing])

    def _answer(self, message: Message) -> Message:
        client = message.metadata.dst_node_id - 100
        words, vectors = read_order(message)
        request: Any = {"settings": asdict(self.e), "client": client, "order": words}
        answer, arrays = decode_answer(work(encode(request, vectors), self.folder / f"node-{client}"))
        if "error" in answer:
            return Message(Error(1, answer["error"]), reply_to=message)
        self.seen.append((client, find_stage(words), arrays))
        return make_reply(message, answer["fields"], answer["numbers"], arrays)


def find_stage(order: dict[str, object]) -> str:
    if "stage" in order:
        return str(order["stage"])
    return "who" if "round" not in order else "order" if order.get("tau") else "loss"
