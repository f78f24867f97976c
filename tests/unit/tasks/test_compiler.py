"""PyTorch's compiler and other slow modules stay out of a plain run on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SLOW = (
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "sklearn",
    "pandas",
    "plotly",
    "matplotlib",
    "scipy",
    "jinja2",
    "ray",
    "flwr",
)
RUNS = """
import sys
from pathlib import Path
from fedveca.cli import main

def check(*modules):
    loaded = [name for name in modules if name in sys.modules]
    assert not loaded, f"{{' '.join(settings)}} has loaded {{loaded}}"

Path("perceptrons.py").write_text('''
from torch import nn
def with_dropout(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, classes))
''')
sys.path.insert(0, ".")
for settings in (
    ["model=cnn"], ["model=perceptrons:with_dropout"], ["model=mlp"], ["model=mlp", "clients=10"], ["model=logistic"]
):
    assert main(["run", "digits-case3", "rounds=1", *settings, "--device", "cpu", "--quiet"]) == 0
    check(*{slow})
"""


def run_code(code: str, cwd: Path | None = None) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_a_plain_run_on_the_cpu_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    run_code(RUNS.format(slow=SLOW), tmp_path)
