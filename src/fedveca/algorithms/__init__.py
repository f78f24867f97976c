"""The method and its baselines: pure maths on flat vectors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the same names for type checkers: a test compares both
    from fedveca.algorithms.contract import Algorithm as Algorithm
    from fedveca.algorithms.contract import AskLoss as AskLoss
    from fedveca.algorithms.contract import Named as Named
    from fedveca.algorithms.contract import Order as Order
    from fedveca.algorithms.contract import Outputs as Outputs
    from fedveca.algorithms.contract import Report as Report
    from fedveca.algorithms.contract import RowLoss as RowLoss
    from fedveca.algorithms.contract import ServerState as ServerState
    from fedveca.algorithms.contrib.adacomm import AdaComm as AdaComm
    from fedveca.algorithms.contrib.adaptivetau import AdaptiveTau as AdaptiveTau
    from fedveca.algorithms.contrib.corrected import Corrected as Corrected
    from fedveca.algorithms.contrib.equaltime import EqualTime as EqualTime
    from fedveca.algorithms.contrib.fedacg import FedACG as FedACG
    from fedveca.algorithms.contrib.feddyn import FedDyn as FedDyn
    from fedveca.algorithms.contrib.fedexp import FedExP as FedExP
    from fedveca.algorithms.contrib.fedlc import FedLC as FedLC
    from fedveca.algorithms.contrib.fedveca_time import FedVecaTime as FedVecaTime
    from fedveca.algorithms.contrib.fedvecam import FedVecaM as FedVecaM
    from fedveca.algorithms.contrib.mimelite import MimeLite as MimeLite
    from fedveca.algorithms.contrib.moon import Moon as Moon
    from fedveca.algorithms.contrib.scaffnew import Scaffnew as Scaffnew
    from fedveca.algorithms.fedavg import FedAvg as FedAvg
    from fedveca.algorithms.fednova import FedNova as FedNova
    from fedveca.algorithms.fedprox import FedProx as FedProx
    from fedveca.algorithms.fedveca import FedVeca as FedVeca
    from fedveca.algorithms.layout import Layout as Layout
    from fedveca.algorithms.scaffold import Scaffold as Scaffold

_HOMES = {  # by name; loaded when it is first used, so that names and ranges are known without PyTorch
    "AdaComm": "contrib.adacomm",
    "AdaptiveTau": "contrib.adaptivetau",
    "Algorithm": "contract",
    "AskLoss": "contract",
    "Corrected": "contrib.corrected",
    "EqualTime": "contrib.equaltime",
    "FedACG": "contrib.fedacg",
    "FedAvg": "fedavg",
    "FedDyn": "contrib.feddyn",
    "FedExP": "contrib.fedexp",
    "FedLC": "contrib.fedlc",
    "FedNova": "fednova",
    "FedProx": "fedprox",
    "FedVeca": "fedveca",
    "FedVecaM": "contrib.fedvecam",
    "FedVecaTime": "contrib.fedveca_time",
    "Layout": "layout",
    "MimeLite": "contrib.mimelite",
    "Moon": "contrib.moon",
    "Named": "contract",
    "Order": "contract",
    "Outputs": "contract",
    "Report": "contract",
    "RowLoss": "contract",
    "Scaffnew": "contrib.scaffnew",
    "Scaffold": "scaffold",
    "ServerState": "contract",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Loads a name, and PyTorch with it, when it is used."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
