"""Plotly's script with the kinds of chart that the report and the board draw; see page/README.md."""

from functools import cache
from pathlib import Path


@cache
def plotly_script() -> str:
    """Reads the script of the package."""
    return (Path(__file__).parent / "page" / "plotly.min.js").read_text("utf-8")
