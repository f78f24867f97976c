"""Who runs the jobs: our engine, the plain loop and the peers, each peer in an environment of its own."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]  # of the repository
ENVIRONMENTS = HERE / ".envs"
TORCH = ("torch==2.13.0", "numpy")
# FedJAX calls jax.tree_map, which later releases dropped; the rest are the last to accept that release.
JAX = ("jax==0.4.30", "jaxlib==0.4.30", "dm-haiku==0.0.13", "optax==0.2.3", "chex==0.1.86")
HEAVY = "needs a process of some 700 MB for each client, or a new process for each client in each round"


class Engine(NamedTuple):
    """A module of peers/, what it needs and what it cannot do."""

    module: str
    requirements: tuple[str, ...] = ()  # none: the interpreter that runs the benchmark
    options: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # whose versions are recorded with those of the requirements
    absent: Mapping[str, str] = MappingProxyType({})  # job -> reason


ENGINES = {
    "plain": Engine("plain", TORCH),
    "ours": Engine("ours", packages=("fedveca", "torch", "numpy")),
    "ours-probe": Engine("ours", options=("--method", "probe"), packages=("fedveca", "torch", "numpy")),
    "ours-fedveca": Engine("ours", options=("--method", "fedveca"), packages=("fedveca", "torch", "numpy")),
    "flower": Engine("flower", (*TORCH, "flwr[simulation]==1.41.0"), packages=("ray",)),
    "pfl": Engine("pfl", (*TORCH, "pfl==0.6.0")),
    "fluke": Engine("fluke", (*TORCH, "fluke-fl==0.8.1")),
    "fedlab": Engine("fedlab", (*TORCH, "fedlab==1.3.0")),
    "fedjax": Engine("fedjax", ("fedjax==0.0.17", *JAX, "numpy")),
    "nvflare": Engine(
        "nvflare",
        (*TORCH, "nvflare==2.9.0"),
        absent={"svm-1000": "its simulator takes at most 100 clients", "cnn-50": HEAVY},
    ),
}


def prepare(name: str) -> Path:
    """The engine's interpreter; its environment is made on the first call and whenever its requirements change."""
    engine = ENGINES[name]
    if not engine.requirements:
        return Path(sys.executable)
    folder = ENVIRONMENTS / name
    python, made_for = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join(engine.requirements) + "\n"
    if made_for.exists() and made_for.read_text() == wanted:
        return python
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"making the environment of {name}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *engine.requirements], check=True)
    made_for.write_text(wanted)
    return python


def versions(name: str, python: Path) -> dict[str, str]:
    """The installed versions of what the engine names."""
    engine = ENGINES[name]
    names = sorted({re.split(r"[\[=<>]", line)[0] for line in engine.requirements} | set(engine.packages))
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
