"""How every figure looks, and how it becomes a file: one style for the package, the studies and the benchmarks.

Text stays text, so that it can be searched, selected and read aloud; an SVG file has a title and a description. A
method has the colour and the dash of its registry entry; what is not a method (a client, a task, a setting) has one
of CATEGORIES, so that a colour never names two things.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from numpy.typing import ArrayLike

from fedveca.algorithms.registry import DASHES
from fedveca.errors import UserError, printable
from fedveca.runs.output_file import require_file, write_file

if "MPLBACKEND" not in os.environ and "matplotlib.pyplot" not in sys.modules:  # else a notebook or a program chose one
    matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.transforms import ScaledTranslation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK, QUIET, FRAME, GRID = "#222222", "#595959", "#8C8C8C", "#E5E5E5"  # text; lesser text; axes; lines behind the data
CATEGORIES = ("#332288", "#AA4466", "#6B6B00", "#00606B", "#8F4BD0", "#5C3A21", "#6E6E6E")  # not a method's
READABLE = 4.5  # the contrast of text with white, at least
STYLE: Any = {  # matplotlib types its keys one by one, and only in some versions
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FRAME,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.titlesize": 11.5,
    "figure.titleweight": "bold",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FRAME,
    "ytick.color": FRAME,
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "legend.handlelength": 2.8,
    "lines.dash_capstyle": "butt",
    "lines.scale_dashes": True,
    "svg.hashsalt": "fedveca",
    "svg.fonttype": "none",
    "figure.facecolor": "white",
}
DATED = {".svg": "Date", ".pdf": "CreationDate", ".png": "Software"}  # what would make two files differ


def escape_label(text: str) -> str:
    """A text from a folder for a figure: on one line, not a formula, and bounded."""
    return printable(text, 200).replace("$", r"\$")


def find_linestyle(dash: str) -> Any:
    """A name of DASHES as matplotlib's linestyle."""
    return (0, DASHES[dash]) if DASHES[dash] else "-"


def compute_contrast(colour: str) -> float:
    """The contrast of a colour '#RRGGBB' with white, by the formula of WCAG: 1 to 21."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)


def darken(colour: str, contrast: float = READABLE) -> str:
    """The colour, mixed with black until text of it can be read on white."""
    for black in range(0, 100, 4):
        mixed = "#" + "".join(f"{int(colour[i : i + 2], 16) * (100 - black) // 100:02X}" for i in (1, 3, 5))
        if compute_contrast(mixed) >= contrast:
            break
    return mixed


def draw_band(
    axis: Axes, x: ArrayLike, mean: ArrayLike, std: ArrayLike | None, look: tuple[str, str, str], width: float = 1.6
) -> None:
    """A line with its name, and a band of one standard deviation; the look is (label, colour, dash)."""
    label, colour, dash = look
    order = 2 + 0.1 * bool(DASHES[dash])  # what has gaps is above what has none
    axis.plot(x, mean, color=colour, linestyle=find_linestyle(dash), linewidth=width, label=label, zorder=order)
    if std is not None:
        low, high = np.asarray(mean) - np.asarray(std), np.asarray(mean) + np.asarray(std)
        axis.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)


def label_lines(*axes: Axes, gap: float = 12.5, size: float = 9.5) -> None:
    """Writes the name of each line at its right end, in its colour, and moves names apart where lines meet.

    Args:
        axes: Panels of one figure, as they will be drawn: their limits do not change afterwards.
        gap: Points from one name to the next, at least.
        size: Of the names, in points.
    """
    figure: Any = axes[0].get_figure()
    with _allow_odd_names():
        figure.draw_without_rendering()  # the layout decides how high a panel is
    for axis in axes:
        high = axis.get_window_extent().height * 72 / figure.dpi
        found = [line for line in axis.get_lines() if not str(line.get_label()).startswith("_")]
        ends = [end for line in found if (end := _find_end(axis, line))]
        ends.sort(key=lambda end: (end[1], end[0]))
        places = _spread([high * end[1] for end in ends], gap)
        for (name, _, point, colour), place in zip(ends, places, strict=True):
            shifted = axis.transAxes + ScaledTranslation(14 / 72, 0, figure.dpi_scale_trans)
            axis.annotate(
                name,
                xy=point,
                xytext=(1, place / high),
                textcoords=shifted,
                color=darken(colour),
                fontsize=size,
                va="center",
                annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-",
                    "color": colour,
                    "linewidth": 0.9,
                    "shrinkA": 1,
                    "shrinkB": 1,
                    "relpos": (0, 0.5),
                },
            )


def _find_end(axis: Axes, line: Line2D) -> tuple[str, float, tuple[float, float], str] | None:
    """A line's name, how high its end is in the panel (0 to 1), the end itself, and its colour."""
    x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
    known = np.flatnonzero(np.isfinite(y))
    if not known.size:
        return None
    low, high = axis.get_ylim()
    value = float(np.clip(y[known[-1]], min(low, high), max(low, high)))
    across = line.get_transform() != axis.transData  # axhline: its x is a share of the panel
    at = axis.get_xlim()[1] if across else float(x[known[-1]])
    place = float(axis.transAxes.inverted().transform(axis.transData.transform((at, value)))[1])
    return str(line.get_label()), place, (at, value), matplotlib.colors.to_hex(line.get_color())


def _spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places as near to the wanted ones, which ascend, as a gap between them allows."""
    blocks: list[tuple[float, int]] = []  # the middle of neighbours that touch, and how many they are
    for value in wanted:
        blocks.append((value, 1))
        while len(blocks) > 1:
            (lower, n), (upper, m) = blocks[-2:]
            if upper - lower >= gap * (n + m) / 2:
                break
            blocks[-2:] = [((n * lower + m * upper) / (n + m), n + m)]
    return list(itertools.chain(*([mid + gap * (i - (n - 1) / 2) for i in range(n)] for mid, n in blocks)))


@contextlib.contextmanager
def _allow_odd_names() -> Iterator[None]:
    """A name from a folder may have letters that no font has, or leave no room for the panels."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font|constrained_layout not applied")
        yield


def require_figure_file(path: Path) -> None:
    """UserError where a figure cannot be written into this file."""
    require_file(path)
    if path.suffix not in DATED:
        raise UserError(f"{path} is not the name of a figure; it ends in {', '.join(DATED)}")


def save_figure(figure: Figure, path: Path, title: str, description: str = "") -> None:
    """Writes the same bytes for the same figure, whole or not at all, and closes it.

    Args:
        figure: The figure.
        path: The file, whose ending says how: .svg, .pdf or .png.
        title: What it shows, for those who search or do not see it.
        description: What is to be seen there, in a sentence or two.
    """
    path, content = Path(path), io.BytesIO()
    title, description = printable(title, 300), printable(description, 1000)
    try:
        require_figure_file(path)
        with _allow_odd_names():
            about = {DATED[path.suffix]: None, "Title": title}
            figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=about)
    finally:
        plt.close(figure)
    written = content.getvalue()
    if path.suffix == ".svg":
        written = written.replace(b"<svg ", b'<svg role="img" ', 1)
        written = written.replace(b"</title>", f"</title>\n <desc>{escape(description or title)}</desc>".encode(), 1)
    write_file(path, written)
