"""FedVeca: federated learning whose clients are told how far to walk.

from fedveca import Experiment, run
print(run(Experiment(rounds=20)).summary["kept"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedveca.version import __version__

if TYPE_CHECKING:
    import fedveca.runs.statistics as statistics
    import fedveca.testing as testing
    from fedveca.algorithms import Corrected, FedAvg, FedNova, FedProx, FedVeca, Scaffold
    from fedveca.cohorts.local.cohort import LocalCohort
    from fedveca.deploy.node import answer
    from fedveca.deploy.server import serve
    from fedveca.runs.build import build
    from fedveca.runs.compare import compare
    from fedveca.runs.experiment import Experiment
    from fedveca.runs.federate import federate
    from fedveca.runs.folder import Run
    from fedveca.runs.run import resume, run
    from fedveca.tasks.custom import from_arrays, from_hugging_face, from_partitioner, from_torch
    from fedveca.tasks.datasets.dataset import Dataset

_HOMES = {
    "FedAvg": "algorithms",
    "FedNova": "algorithms",
    "FedProx": "algorithms",
    "FedVeca": "algorithms",
    "Scaffold": "algorithms",
    "LocalCohort": "cohorts.local.cohort",
    "compare": "runs.compare",
    "Experiment": "runs.experiment",
    "build": "runs.build",
    "federate": "runs.federate",
    "Run": "runs.folder",
    "resume": "runs.run",
    "run": "runs.run",
    "Dataset": "tasks.datasets.dataset",
    "from_arrays": "tasks.custom",
    "from_hugging_face": "tasks.custom",
    "from_partitioner": "tasks.custom",
    "from_torch": "tasks.custom",
    "answer": "deploy.node",
    "serve": "deploy.server",
    "Corrected": "algorithms",
}
__all__ = [
    "Corrected",
    "Dataset",
    "Experiment",
    "FedAvg",
    "FedNova",
    "FedProx",
    "FedVeca",
    "LocalCohort",
    "Run",
    "Scaffold",
    "__version__",
    "answer",
    "build",
    "compare",
    "federate",
    "from_arrays",
    "from_hugging_face",
    "from_partitioner",
    "from_torch",
    "resume",
    "run",
    "serve",
    "statistics",
    "testing",
]


def __getattr__(name: str) -> Any:
    """Loads PyTorch only when something is used."""
    if name in ("statistics", "testing"):
        return import_module("fedveca.runs.statistics" if name == "statistics" else "fedveca.testing")
    if name in _HOMES:
        return getattr(import_module(f"fedveca.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedveca' has no attribute {name!r}")
