"""The dashboard for Grafana that comes with the package."""

from __future__ import annotations

from pathlib import Path

DASHBOARD_FILE = "grafana.json"


def read_dashboard() -> str:
    """The dashboard as JSON, as Grafana imports it."""
    return (Path(__file__).parent / DASHBOARD_FILE).read_text("utf-8")


def write_dashboard(path: Path) -> None:
    """Writes the dashboard to a file."""
    path.write_text(read_dashboard(), encoding="utf-8")
