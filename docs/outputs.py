"""Writes the outputs that README and docs show, from the real commands: python docs/outputs.py [--check] [PAGE ...].

A block of text after `<!-- output -->` is what the block of code before it prints: for a ```bash block, what its lines
that start with `fedveca` leave on a terminal of 80 columns; for a ```python block, its standard output.
`<!-- output of: fedveca ... -->` names the command instead; `<!-- output from "A" to "B" -->` shows the lines from the
first that starts with A to the next that starts with B. tests/docs/test_outputs.py compares all of them with the
commands, numbers aside, which depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
MARK = re.compile(
    r'<!-- output(?: of: (?P<command>fedveca [^>]+?))?(?: from "(?P<first>[^"]+)" to "(?P<last>[^"]+)")? -->\n'
    r"```text\n(?P<text>.*?)^```$",
    re.M | re.S,
)
CODE = re.compile(r"^```(?P<kind>python|bash)\n(?P<code>.*?)^```$", re.M | re.S)


class Shown(NamedTuple):
    """An output of a page: where it is, what it says, and what it comes from."""

    start: int
    end: int
    text: str
    kind: str  # python or shell
    code: str  # all python blocks up to here, or the command lines
    first: str = ""  # how the first and the last line that are shown start; all where they are empty
    last: str = ""


def find_pages() -> list[Path]:
    """README and the pages that show outputs."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if MARK.search(page.read_text("utf-8"))]


def find_outputs(page: Path) -> Iterator[Shown]:
    text = page.read_text("utf-8")
    for match in MARK.finditer(text):
        before = [code for code in CODE.finditer(text) if code.end() < match.start()]
        kind, code = "shell", match["command"]
        if code is None:
            kind = "python" if before[-1]["kind"] == "python" else "shell"
            code = before[-1]["code"]
            if kind == "python":
                code = "\0".join(block["code"] for block in before if block["kind"] == "python")
        ends = match["first"] or "", match["last"] or ""
        yield Shown(match.start("text"), match.end("text"), match["text"], kind, code, *ends)


def produce(shown: Shown, folder: Path) -> str:
    """What the code prints now."""
    from docs.terminal import record

    if shown.kind == "shell":
        lines = [line for line in shown.code.replace("\\\n", " ").splitlines() if line.startswith("fedveca ")]
        screens = [record(line, folder)[0][-1].text() for line in lines]
        return cut_out("\n".join(screens) + "\n", shown.first, shown.last)
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    with contextlib.chdir(folder):
        for block in shown.code.split("\0"):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block, "page", "exec"), names)
            printed = out.getvalue()
    return cut_out(printed, shown.first, shown.last)


def cut_out(text: str, first: str, last: str) -> str:
    """The lines from the first that starts with `first` to the next that starts with `last`."""
    lines = text.splitlines(keepends=True)
    start = next(at for at, line in enumerate(lines) if line.startswith(first))
    stop = next(at for at, line in enumerate(lines) if line.startswith(last) and at >= start) if last else len(lines)
    return "".join(lines[start : stop + 1])


def _sort_lines(found: re.Match[str]) -> str:
    return "".join(sorted(found[0].splitlines(keepends=True)))


def mask(text: str) -> str:
    """Without what depends on the machine and the moment.

    That is numbers, the spaces around them, the rounds of slow runs, how many workers there are, and the order in which
    runs end: with a C compiler it is another one than without.
    """
    text = re.sub(r",\s+\d+ workers", "", text)
    text = re.sub(r"^.* seed \d+ +round +\d+/\d+ .*$\n?", "", text, flags=re.M)
    text = re.sub(r"[-+±]?\d[\d.,:e-]*", "#", text)
    text = re.sub(r"(?:^run # of # .*\n)+", _sort_lines, text, flags=re.M)
    return re.sub(r"\s+", " ", text).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="some of the pages (all)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where an output has changed")
    args = parser.parse_args()
    changed = []
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    for page in [path.resolve() for path in args.pages] or find_pages():
        text = page.read_text("utf-8")
        for shown in reversed(list(find_outputs(page))):
            with tempfile.TemporaryDirectory() as folder:
                new = produce(shown, Path(folder))
            if mask(new) != mask(shown.text):
                changed.append(f"{page.relative_to(ROOT)}: {shown.code.strip().splitlines()[-1]}")
            text = text[: shown.start] + new + text[shown.end :]
        if not args.check:
            page.write_text(text, "utf-8")
    print("\n".join(changed) or "every output is as the pages show it")
    sys.exit(args.check and bool(changed))


if __name__ == "__main__":
    main()
