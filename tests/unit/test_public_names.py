"""The public names: one list, loaded when used, and the same for type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedveca
from fedveca import algorithms


def test_every_public_name_is_there_and_shown() -> None:
    assert dir(fedveca) == sorted(fedveca.__all__)
    for name in fedveca.__all__:
        assert getattr(fedveca, name) is not None
    assert {"presets", "report", "compare_table"} <= {*fedveca.__all__}
    assert {"UserError", "Observer", "CustomObjects", "metric", "method", "hyper", "statistics"} <= {*fedveca.__all__}


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(fedveca.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING")
    seen = {}
    for line in block.body:
        assert isinstance(line, ast.ImportFrom)
        for alias in line.names:
            assert alias.asname == alias.name  # else a strict checker does not re-export it
            seen[alias.name] = (line.module or "").removeprefix("fedveca").removeprefix(".")
    modules = {name: home.rpartition(".")[0] for name, home in fedveca._MODULES.items()}
    assert seen == fedveca._HOMES | modules


def test_type_checkers_see_the_names_of_the_algorithms_too() -> None:
    tree = ast.parse(Path(algorithms.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING")
    lines = [line for line in block.body if isinstance(line, ast.ImportFrom)]
    seen = {line.names[0].name: (line.module or "").removeprefix("fedveca.algorithms.") for line in lines}
    assert seen == algorithms._HOMES
    assert all(getattr(algorithms, name).__name__ for name in algorithms.__all__ if name != "Named")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        algorithms.nothing  # noqa: B018


def test_a_name_that_is_not_there_says_so_and_importing_loads_no_pytorch() -> None:
    code = (
        "import sys, fedveca; assert 'torch' not in sys.modules; fedveca.UserError; assert 'torch' not in sys.modules\n"
        "try: fedveca.nothing\nexcept AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'fedveca' has no attribute 'nothing'\n"
