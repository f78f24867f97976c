"""Every code block of README and docs runs, every link resolves, every number and line named there is right.

A ```python block runs as it stands; those of one page share their names and a folder. Of ```bash and indented blocks,
lines that start with `fedveca` run, with few rounds and the SVM in place of a CNN. `<!-- not run: reason -->` before a
block leaves it out.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import pkgutil
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import fedveca
from fedveca.algorithms.registry import paper_methods
from fedveca.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
QUICK = {"run": ["rounds=2", "probe=16", "tau_0=2", "tau_all=0"]}
QUICK["compare"] = [*QUICK["run"], "--seeds", "1", "--workers", "1"]
NOT_RUN = {  # lines that cannot run here, by pattern, and why
    r"\.\.\.|\b[A-Z_]{3,}\b": "names a folder or a value of the reader's",
    r"^fedveca --version": "exits on its own; tests/unit/cli/test_cli.py runs it",
    r"^fedveca board": "serves until Ctrl-C; tests/browser/test_board_page.py opens it",
    r"^fedveca deploy": "minutes; tests/system/test_flower.py runs it",
    r"^fedveca reproduce": "hours; tests/system/test_reproduce.py runs it small",
    r"^fedveca data get": "needs a network; tests/unit/tasks/test_data.py runs it",
    r"engine=ray": "starts a cluster; tests/system/test_ray.py runs it",
    r"cifar10|fashion-mnist": "needs data of a hundred megabytes; tests/unit/tasks/test_data.py reads them",
}
BLOCK = re.compile(r"(?P<mark><!-- not run: [^>]+ -->\s*)?^```(?P<kind>\w*)[^\n]*\n(?P<code>.*?)^```", re.M | re.S)


class Code(NamedTuple):
    kind: str  # python or shell
    text: str


def blocks(page: Path) -> list[Code]:
    text, found = page.read_text(), []
    for match in BLOCK.finditer(text):
        kind = {"bash": "shell", "sh": "shell", "console": "shell"}.get(match["kind"], match["kind"])
        if kind in ("python", "shell") and not match["mark"]:
            found.append((match.start(), Code(kind, match["code"])))
    bare = BLOCK.sub(lambda m: "\n" * m[0].count("\n"), text)
    for match in re.finditer(r"(<!-- not run: [^>]+ -->\s*)?((?:^ {4}\S.*\n)+)", bare, re.M):
        if not match[1] and re.search(r"^ {4}(\$ )?fedveca ", match[2], re.M):
            found.append((match.start(), Code("shell", match[2])))
    return [code for _, code in sorted(found)]


def commands(shell: str) -> list[str]:
    """The lines of a block that start with fedveca, continued ones joined."""
    lines = (line.strip().removeprefix("$ ") for line in shell.replace("\\\n", " ").splitlines())
    return [line for line in lines if line.startswith("fedveca ")]


def quick(line: str) -> list[str]:
    words = shlex.split(line, comments=True)[1:]
    if words[:2] == ["run", "--resume"] or "--resume" in words:
        return words
    lighter = ["model=svm"] if any(word.startswith("cnn-") for word in words) else []
    lighter += ["clients=1000"] if "clients=100000" in words else []  # tests/unit/tasks/test_data.py has them all
    return [*words, *QUICK.get(words[0], []), *lighter]


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_code_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    if "mnist" in "".join(code.text for code in blocks(page)):
        monkeypatch.setenv("FEDVECA_DATA", request.getfixturevalue("mnist_dir"))
    names: dict[str, Any] = {"__name__": "__main__"}
    for code in blocks(page):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            if code.kind == "python":
                exec(compile(code.text, str(page), "exec"), names)
                continue
            for line in commands(code.text):
                if not any(re.search(pattern, line.split("#")[0]) for pattern in NOT_RUN):
                    assert main(quick(line)) == 0, f"{line}\n{said.getvalue()}"


def test_blocks_are_found() -> None:
    found = {page.name: [code.kind for code in blocks(page)] for page in PAGES}
    assert found["README.md"].count("python") >= 1
    assert found["data.md"] == ["python"] * 5
    assert found["resume.md"] == ["shell", "python", "python"]
    assert commands("    fedveca run \\\n rounds=2  # so\n    make demo\n") == ["fedveca run   rounds=2  # so"]
    assert quick("fedveca run rounds=9  # so")[:2] == ["run", "rounds=9"]


def test_few_lines_are_left_out() -> None:
    lines = [line for page in PAGES for code in blocks(page) if code.kind == "shell" for line in commands(code.text)]
    left = [line for line in lines if any(re.search(pattern, line.split("#")[0]) for pattern in NOT_RUN)]
    assert len(left) <= len(lines) / 2, left


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_resolve(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor and file.suffix == ".md" and file.name != "reference.md":
            heads = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
            slugs = [re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.lower()).strip()) for head in heads]
            assert anchor in slugs, f"{page.name}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    text = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text())
    named = re.findall(r"[\w/-]+\.md", json.dumps(yaml.safe_load(text)["nav"]))
    missing = {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")} - set(named)
    assert not missing, f"add to nav in mkdocs.yml: {sorted(missing)}"
    made = {"tutorial.md"}  # from the notebook, when the site is built
    assert all((DOCS / name).exists() for name in {*named} - made)


def test_the_home_page_links_every_page() -> None:
    home = (DOCS / "index.md").read_text()
    pages = {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")} - {"index.md"}
    assert sorted(page for page in pages if f"]({page})" not in home) == []


METHODS = sorted((DOCS / "methods").glob("*.md"))


@pytest.mark.parametrize("page", METHODS, ids=lambda p: p.stem)
def test_lines_named_are_those_lines(page: Path) -> None:
    named = re.findall(r"\[`(src/[\w/]+\.py):(\d+)`\]\([^)]+\) `([^`]+)`", page.read_text())
    assert named
    for file, number, code in named:
        lines = (ROOT / file).read_text().splitlines()
        right = [i for i, line in enumerate(lines, 1) if code in line]
        assert int(number) in right, f"{page.name}: {code} is on line {right} of {file}, not {number}"


@pytest.mark.parametrize("page", [p for p in METHODS if p.stem in paper_methods()], ids=lambda p: p.stem)
def test_results_of_a_method_are_those_measured(page: Path) -> None:
    text = page.read_text()
    for entry in json.loads((DOCS / "results" / "table1.json").read_text())["results"]:
        row = next(row for row in entry["rows"] if row["method"] == page.stem)
        cells = [f"{row['tau_all']:,.0f}"]
        for name in ("test_accuracy", "test_loss"):
            cells += [f"{100 * row[w][name]['mean']:.2f} ±{100 * row[w][name]['std']:.2f}" for w in ("kept", "last")]
            cells.append(f"{100 * row['paper'][name]:.2f}")
        assert f" | {' | '.join(cells)} |\n" in text


def test_examples_in_docstrings() -> None:
    tried = 0
    for info in pkgutil.walk_packages(fedveca.__path__, "fedveca."):
        if info.name.endswith(("kernels", "__main__")) or ".views" in info.name or ".commands" in info.name:
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:
            continue
        result = doctest.testmod(module)
        assert result.failed == 0, info.name
        tried += result.attempted
    assert tried >= 6


def test_every_test_that_a_page_names_exists() -> None:
    """The threat model names the test that shows each of its lines."""
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    count = 0
    for page in PAGES:
        for file, name in re.findall(r"`(?:tests/[\w/]*)?(test_\w+\.py)(?:::(\w+))?`", page.read_text()):
            assert file in files, f"{page.name} names {file}"
            assert not name or f"def {name}(" in files[file], f"{page.name} names {name} of {file}"
            count += page.name == "deploy.md"
    assert count > 10
