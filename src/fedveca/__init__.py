"""FedVeca: federated learning whose clients are told how far to walk.

    from fedveca import Experiment, run
    print(run(Experiment(rounds=20)).summary["kept"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedveca.version import __version__

if TYPE_CHECKING:
    from fedveca.algorithms import FedAvg, FedNova, FedProx, FedVeca, Scaffold
    from fedveca.cohorts.local import Local
    from fedveca.deploy.node import answer
    from fedveca.deploy.serve import serve
    from fedveca.runs.build import build
    from fedveca.runs.compare import compare
    from fedveca.runs.experiment import Experiment
    from fedveca.runs.federate import federate
    from fedveca.runs.record import Run
    from fedveca.runs.run import resume, run

_HOMES = {
    "FedAvg": "algorithms", "FedNova": "algorithms", "FedProx": "algorithms", "FedVeca": "algorithms",
    "Scaffold": "algorithms", "Local": "cohorts.local", "compare": "runs.compare", "Experiment": "runs.experiment",
    "build": "runs.build", "federate": "runs.federate", "Run": "runs.record", "resume": "runs.run",
    "run": "runs.run", "answer": "deploy.node", "serve": "deploy.serve",
}
__all__ = [
    "Experiment", "FedAvg", "FedNova", "FedProx", "FedVeca", "Local", "Run", "Scaffold", "__version__", "answer",
    "build", "compare", "federate", "resume", "run", "serve",
]


def __getattr__(name: str) -> Any:
    """Loads PyTorch only when something is used."""
    if name in _HOMES:
        return getattr(import_module(f"fedveca.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedveca' has no attribute {name!r}")
