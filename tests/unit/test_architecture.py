"""The shape of the package: arrows point one way, names exist once, records are typed, a round is a short way."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedveca"
LEVELS = {  # a room imports only rooms of a lower level
    "errors": 0,
    "imports": 0,
    "version": 0,
    "plugins": 0,
    "safe_files": 0,
    "algorithms": 1,
    "tasks": 2,
    "models": 3,
    "cohorts": 3,
    "runs": 4,
    "monitor": 4.5,
    "trackers": 5,
    "views": 5,
    "deploy": 5,
    "testing": 5,
    "cli": 6,
    "__init__": 7,
    "__main__": 7,
}
FILES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
MODULES = {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}
MOST_ANY = 342 // 3  # a third of what version 0.1.0 had
MOST_STATIONS = 20
MOST_LINES = 400  # of a file
PROGRAMS = {"deploy.node", "deploy.superlink", "deploy.private_api"}  # they start `python -m ...`
REGISTRIES = {"algorithms.registry", "tasks.models.cnn", "runs.worker_server"}  # they name what is in their own room


def room(module: str) -> str:
    return module.partition(".")[0]


def imports(module: str) -> Iterator[str]:
    """The modules of the package that a module imports anywhere in its text: lazily or for types only, too."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            parts = name.split(".")
            if parts[0] == "fedveca":
                inner = ".".join(parts[1:])
                yield inner if inner in MODULES else inner.rpartition(".")[0] or "__init__"


GRAPH = {module: sorted(set(imports(module)) - {module}) for module in MODULES}


def test_no_arrow_points_back() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        for other in others
        if room(module) != room(other) and LEVELS[room(module)] <= LEVELS[room(other)]
    ]
    assert not wrong, wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    state: dict[str, int] = {}

    def visit(module: str, path: list[str]) -> None:
        assert state.get(module) != 1, f"a circle of imports: {' -> '.join([*path[path.index(module) :], module])}"
        if module not in state:
            state[module] = 1
            for other in GRAPH[module]:
                visit(other, [*path, module])
            state[module] = 2

    for module in MODULES:
        visit(module, [])


def test_modules_are_named_by_text_in_two_places_only() -> None:
    """A module's name in a string is an import that the graph does not see."""
    found = {
        name
        for name, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_module(node.value)
    }
    assert found <= {"__init__", "plugins", *PROGRAMS, *REGISTRIES}, found


def _is_module(text: str) -> bool:
    match = re.fullmatch(r"fedveca\.([\w.]+)(?::\w+)?", text)
    return match is not None and match[1] in MODULES


def defined(tree: ast.Module) -> Iterator[str]:
    """The public names that a module defines at its top."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from (part.id for part in parts if isinstance(part, ast.Name))


def test_no_public_name_is_defined_in_two_rooms() -> None:
    homes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for module, tree in MODULES.items():
        for name in defined(tree):
            if not name.startswith("_"):
                homes[name][room(module)].append(module)
    twice = {name: dict(rooms) for name, rooms in homes.items() if len(rooms) > 1}
    assert not twice, "\n".join(f"{name}: {rooms}" for name, rooms in sorted(twice.items()))


def test_a_file_is_about_one_subject_and_short() -> None:
    lines = {module: len(path.read_text("utf-8").splitlines()) for module, path in FILES.items()}
    long = {module: count for module, count in lines.items() if count > MOST_LINES}
    assert not long, f"split by subject what has more than {MOST_LINES} lines: {long}"


def test_any_is_rare() -> None:
    count = sum(isinstance(node, ast.Name) and node.id == "Any" for tree in MODULES.values() for node in ast.walk(tree))
    assert count <= MOST_ANY, f"{count} uses of Any"


@pytest.mark.parametrize("area", ["algorithms", "runs", "trackers", "views"])
def test_what_is_recorded_is_typed(area: str) -> None:
    """No `dict[str, Any]` where records pass; settings that are not checked yet are not records."""
    found = [
        f"{FILES[module].relative_to(ROOT)}:{node.lineno}"
        for module, tree in MODULES.items()
        if room(module) == area and module not in ("runs.experiment", "runs.overrides")
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]"
    ]
    assert not found, found


def test_the_way_of_one_round_is_short_and_exists() -> None:
    """CONTRIBUTING lists the stations from the command line to the line in rounds.jsonl, as file and function."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## The way of one round")[2].partition("\n## ")[0]
    stations = re.findall(r"^\d+\. `([\w/]+\.py)`:? `([\w.]+)`", text, re.MULTILINE)
    assert 8 < len(stations) <= MOST_STATIONS
    for file, name in stations:
        source = (SOURCE / file).read_text("utf-8")
        for part in name.split("."):
            assert re.search(rf"\b(def|class) {part}\b", source), f"{file} has no {name}"


def test_no_two_test_files_have_one_name() -> None:
    """Pytest imports test files by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
