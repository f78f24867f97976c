"""Logs as JSON: one object per line, for programs that collect them."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import TextIO

from fedveca.errors import printable
from fedveca.monitor.settings import LogForm

LONGEST_MESSAGE = 4000  # characters
LOG_FIELDS = "fedveca_fields"  # the attribute of a log record that holds more than its message
_OTHERS = ("flwr", "uvicorn", "uvicorn.error", "uvicorn.access")  # loggers that write by themselves

_CHATTY = ("httpx", "httpcore", "uvicorn.access")  # a line per request


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, process, message, and the fields that it names."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        message = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            message += f" {self.formatException(record.exc_info)}"
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": printable(message.strip(), LONGEST_MESSAGE),
        }
        more: dict[str, object] = getattr(record, LOG_FIELDS, {})
        return json.dumps(line | {name: value for name, value in more.items() if name not in line}, default=str)


class _NotEmpty(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return bool(record.getMessage().strip())


def configure_logs(form: LogForm, stream: TextIO | None = None) -> None:
    """Makes this process write its log in this form; text leaves all as it is, but shows our own notes.

    Args:
        form: "text" or "json".
        stream: where to write; standard error if None.
    """
    ours = logging.getLogger("fedveca")
    ours.setLevel(logging.INFO)
    handler = logging.StreamHandler(stream or sys.stderr)
    if form == "text":
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        if not ours.handlers:
            ours.addHandler(handler)
            ours.propagate = False
        return
    handler.setFormatter(JsonFormatter())
    handler.addFilter(_NotEmpty())
    handler.setLevel(logging.INFO)
    logging.captureWarnings(True)
    ours.handlers.clear()
    ours.propagate = True
    root = logging.getLogger()
    root.handlers[:] = [handler]
    for name in _OTHERS:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    root.setLevel(logging.INFO)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
