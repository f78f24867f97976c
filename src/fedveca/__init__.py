"""FedVeca: federated learning that chooses how many local steps each client takes.

from fedveca import Experiment, run
done = run(Experiment(rounds=20), progress=True)
print(done.summary["kept"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedveca.version import __version__ as __version__

if TYPE_CHECKING:  # the same names for type checkers: a test compares both
    from fedveca import models as models
    from fedveca import testing as testing
    from fedveca.algorithms import AdaComm as AdaComm
    from fedveca.algorithms import AdaptiveTau as AdaptiveTau
    from fedveca.algorithms import Corrected as Corrected
    from fedveca.algorithms import EqualTime as EqualTime
    from fedveca.algorithms import FedACG as FedACG
    from fedveca.algorithms import FedAvg as FedAvg
    from fedveca.algorithms import FedDyn as FedDyn
    from fedveca.algorithms import FedExP as FedExP
    from fedveca.algorithms import FedLC as FedLC
    from fedveca.algorithms import FedNova as FedNova
    from fedveca.algorithms import FedProx as FedProx
    from fedveca.algorithms import FedVeca as FedVeca
    from fedveca.algorithms import FedVecaM as FedVecaM
    from fedveca.algorithms import FedVecaTime as FedVecaTime
    from fedveca.algorithms import MimeLite as MimeLite
    from fedveca.algorithms import Moon as Moon
    from fedveca.algorithms import Scaffnew as Scaffnew
    from fedveca.algorithms import Scaffold as Scaffold
    from fedveca.algorithms.hyper import hyper as hyper
    from fedveca.algorithms.registry import method as method
    from fedveca.cohorts.local.cohort import LocalCohort as LocalCohort
    from fedveca.deploy.node import answer as answer
    from fedveca.deploy.server import serve as serve
    from fedveca.errors import UserError as UserError
    from fedveca.runs import statistics as statistics
    from fedveca.runs.build import build as build
    from fedveca.runs.compare import compare as compare
    from fedveca.runs.experiment import Experiment as Experiment
    from fedveca.runs.federate import RunningStatistics as RunningStatistics
    from fedveca.runs.federate import federate as federate
    from fedveca.runs.folder import Run as Run
    from fedveca.runs.interrupt import Stopped as Stopped
    from fedveca.runs.observers import Observer as Observer
    from fedveca.runs.overrides import CustomObjects as CustomObjects
    from fedveca.runs.presets import presets as presets
    from fedveca.runs.run import resume as resume
    from fedveca.runs.run import run as run
    from fedveca.runs.sweep import sweep as sweep
    from fedveca.tasks.custom import from_arrays as from_arrays
    from fedveca.tasks.custom import from_hugging_face as from_hugging_face
    from fedveca.tasks.custom import from_partitioner as from_partitioner
    from fedveca.tasks.custom import from_torch as from_torch
    from fedveca.tasks.custom import pad_sequences as pad_sequences
    from fedveca.tasks.datasets.dataset import Dataset as Dataset
    from fedveca.tasks.losses import WeightedCrossEntropy as WeightedCrossEntropy
    from fedveca.tasks.metrics import metric as metric
    from fedveca.views.publish import compare_table as compare_table
    from fedveca.views.publish import report as report

_PUBLIC = {  # by module, which is loaded when one of its names is first used
    "algorithms": "AdaComm AdaptiveTau Corrected EqualTime FedACG FedAvg FedDyn FedExP FedLC FedNova FedProx FedVeca "
    "FedVecaM FedVecaTime MimeLite Moon Scaffnew Scaffold",
    "algorithms.hyper": "hyper",
    "algorithms.registry": "method",
    "cohorts.local.cohort": "LocalCohort",
    "deploy.node": "answer",
    "deploy.server": "serve",
    "errors": "UserError",
    "runs.build": "build",
    "runs.compare": "compare",
    "runs.experiment": "Experiment",
    "runs.presets": "presets",
    "runs.federate": "RunningStatistics federate",
    "runs.folder": "Run",
    "runs.interrupt": "Stopped",
    "runs.observers": "Observer",
    "runs.overrides": "CustomObjects",
    "runs.run": "resume run",
    "runs.sweep": "sweep",
    "tasks.custom": "from_arrays from_hugging_face from_partitioner from_torch pad_sequences",
    "tasks.datasets.dataset": "Dataset",
    "tasks.losses": "WeightedCrossEntropy",
    "tasks.metrics": "metric",
    "views.publish": "compare_table report",
}
_MODULES = {"models": "models", "statistics": "runs.statistics", "testing": "testing"}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = sorted([*_HOMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> object:
    """Loads a public name, and PyTorch with it, when it is used."""
    if name in _MODULES:
        return import_module(f"fedveca.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(import_module(f"fedveca.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedveca' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
