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
    found = {_kind(text, call.removesuffix("()")): call for call in all_kinds[0][1].split(",")}
    if not all(kind in found for kind in KINDS):
        return text
    start, end = all_kinds[0].span(1)
    return text[:start] + ",".join(found[kind] for kind in KINDS) + text[end:]


def _kind(text: str, name: str) -> str:
    """The kind of chart that a loader of this name loads: it hands on another's module, which says so."""
    handed = re.search(rf'\b{re.escape(name)}=\w+\(\(\w+,(\w+)\)=>{{"use strict";\1\.exports=(\w+)\(\)}}\)', text)
    module = handed and re.search(rf"\b{re.escape(handed[2])}=\w+\(\(\w+,\w+\)=>{{", text)
    said = module and re.compile(r'moduleType:"trace",name:"(\w+)"').search(text, module.end(), module.end() + 4000)
    return said[1] if said else ""
