"""What is watched, and how: `monitor.json` in the folder of a server or of a node; without it, nothing is."""

from __future__ import annotations

import ipaddress
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from fedveca.errors import UserError, show_value
from fedveca.runs.files import read_object, write_atomic

MONITOR_FILE = "monitor.json"
MONITOR_BYTES = 10_000  # of that file
LOOPBACK = "127.0.0.1"
LogForm = Literal["text", "json"]


class MonitorSettings(NamedTuple):
    """Where the figures are served, and how the log is written.

    Args:
        port: the port of `/metrics`; 0 serves nothing.
        host: the address to listen on.
        log: "text" or "json".
    """

    port: int = 0
    host: str = LOOPBACK
    log: LogForm = "text"

    def check(self) -> MonitorSettings:
        """Returns itself.

        Raises:
            UserError: if a value is out of range, or the extra `monitor` is needed and missing.
        """
        if type(self.port) is not int or not 0 <= self.port <= 65535:
            raise UserError(f"metrics port {show_value(self.port)} is out of range; allowed: [1, 65535], or 0 for none")
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            text = f"metrics host {show_value(self.host)} is not an address of this machine"
            raise UserError(f"{text}; allowed: an IP address, such as 127.0.0.1 or 0.0.0.0") from None
        if self.log not in get_args(LogForm):
            raise UserError(f"log={show_value(self.log)} is not known; allowed: {', '.join(get_args(LogForm))}")
        if self.port and find_spec("prometheus_client") is None:
            raise UserError("metrics need the extra fedveca[monitor]: pip install 'fedveca[monitor]'")
        return self


NOTHING_WATCHED = MonitorSettings()


def read_monitor(folder: Path) -> MonitorSettings:
    """The settings of the server or node with this folder; nothing is watched where it has no such file.

    Raises:
        UserError: if the file is invalid.
    """
    if not (folder / MONITOR_FILE).exists():
        return NOTHING_WATCHED
    found = read_object(folder, MONITOR_FILE, MONITOR_BYTES)
    if unknown := sorted(set(found) - set(MonitorSettings._fields)):
        allowed = ", ".join(MonitorSettings._fields)
        raise UserError(f"{MONITOR_FILE} has {show_value(unknown[0])}; allowed: {allowed}")
    return MonitorSettings(**found).check()  # type: ignore[arg-type]


def find_log_form(folder: Path) -> LogForm:
    """The form of the log there; text where the file is invalid, which somebody else has said."""
    try:
        return read_monitor(folder).log
    except ValueError:
        return "text"


def write_monitor(folder: Path, settings: MonitorSettings) -> None:
    """Writes the file, or removes it where nothing is watched."""
    if settings.check() == NOTHING_WATCHED:
        (folder / MONITOR_FILE).unlink(missing_ok=True)
    else:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(folder / MONITOR_FILE, json.dumps(settings._asdict()).encode() + b"\n")
