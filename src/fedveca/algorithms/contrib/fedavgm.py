"""FedAvgM (Hsu et al. 2019): FedAvg whose server carries momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveca.algorithms.fedavg import FedAvg
from fedveca.algorithms.registry import method


@method("fedavgm", title="FedAvgM", colour="#7A6FBE", dash="--")
@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg; a recipe gives it the server optimiser below unless the settings name another."""

    server_default: ClassVar[tuple[str, float]] = ("momentum", 1.0)
