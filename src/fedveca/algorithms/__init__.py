"""The method and its baselines: pure maths on flat vectors."""

from fedveca.algorithms.contract import Algorithm, Named, Order, Report
from fedveca.algorithms.contrib.corrected import Corrected
from fedveca.algorithms.control import control
from fedveca.algorithms.fedavg import FedAvg
from fedveca.algorithms.fednova import FedNova
from fedveca.algorithms.fedprox import FedProx
from fedveca.algorithms.fedveca import FedVeca
from fedveca.algorithms.scaffold import Scaffold

__all__ = [
    "Algorithm",
    "Corrected",
    "FedAvg",
    "FedNova",
    "FedProx",
    "FedVeca",
    "Named",
    "Order",
    "Report",
    "Scaffold",
    "control",
]
