"""How many rows each client of a run has, in its folder: so that it is resumed before all of them are back."""

from __future__ import annotations

import json
from pathlib import Path

from fedveca.cohorts.flower.answers import NodeRows
from fedveca.cohorts.flower.cohort import FlowerCohort
from fedveca.cohorts.flower.messages import MOST_ROWS
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import read_object, write_atomic
from fedveca.runs.observers import Observer

CLIENT_ROWS = "clients.json"
_MOST_BYTES = 2**26


class ClientRowsObserver(Observer):
    """Writes the file when a run starts."""

    def __init__(self, cohort: FlowerCohort) -> None:
        self.cohort = cohort

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        if folder is not None:
            rows = {part: self.cohort.held[part].tolist() for part in NodeRows._fields}
            write_atomic(folder / CLIENT_ROWS, json.dumps(rows).encode())


def read_client_rows(folder: Path, clients: int) -> dict[int, NodeRows] | None:
    """What the file of a run says; None where there is none, or not for so many clients: then all are waited for."""
    try:
        found = read_object(folder, CLIENT_ROWS, _MOST_BYTES)
    except (OSError, ValueError):
        return None
    parts = [found.get(part) for part in NodeRows._fields]
    for counts in parts:
        whole = isinstance(counts, list) and all(type(v) is int and 0 <= v <= MOST_ROWS for v in counts)
        if not isinstance(counts, list) or not whole or len(counts) != clients:
            return None
    return {i: NodeRows(*(counts[i] for counts in parts)) for i in range(clients)}  # type: ignore[index, arg-type]
