"""Plotly's script as it ships in its package, told to load only the kinds of chart that are drawn here."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

KINDS = ("bar", "heatmap")  # lines are always there
_LIST = re.compile(r"\.register\(\[((?:\w+\(\),)+\w+\(\))\]\)")  # of all kinds, at the script's end


@cache
def plotly() -> str:
    """Loading 47 kinds of chart takes most of a page's opening; where they are not recognised, all are loaded."""
    text = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")
    all_kinds = list(_LIST.finditer(text, len(text) - 20_000))
    if len(all_kinds) != 1:
        return text
    found: dict[str, str] = {}
    for call in all_kinds[0][1].split(","):
        found.setdefault(_kind(text, call.removesuffix("()")), call)
        if all(kind in found for kind in KINDS):
            start, end = all_kinds[0].span(1)
            return text[:start] + ",".join(found[kind] for kind in KINDS) + text[end:]
    return text


def _kind(text: str, name: str) -> str:
    """The kind of chart that a loader of this name loads: it hands on another's module, which says so."""
    handed = _defined(text, name, r'\w+\(\(\w+,(\w+)\)=>{"use strict";\1\.exports=(\w+)\(\)}\)')
    module = handed and _defined(text, handed[2], r"\w+\(\(\w+,\w+\)=>{")
    said = module and re.compile(r'moduleType:"trace",name:"(\w+)"').search(text, module.end(), module.end() + 4000)
    return said[1] if said else ""


def _defined(text: str, name: str, pattern: str) -> re.Match[str] | None:
    """Where the script defines a name in this way."""
    shape, word = re.compile(pattern), f"{name}="
    at = text.find(word)
    while at >= 0:
        if not re.match(r"[\w$]", text[at - 1]) and (match := shape.match(text, at + len(word))):
            return match
        at = text.find(word, at + 1)
    return None
