"""Plotly's script with the kinds of chart that the report and the board draw; see page/README.md."""

import base64
import gzip
from functools import cache
from pathlib import Path


@cache
def plotly_script() -> str:
    """Reads the script of the package."""
    return (Path(__file__).parent / "page" / "plotly.min.js").read_text("utf-8")


@cache
def pack_script() -> str:
    """The script as a report contains it: gzip in base64, which is less than half of it; report.js unpacks it."""
    return base64.b64encode(gzip.compress(plotly_script().encode(), mtime=0)).decode()
