"""FedAdam (Reddi et al. 2021): FedAvg whose server takes the clients' mean step for a gradient of Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveca.algorithms.fedavg import FedAvg
from fedveca.algorithms.registry import method


@method("fedadam", title="FedAdam", colour="#8C564B", dash="--")
@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg; a recipe gives it the server optimiser below unless the settings name another."""

    server_default: ClassVar[tuple[str, float]] = ("adam", 0.01)
