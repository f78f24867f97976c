"""FedVeca: federated learning whose clients are told how far to walk.

    from fedveca import Experiment, run
    print(run(Experiment(rounds=20)).summary["kept"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedveca.version import __version__

if TYPE_CHECKING:
    import fedveca.testing as testing
    from fedveca.algorithms import Corrected, FedAvg, FedNova, FedProx, FedVeca, Scaffold
    from fedveca.cohorts.local import Local
    from fedveca.deploy.node import answer
    from fedveca.deploy.serve import serve
    from fedveca.runs.build import build
    from fedveca.runs.compare import compare
    from fedveca.runs.experiment import Experiment
    from fedveca.runs.federate import federate
    from fedveca.runs.record import Run
    from fedveca.runs.run import resume, run
    from fedveca.tasks.data import Dataset
    from fedveca.tasks.own import from_arrays, from_hugging_face, from_partitioner, from_torch

_HOMES = {
    "FedAvg": "algorithms", "FedNova": "algorithms", "FedProx": "algorithms", "FedVeca": "algorithms",
    "Scaffold": "algorithms", "Local": "cohorts.local", "compare": "runs.compare", "Experiment": "runs.experiment",
    "build": "runs.build", "federate": "runs.federate", "Run": "runs.record", "resume": "runs.run",
    "run": "runs.run", "Dataset": "tasks.data", "from_arrays": "tasks.own", "from_hugging_face": "tasks.own",
    "from_partitioner": "tasks.own", "from_torch": "tasks.own", "answer": "deploy.node", "serve": "deploy.serve",
    "Corrected": "algorithms",
}
__all__ = [
    "Corrected", "Dataset", "Experiment", "FedAvg", "FedNova", "FedProx", "FedVeca", "Local", "Run", "Scaffold",
    "__version__", "answer", "build", "compare", "federate", "from_arrays", "from_hugging_face", "from_partitioner",
    "from_torch", "resume", "run", "serve", "testing",
]


def __getattr__(name: str) -> Any:
    """Loads PyTorch only when something is used."""
    if name == "testing":
        return import_module("fedveca.testing")
    if name in _HOMES:
        return getattr(import_module(f"fedveca.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedveca' has no attribute {name!r}")
