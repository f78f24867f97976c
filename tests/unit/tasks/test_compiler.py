"""PyTorch's compiler and other slow modules stay out of a plain run on the CPU, and load where they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SLOW = (
    "torch._dynamo",
    "torch._inductor",
    "sklearn",
    "pandas",
    "plotly",
    "matplotlib",
    "scipy",
    "jinja2",
    "ray",
    "flwr",
)
SYMBOLS = ("sympy", "torch.fx.experimental.symbolic_shapes")  # PyTorch loads them for cross-entropy under vmap
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
for settings in (["model=cnn"], ["model=perceptrons:with_dropout"]):
    assert main(["run", "digits-case3", "rounds=1", *settings, "--device", "cpu", "--quiet"]) == 0
    check(*{slow}, *{symbols})
for settings in (["model=mlp"], ["model=mlp", "clients=10"], ["model=logistic"]):
    assert main(["run", "digits-case3", "rounds=1", *settings, "--device", "cpu", "--quiet"]) == 0
    check(*{slow})
"""
GRADIENTS = """
import sys, torch
from torch.func import grad, vmap
from fedveca.tasks.compiler import delay_compiler

def slopes():
    x = torch.linspace(-1, 1, 12).view(3, 4)
    return vmap(grad(lambda v: v.sin().pow(2).sum()))(x)

delay_compiler()
before = slopes()
assert "torch._dynamo" not in sys.modules
autograd = torch._dynamo.compiled_autograd
assert autograd.compiled_autograd_enabled is False and "torch._dynamo" in sys.modules
assert autograd is not torch._dynamo.compiled_autograd
assert torch._dynamo.compiled_autograd is sys.modules["torch._dynamo.compiled_autograd"]
delay_compiler()
assert torch._dynamo is sys.modules["torch._dynamo"]
assert torch.equal(slopes(), before)
"""
COMPILED = """
import sys, torch
from fedveca.tasks.compiler import delay_compiler
delay_compiler()
assert torch.equal(torch.compile(torch.sin, backend="eager")(torch.ones(3)), torch.ones(3).sin())
assert torch._dynamo is sys.modules["torch._dynamo"] and torch._dynamo.__spec__
"""


def run_code(code: str, cwd: Path | None = None) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_a_plain_run_on_the_cpu_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    run_code(RUNS.format(slow=SLOW, symbols=SYMBOLS), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("code", [GRADIENTS, COMPILED])
def test_whoever_uses_the_compiler_has_it(code: str) -> None:
    run_code(code)
