"""FedAdagrad (Reddi et al. 2021): FedAvg with Adagrad at the server, whose steps shrink where much has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveca.algorithms.fedavg import FedAvg
from fedveca.algorithms.registry import method


@method("fedadagrad", title="FedAdagrad", colour="#A0522D", dash="--")
@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    """FedAvg; a recipe gives it the server optimiser below unless the settings name another."""

    server_default: ClassVar[tuple[str, float]] = ("adagrad", 0.1)
