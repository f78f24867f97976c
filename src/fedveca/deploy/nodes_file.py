"""Which Flower node has which client's key: a file that the server's process writes, and a run reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path


class NodeTable(Mapping[int, int]):
    """Which Flower node has which client's key: a file that is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path, self._at, self._nodes = path, -1, dict[int, int]()

    def _read(self) -> dict[int, int]:
        at = self.path.stat().st_mtime_ns
        if at != self._at:
            self._nodes = {int(client): int(node) for client, node in json.loads(self.path.read_text()).items()}
            self._at = at
        return self._nodes

    def __getitem__(self, client: int) -> int:
        return self._read()[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())
