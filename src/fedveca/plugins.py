"""Upper rooms that lower ones use by name, so that no lower room imports an upper one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

_PLUGINS = {
    "trackers": "fedveca.trackers.tracking:make_trackers",  # (the setting `track`) -> observers
    "notebook": "fedveca.views.notebook:render_run",  # (a run) -> HTML
    "progress": "fedveca.views.terminal.screen:make_progress",  # (the device) -> an observer that shows each round
    "plot": "fedveca.views.figures.plot:plot_run",  # (a run) -> a figure of matplotlib
    "report": "fedveca.views.publish:report",  # (runs, a file) -> the file
}


def load_plugin(name: str) -> Callable[..., Any]:
    """The function behind a name."""
    module, _, function = _PLUGINS[name].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
