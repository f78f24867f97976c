"""The processes of a deployment as the system shows them: which they are, and where they listen."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def listening(processes: list[psutil.Process]) -> set[tuple[str, int]]:
    """The addresses and ports that these processes listen on, TCP of both versions."""
    inodes = set()
    for process in processes:
        for link in Path(f"/proc/{process.pid}/fd").glob("*"):
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{processes[0].pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                host, port = words[1].split(":")
                found.add((host, int(port, 16)))
    return found


def processes_of(folder: Path) -> list[psutil.Process]:
    """All processes whose environment or command names the folder."""
    found = []
    for process in psutil.process_iter(["environ", "cmdline"]):
        words = [*(process.info["environ"] or {}).values(), *(process.info["cmdline"] or [])]
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(process)
    return found
