"""Logs as JSON: each line is one object, whatever is logged."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveca.monitor.log_observer import LOGGED_FAULTS, LogObserver
from fedveca.monitor.logs import LONGEST_MESSAGE, JsonFormatter, configure_logs
from fedveca.runs.experiment import Experiment
from fedveca.runs.schema import Round

RECORD: Round = {
    "round": 1,
    "ids": [0],
    "left_out": [1],
    "tau": [3],
    "seconds": 1.25,
    "train_loss": None,
    "test_loss": 0.5,
    "test_accuracy": 0.75,
    "bytes_up": 7,
    "faults": [{"client": 1, "what": "sent \x1b[31mred\n{}"}],
}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The log of this process, as JSON, put back afterwards."""
    names = ("", "fedveca", "flwr", "uvicorn", "uvicorn.error", "uvicorn.access", "httpx", "httpcore", "py.warnings")
    loggers = [logging.getLogger(name) for name in names]
    before = [(list(one.handlers), one.level, one.propagate) for one in loggers]
    stream = io.StringIO()
    configure_logs("json", stream)
    yield stream
    logging.captureWarnings(False)
    for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_an_object_with_time_level_logger_and_message(stream: io.StringIO) -> None:
    logging.getLogger("fedveca.deploy").info("client %d is %s", 3, "here")
    logging.getLogger("flwr").warning("SuperNode\n ends")
    logging.getLogger("flwr").info("")  # Flower's empty lines
    logging.getLogger("flwr").debug("not shown")
    logging.getLogger("httpx").info("HTTP Request: not shown")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a warning", stacklevel=1)
    first, second, third = lines(stream)
    assert (first["level"], first["logger"], first["message"]) == ("info", "fedveca.deploy", "client 3 is here")
    assert str(first["time"]).endswith("+00:00")
    assert second["message"] == "SuperNode\\n ends"
    assert "a warning" in str(third["message"])


def test_an_error_keeps_its_traceback_on_one_line(stream: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("the disk is full")
    except ZeroDivisionError:
        logging.getLogger("fedveca").exception("it failed")
    (line,) = lines(stream)
    assert "ZeroDivisionError: the disk is full" in str(line["message"])


@settings(max_examples=50)
@given(st.text() | st.text(min_size=1, max_size=1).map(lambda c: c * 5000))
def test_whatever_a_node_says_is_one_bounded_line_of_json(text: str) -> None:
    record = logging.LogRecord("fedveca", logging.INFO, "", 0, "%s", (text,), None)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert line.isprintable()
    assert len(json.loads(line)["message"]) <= 10 * (LONGEST_MESSAGE + 3)


def test_a_round_is_logged_with_its_numbers(stream: io.StringIO) -> None:
    observer = LogObserver("json")
    observer.start(Experiment(rounds=9), None)
    observer.round(RECORD)
    (line,) = lines(stream)
    expected: dict[str, object] = {
        "round": 2,
        "rounds": 9,
        "answered": 1,
        "left_out": 1,
        "test_accuracy": 0.75,
        "test_loss": 0.5,
    }
    expected |= {"train_loss": None, "seconds": 1.25, "bytes_up": 7}
    assert expected.items() <= line.items()
    assert str(line["message"]).startswith("round 2/9  accuracy 75.00 %")
    assert line["faults"] == [{"client": 1, "what": "sent \\x1b[31mred\\n{}"}]


def test_the_faults_of_a_line_are_bounded(stream: io.StringIO) -> None:
    observer = LogObserver("json")
    observer.start(Experiment(rounds=9), None)
    many: Round = {**RECORD, "faults": [{"client": i, "what": "x" * 1000} for i in range(1000)]}
    observer.round(many)
    (line,) = lines(stream)
    assert isinstance(line["faults"], list)
    assert len(line["faults"]) == LOGGED_FAULTS
    assert len(stream.getvalue()) < 20_000


def test_text_is_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    observer = LogObserver()
    observer.start(Experiment(rounds=9), None)
    observer.round(RECORD)
    assert capsys.readouterr().out.startswith("round 2/9  accuracy 75.00 %  1.2 s  client 1 sent")


def test_text_shows_notes_of_ours_and_changes_no_other_logger() -> None:
    code = (
        "import logging; from fedveca.monitor.logs import configure_logs; configure_logs('text');"
        "logging.getLogger('fedveca.x').info('a note'); logging.getLogger('other').info('hidden')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.endswith("INFO a note\n")
    assert done.stderr.count("\n") == 1
