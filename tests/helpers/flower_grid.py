"""Nodes in this process: their messages are Flower's own, written to bytes and read back, only not sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from fedveca.cohorts.flower.messages import make_reply, read_order
from fedveca.deploy.exchange import decode_answer, encode
from fedveca.deploy.node_process import work
from fedveca.runs.experiment import Experiment

Change = Callable[[dict[str, Any]], "RecordDict | Error | None"]  # of the records of a right answer


class Grid:
    """Nodes that answer as a deployment's do; `changes` may replace what a client says in a round (-1: who it is)."""

    def __init__(self, e: Experiment, folder: Path, changes: dict[tuple[int, int], Change], nodes: int = 3) -> None:
        self.e, self.folder, self.changes, self.nodes = e, folder, changes, nodes
        self.replies: dict[str, bytes] = {}

    def get_node_ids(self) -> list[int]:
        return [100 + i for i in range(self.nodes)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"m{len(self.replies)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.replies[ids[-1]] = message_to_proto(self._answer(message)).SerializeToString()
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [message_from_proto(ProtoMessage.FromString(self.replies[i])) for i in ids]

    def _answer(self, message: Message) -> Message:
        client = message.metadata.dst_node_id - 100
        words, vectors = read_order(message)
        request: Any = {"settings": asdict(self.e), "client": min(client, self.e.clients - 1), "order": words}
        received, start = time.time(), time.perf_counter()
        answer, arrays = decode_answer(work(encode(request, vectors), self.folder))
        times = {**answer.get("times", {}), "received": received, "work": time.perf_counter() - start}
        right = make_reply(message, answer["fields"], answer["numbers"], arrays, times)
        k = words.get("round", -1)
        assert isinstance(k, int)
        change = self.changes.get((client, k))
        if change is None:
            return right
        records: dict[str, Any] = dict(right.content)
        wrong = change(records)
        return Message(RecordDict(records) if wrong is None else wrong, reply_to=message)
