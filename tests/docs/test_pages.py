"""README and docs as texts: what they must name, what they must not say, and what is generated from the source."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

import fedveca
from docs.generated import (
    group_settings,
    list_commands,
    make_commands,
    make_names,
    make_settings,
    read_notebook,
    run_cells,
)
from docs.outputs import find_outputs, find_pages, mask, produce
from docs.terminal import Look, Screen, find_demo
from fedveca.cli import main
from fedveca.runs.presets import presets
from fedveca.runs.setting_checks import FIELDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([README, *DOCS.rglob("*.md")])
NOTEBOOK = DOCS / "tutorial.ipynb"
COLUMNS = 80  # of a block of code: what a page shows without scrolling
NOT_SAID = (  # words of the glossary in CONTRIBUTING.md, and what is not said for them
    r"\bbeside\b",
    r"\brefus\w+",
    r"\bgo(?:es|ing)? on\b",
    r"(?<!here )\bis no (?!longer)",
    r"\bmend\w*",
    r"\bgather\w*",
    r"\bhanded out\b",
    r"\bone's own\b",
    r"\bone line a round\b",
    r"\btold\b",
    r"\bthe least\b",
)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def code_lines(text: str) -> list[str]:
    """The lines of fenced and indented blocks."""
    found, fenced = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            found.append(line)
        elif re.match(r" {4}\S", line):
            found.append(line[4:])
    return found


# what a page says


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_fits_the_page(page: Path) -> None:
    assert [line for line in code_lines(page.read_text("utf-8")) if len(line) > COLUMNS] == []


def test_the_notebooks_code_fits_the_page() -> None:
    lines = [line for cell in read_notebook(NOTEBOOK) if cell.kind == "code" for line in cell.text.splitlines()]
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_installs_what_is_not_released(page: Path) -> None:
    """There is no release yet: docs/install.md says what works, and the other pages link to it."""
    text = page.read_text("utf-8")
    assert re.findall(r"pip install (?:-\S+ )*['\"]?fedveca", text) == []
    if "pip install '.[" in text or "pip install ." in text:
        assert page.name == "install.md" or re.search(r"\]\([\w/.]*install\.md", text), "link to docs/install.md"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_use_the_words_of_the_glossary(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", page.read_text("utf-8"), flags=re.S)
    assert [m[0] for pattern in NOT_SAID for m in re.finditer(pattern, text)] == []


def test_readme_on_one_screen() -> None:
    text = README.read_text("utf-8")
    first = text.split("## ")[0] + text.split("## ")[1]
    assert "images/first.svg" in first
    assert "make demo" in first
    assert "make test" in first
    assert "10.1109/TPDS.2024.3454203" in first
    assert "@article{" in text
    assert "at most as many local steps" in text
    assert len(text.splitlines()) <= 150


def test_the_numbers_of_which_method_are_those_of_other_pages() -> None:
    """Except for sections with a command of their own, which makes their numbers."""
    sections = (DOCS / "choose.md").read_text("utf-8").split("\n## ")
    own = re.compile(r"```bash\n(fedveca compare|python -m studies)")
    quoted = "\n".join(section for section in sections if not own.search(section))
    numbers = set(re.findall(r"\d+\.\d+|(?<!\d)\d\d(?= %)", quoted))
    assert len(numbers) > 20
    others = " ".join(page.read_text("utf-8") for page in PAGES if page.name != "choose.md" and page != README)
    assert sorted(n for n in numbers if not re.search(rf"(?<![\d.]){re.escape(n)}(?!\d)", others)) == []


def test_citations_agree() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    paper = cff["preferred-citation"]
    for page in (README, DOCS / "citation.md"):
        text = page.read_text("utf-8")
        entry = " ".join(re.sub(r"[{}]", "", re.findall(r"@article\{(.+?)^\}", text, re.M | re.S)[0]).split())
        assert paper["title"] in entry
        assert paper["doi"] in entry
        names = " and ".join(f"{a['family-names']}, {a['given-names']}" for a in paper["authors"])
        assert names in entry
    assert cff["license"] == "Apache-2.0"


# what is generated from the source


def test_every_setting_is_in_the_reference_once() -> None:
    page = make_settings()
    assert sorted(name for names in group_settings().values() for name in names) == sorted(FIELDS)
    for name in FIELDS:
        assert page.count(f"| `{name}` {{ #{name} }} |") == 1
    assert all(f"**`{name}`**" in page for name in presets())


def test_every_command_and_option_is_in_the_reference() -> None:
    page = make_commands()
    commands = list_commands()
    assert {"fedveca run", "fedveca compare", "fedveca deploy local"} <= {*commands}
    for name, parser in commands.items():
        assert re.search(rf"^#+ {name}$", page, re.M)
        for action in parser._actions:
            if action.option_strings and action.help != "==SUPPRESS==" and "--help" not in action.option_strings:
                assert action.option_strings[0] in page, f"{name} {action.option_strings[0]}"


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "reference.md").read_text("utf-8")
    assert "<!-- generated: names -->" in page
    shown = set(re.findall(r"^::: fedveca\.([\w.]+)", page + make_names(), re.M))
    public = {name for name in fedveca.__all__ if name not in ("__version__", "testing")}
    assert sorted(public - shown) == []
    assert "testing.check_algorithm" in shown


# what pages show as output

# Messages have a test of their own; README's comparison is a longer run of the one in start.md.
SHOWN_ELSEWHERE = ("troubleshooting.md", "README.md")


def test_messages_of_the_troubleshooting_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is what its command prints, to the letter."""
    monkeypatch.chdir(tmp_path)
    page = DOCS / "troubleshooting.md"
    shown = list(find_outputs(page))
    assert len(shown) >= 10
    for output in shown:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            assert main(shlex.split(output.code)[1:]) == 2
        flat = re.sub(r"\s+", "", out.getvalue())
        assert flat == re.sub(r"\s+", "", output.text), f"{output.code}: run python docs/outputs.py"
    headings = re.findall(r"^### (.+)$", page.read_text("utf-8"), re.M)
    assert len(headings) == len(set(headings))


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in find_pages() if p.name not in SHOWN_ELSEWHERE], ids=name_of)
def test_outputs_are_those_of_the_commands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers aside, which depend on the machine: `python docs/outputs.py` writes them anew."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # small operations: a second thread waits for the cores of other tests
    for at, output in enumerate(find_outputs(page)):
        folder = tmp_path / str(at)
        folder.mkdir()
        assert mask(produce(output, folder)) == mask(output.text), f"{output.code}: run python docs/outputs.py"


def test_the_recording_of_a_terminal_is_never_silent_for_long() -> None:
    """`python docs/terminal.py` records it anew, from the command that `make demo` runs."""
    drawn = (DOCS / "images" / "terminal.svg").read_text("utf-8")
    found = re.search(r'data-longest-silence="([\d.]+)"', drawn)
    assert found is not None
    assert float(found[1]) <= 3


def test_one_frame_of_the_recording_is_shown_at_a_time() -> None:
    drawn = (DOCS / "images" / "terminal.svg").read_text("utf-8")
    timed = re.findall(r'class="f" style="animation-delay:([\d.]+)s;animation-duration:([\d.]+)s"', drawn)
    last = re.search(r'class="f last" style="animation-delay:([\d.]+)s"', drawn)
    assert last is not None
    assert len(timed) == drawn.count('class="f"') > 10
    starts = [*(float(begin) for begin, _ in timed), float(last[1])]
    for (begin, duration), after in zip(timed, starts[1:], strict=True):
        assert abs(float(begin) + float(duration) - after) < 0.02
    assert "forwards" not in drawn.split(".f.last")[0]


@pytest.mark.slow
def test_the_notebook_runs_and_shows_something() -> None:
    cells = read_notebook(NOTEBOOK)
    shown = run_cells(cells)
    assert all(outputs for cell, outputs in zip(cells, shown, strict=True) if cell.kind == "code")
    kinds = [output.kind for outputs in shown for output in outputs]
    assert kinds.count("html") == 2  # the run's card and a figure
    texts = [output.text for outputs in shown for output in outputs if output.kind == "text"]
    assert any("participation=1.5 is out of range" in text for text in texts)


def test_the_notebook_is_stored_without_outputs() -> None:
    book = json.loads(NOTEBOOK.read_text("utf-8"))
    assert book["nbformat"] == 4
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in book["cells"])


# the recording of the terminal


def test_the_recording_is_of_what_make_demo_runs() -> None:
    picture = ElementTree.parse(DOCS / "images" / "terminal.svg").getroot()
    space = {"s": "http://www.w3.org/2000/svg"}
    assert picture.findtext("s:title", namespaces=space) == f"Terminal: {find_demo()}"
    last = picture.findtext("s:desc", namespaces=space) or ""
    assert all(name in last.lower() for name in ("fedveca", "fedavg", "scaffold", "report"))
    assert float(picture.attrib["data-longest-silence"]) > 0
    assert len(picture.findall("s:g", space)) >= 2


def test_a_screen_draws_what_a_terminal_would() -> None:
    screen = Screen(20)
    screen.feed("round 1\r\n\x1b[1A\x1b[2K\x1b[1mround\x1b[0m \x1b[32m2\x1b[39m\r\nabcdefghijklmnopqrstuvwxyz")
    frame = screen.show(0.0)
    assert frame.text() == "round 2\nabcdefghijklmnopqrst\nuvwxyz"
    assert frame.lines[0][0] == ("r", Look(bold=True))
    assert frame.lines[0][6] == ("2", Look(colour="#6fcf8a"))
    screen.feed("\x1b[?25l\x1b]8;;file:///x\x1b\\link\x1b]8;;\x1b\\")
    assert screen.show(0.0).text().endswith("uvwxyzlink")
