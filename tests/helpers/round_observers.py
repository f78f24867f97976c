"""Observers that tests put on a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedveca.runs.experiment import Experiment
from fedveca.runs.observers import Observer
from fedveca.runs.schema import Round


class EachRound(Observer):
    """Calls a function with each round's record."""

    def __init__(self, action: Callable[[Round], Any]) -> None:
        self.action = action

    def round(self, record: Round) -> None:
        self.action(record)


class EachStart(Observer):
    """Calls a function with the settings of each run that starts or is resumed."""

    def __init__(self, action: Callable[[Experiment], Any]) -> None:
        self.action = action

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        self.action(experiment)
