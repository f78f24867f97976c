"""Every script under examples/ runs, and ends well."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from fedveca.testing import check_algorithm

EXAMPLES = Path(__file__).parents[2] / "examples"
SHARES = {  # scripts, and what their last percentage must pass (chance is 10, 33, 20, 20, 10, 10, 10, 63, 40, 18)
    "from_python.py": 50,
    "custom_arrays.py": 75,
    "custom_method.py": 95,
    "fedper.py": 95,
    "fedntd.py": 60,
    "qffl.py": 64.3,
    "power_of_choice.py": 72,
    "hugging_face.py": 85,
    "text.py": 30,
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {  # scripts that define a method: its class, and other settings
    "custom_method.py": ("Ditto", {"lam": 1.0}),
    "fedper.py": ("FedPer", {"personal": "body"}),
    "fedntd.py": ("FedNTD", {"beta": 0.3, "temperature": 3.0}),
    "qffl.py": ("QFedAvg", {"q": 0.0}),
    "power_of_choice.py": ("PowerOfChoice", {"d": 2}),
}


def ran(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_it_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = re.findall(r"(\d+\.\d) %", ran(name, capsys))
    assert float(said[-1]) > SHARES[name]


@pytest.mark.slow
def test_regression(capsys: pytest.CaptureFixture[str]) -> None:
    out = ran("regression.py", capsys)
    assert all(float(v) > 0.85 for v in re.findall(r"R squared (\d\.\d+)", out))
    assert out.count("R squared") == 3


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert float(ran("table.py", capsys).split()[-1]) > 0.95


@pytest.mark.slow
def test_lora(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    out = ran("lora.py", capsys)
    whole, adapters = (int(v.replace(",", "")) for v in re.findall(r"bytes per round, .*: +([\d,]+)", out))
    assert 10 * adapters < whole
    first, last = (float(v) for v in re.findall(r"(?:first round|the last) (\d\.\d+)", out))
    assert last < first


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SHARES, "regression.py", "table.py", "lora.py"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_ones_own_is_short_and_keeps_the_contract(name: str) -> None:
    path = EXAMPLES / name
    assert len(path.read_text().splitlines()) < 60
    imports = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    allowed = {"dataclasses", "tempfile", "typing", "torch", "torch.nn.functional"}
    assert imports <= allowed | {"fedveca", "fedveca.algorithms", "fedveca.testing"}
    method = runpy.run_path(str(path))[METHODS[name][0]]
    for settings in ({"lr": 0.05}, {"lr": 0.01, **METHODS[name][1]}):
        check_algorithm(method(**settings))
