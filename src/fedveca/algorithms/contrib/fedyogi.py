"""FedYogi (Reddi et al. 2021): FedAvg with Yogi at the server, whose second moment changes slowly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveca.algorithms.fedavg import FedAvg
from fedveca.algorithms.registry import method


@method("fedyogi", title="FedYogi", colour="#5B8C5A", dash="--")
@dataclass(frozen=True)
class FedYogi(FedAvg):
    """FedAvg; a recipe gives it the server optimiser below unless the settings name another."""

    server_default: ClassVar[tuple[str, float]] = ("yogi", 0.01)
