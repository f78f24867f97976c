"""What a deployment's server logs while it trains."""

from __future__ import annotations

from pathlib import Path

from fedveca.runs.experiment import Experiment
from fedveca.runs.observers import Observer
from fedveca.runs.schema import Round, find_metric, format_value, get_number, short_label


class LogObserver(Observer):
    """One line per round, for `flwr log`."""

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        self.rounds = experiment.rounds

    def round(self, record: Round) -> None:
        print(self.format_round(record), flush=True)

    def format_round(self, record: Round) -> str:
        metric = find_metric([record])
        value = get_number(record, metric)
        test = "" if value is None else f"  {short_label(metric)} {format_value(metric, value)}"
        faults = "".join(f"  client {f['client']} {f['what']}" for f in record.get("faults", []))
        return f"round {record['round'] + 1}/{self.rounds}{test}  {record['seconds']:.1f} s{faults}"
