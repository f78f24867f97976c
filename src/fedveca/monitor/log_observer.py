"""What a run logs while it trains: one line per round."""

from __future__ import annotations

import logging
from pathlib import Path

from fedveca.errors import printable
from fedveca.monitor.logs import LOG_FIELDS
from fedveca.monitor.settings import LogForm
from fedveca.runs.experiment import Experiment
from fedveca.runs.observers import Observer
from fedveca.runs.schema import Round, find_metric, get_number, list_test_values
from fedveca.runs.value_text import format_value, short_label

LOGGED_FAULTS = 20  # of a round, in JSON
_log = logging.getLogger(__name__)


class LogObserver(Observer):
    """One line per round: as text for `flwr log`, or as JSON with the round's numbers in fields of their own.

    Args:
        form: "text" or "json".
    """

    def __init__(self, form: LogForm = "text") -> None:
        self.form = form

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        self.rounds = experiment.rounds

    def round(self, record: Round) -> None:
        if self.form == "text":
            print(self.format_round(record), flush=True)
        else:
            _log.info("%s", self.format_round(record), extra={LOG_FIELDS: self.list_fields(record)})

    def format_round(self, record: Round) -> str:
        metric = find_metric([record])
        value = get_number(record, metric)
        test = "" if value is None else f"  {short_label(metric)} {format_value(metric, value)}"
        faults = "".join(f"  client {f['client']} {f['what']}" for f in record.get("faults", []))
        return f"round {record['round'] + 1}/{self.rounds}{test}  {record['seconds']:.1f} s{faults}"

    def list_fields(self, record: Round) -> dict[str, object]:
        """The round's numbers, by the names of rounds.jsonl; the round is counted from 1."""
        faults = [{"client": f["client"], "what": printable(f["what"], 200)} for f in record.get("faults", [])]
        names = ("train_loss", *list_test_values(record), "bytes_down", "bytes_up", "seconds")
        numbers = {name: get_number(record, name) for name in names}
        counts = {"answered": len(record["ids"]), "left_out": len(record["left_out"])}
        which = {"round": record["round"] + 1, "rounds": self.rounds}
        return {**which, **counts, **numbers, "faults": faults[:LOGGED_FAULTS]}
