"""Records what a command shows on a terminal, and draws docs/images/terminal.svg from what `make demo` runs.

    python docs/terminal.py [--width 80] [-o docs/images/terminal.svg]

The command runs for real, in a pseudo-terminal. The picture plays its frames once, with waits of more than a second
shortened; the longest time without a change on the screen is kept in the picture, in `data-longest-silence`.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600
COLOURS = ("#1c1f25", "#ff8f8f", "#6fcf8a", "#e5c07b", "#8fb3ff", "#cfa6ea", "#6fc7d6", "#e8e6e1")
PLAIN = "#e8e6e1"
SEQUENCE = re.compile(r"\x1b\[(?P<how>[0-9;?]*)(?P<what>[A-Za-z])|\x1b\](?:[^\x07\x1b])*(?:\x07|\x1b\\)|\x1b[=>]")


class Look(NamedTuple):
    """How a character is drawn."""

    colour: str = PLAIN
    bold: bool = False
    dim: bool = False


class Frame(NamedTuple):
    """The screen at a moment, in seconds from the start."""

    at: float
    lines: list[list[tuple[str, Look]]]

    def text(self) -> str:
        return "\n".join("".join(c for c, _ in line).rstrip() for line in self.lines).rstrip()


class Screen:
    """As much of a terminal as programs use that draw a progress line: colours, cursor up, erase."""

    def __init__(self, columns: int) -> None:
        self.columns, self.look = columns, Look()
        self.lines: list[list[tuple[str, Look]]] = [[]]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            if match := SEQUENCE.match(text, at):
                if match["what"]:
                    self._obey(match["how"], match["what"])
                at = match.end()
                continue
            self._put(text[at])
            at += 1

    def _put(self, c: str) -> None:
        if c == "\r":
            self.column = 0
        elif c == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append([])
        elif c.isprintable():
            if self.column == self.columns:
                self._put("\n")
                self.column = 0
            line = self.lines[self.row]
            line += [(" ", Look())] * (self.column + 1 - len(line))
            line[self.column] = (c, self.look)
            self.column += 1

    def _obey(self, how: str, what: str) -> None:
        numbers = [int(n or 0) for n in how.lstrip("?").split(";")]
        n = max(1, numbers[0])
        if what == "A":
            self.row = max(0, self.row - n)
        elif what == "B":
            self.row = min(len(self.lines) - 1, self.row + n)
        elif what in "CD":
            self.column = min(self.columns, max(0, self.column + (n if what == "C" else -n)))
        elif what == "G":
            self.column = n - 1
        elif what == "K":
            self.lines[self.row] = [] if numbers[0] == 2 else self.lines[self.row][: self.column]
        elif what == "J":
            del self.lines[self.row + 1 :]
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif what == "m":
            self._style(numbers)

    def _style(self, codes: list[int]) -> None:
        at = 0
        while at < len(codes):
            code, look = codes[at], self.look
            if code == 0:
                look = Look()
            elif code in (1, 2):
                look = look._replace(bold=look.bold or code == 1, dim=look.dim or code == 2)
            elif code == 22:
                look = look._replace(bold=False, dim=False)
            elif 30 <= code <= 37 or 90 <= code <= 97:
                look = look._replace(colour=COLOURS[code % 10] if code % 10 else "#8a92a0")
            elif code == 39:
                look = look._replace(colour=PLAIN)
            elif code == 38 and codes[at + 1 : at + 2] == [5]:
                look = look._replace(colour=_colour256(codes[at + 2]))
                at += 2
            elif code == 38 and codes[at + 1 : at + 2] == [2]:
                look = look._replace(colour="#{:02x}{:02x}{:02x}".format(*codes[at + 2 : at + 5]))
                at += 4
            self.look = look
            at += 1

    def show(self, at: float) -> Frame:
        return Frame(at, [list(line) for line in self.lines])


def _colour256(n: int) -> str:
    if n < 16:
        return COLOURS[n % 8] if n % 8 else "#8a92a0"
    if n >= 232:
        return "#" + f"{8 + 10 * (n - 232):02x}" * 3
    levels = (0, 95, 135, 175, 215, 255)
    n -= 16
    return f"#{levels[n // 36]:02x}{levels[n // 6 % 6]:02x}{levels[n % 6]:02x}"


def record(command: str, folder: Path, columns: int = 80) -> tuple[list[Frame], int]:
    """Runs a `fedveca ...` command line in a pseudo-terminal; its frames, and its exit code."""
    words = shlex.split(command, comments=True)
    assert words[0] == "fedveca", command
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI", "LINES")} | {
        "TERM": "xterm-256color",
        "COLUMNS": str(columns),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "fedveca.cli", *words[1:]],
        cwd=folder,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    screen, start = Screen(columns), time.monotonic()
    frames, decoder = [screen.show(0.0)], codecs.getincrementaldecoder("utf-8")("replace")
    while time.monotonic() < start + LIMIT_S:
        if not select.select([master], [], [], 0.2)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not data:
            break
        screen.feed(decoder.decode(data))
        frame = screen.show(time.monotonic() - start)
        if frame.text() != frames[-1].text():
            frames.append(frame)
    os.close(master)
    process.terminate()
    return frames, process.wait()


def longest_silence(frames: list[Frame]) -> float:
    """Seconds without a change on the screen."""
    return max((b.at - a.at for a, b in pairwise(frames)), default=0.0)


def draw(frames: list[Frame], command: str, columns: int, most: int = 40) -> str:
    """An SVG that plays the frames once and ends with the last; without motion where the reader asks for none."""
    step = max(1, (len(frames) + most - 1) // most)
    chosen = [*frames[:-1][::step], frames[-1]]
    starts, now = [], 0.4
    for before, frame in zip([chosen[0], *chosen], chosen, strict=False):
        now += min(1.0, max(0.08, frame.at - before.at))
        starts.append(now)
    width, height = 8.4, 18
    rows = max(len(frame.text().splitlines()) for frame in chosen) + 1
    w, h = columns * width + 32, rows * height + 62
    groups = []
    for at, (frame, begin) in enumerate(zip(chosen, starts, strict=True)):
        end = starts[at + 1] if at + 1 < len(starts) else 0.0
        style = f"animation-delay:{begin:.2f}s" + (f";animation-duration:{end - begin:.2f}s" if end else "")
        groups.append(
            f'<g class="f{" last" if not end else ""}" style="{style}">{_draw_lines(frame, width, height)}</g>'
        )
    final = escape(frames[-1].text())
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0f} {h}" role="img" data-longest-silence="{
        longest_silence(frames):.2f}">
<title>Terminal: {escape(command)}</title>
<desc>{final}</desc>
<style>
text {{ font: 14px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; }}
.f {{ visibility: hidden; animation: show 1ms; }}
.f.last {{ animation-fill-mode: forwards; }}
@keyframes show {{ from, to {{ visibility: visible; }} }}
@media (prefers-reduced-motion: reduce) {{ .f, .f.last {{ animation: none; }} .f.last {{ visibility: visible; }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#14161a"/>
<circle cx="20" cy="18" r="5" fill="#ff9a4d"/><circle cx="36" cy="18" r="5" fill="#636a73"/>
<circle cx="52" cy="18" r="5" fill="#636a73"/>
<text x="16" y="52" fill="{PLAIN}"><tspan fill="#6fcf8a">$</tspan> {escape(command)}</text>
{chr(10).join(groups)}
</svg>
"""


def _draw_lines(frame: Frame, width: float, height: float) -> str:
    drawn = []
    for row, line in enumerate(frame.lines):
        at = 0
        for look, run in groupby(line, key=lambda cell: cell[1]):
            text = "".join(c for c, _ in run)
            if text.strip():
                x, kept = 16 + at * width + (len(text) - len(text.lstrip())) * width, text.strip()
                extra = (' font-weight="700"' if look.bold else "") + (' opacity=".75"' if look.dim else "")
                drawn.append(
                    f'<text x="{x:.1f}" y="{52 + (row + 1) * height}" fill="{look.colour}"{extra}'
                    f' textLength="{len(kept) * width:.1f}">{escape(kept)}</text>'
                )
            at += len(text)
    return "".join(drawn)


def find_demo() -> str:
    """The command that `make demo` runs, once the environment is there."""
    text = (ROOT / "Makefile").read_text("utf-8")
    recipe = re.search(r"^demo:.*\n(?:\t.*\n)*?\t@?\$\(BIN\)/(fedveca .+)$", text, re.M)
    assert recipe, "the Makefile has no demo"
    return recipe[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=80, help="columns of the terminal (80)")
    parser.add_argument("-o", type=Path, default=ROOT / "docs" / "images" / "terminal.svg", help="the picture to write")
    args = parser.parse_args()
    command = find_demo()
    with tempfile.TemporaryDirectory() as folder:
        frames, code = record(command, Path(folder), args.width)
    assert code == 0, frames[-1].text()
    args.o.write_text(draw(frames, command, args.width), "utf-8")
    print(frames[-1].text())
    print(f"{args.o}: {len(frames)} frames, {frames[-1].at:.1f} s, longest silence {longest_silence(frames):.1f} s")


if __name__ == "__main__":
    main()
