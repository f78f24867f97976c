"""Plotly's script with the kinds of chart that the report and the board draw; see page/README.md."""

from functools import cache
from importlib import resources


@cache
def plotly_script() -> str:
    """Reads the script of the package."""
    return (resources.files("fedveca.views.report") / "page" / "plotly.min.js").read_text("utf-8")
