"""FedLC (Zhang et al. 2022): FedAvg whose clients lower the scores of labels of which they have few rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveca.algorithms.contract import Outputs, RowLoss
from fedveca.algorithms.fedavg import FedAvg
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method

FEWEST = 1e-8  # rows that a label without any counts as: its score is lowered by 100 lc_tau


@method("fedlc", title="FedLC", colour="#BE123C", dash=".")
@dataclass(frozen=True)
class FedLC(FedAvg):
    """A local step minimises the loss of the scores f_c - lc_tau n_c^(-1/4), n_c the client's rows with label c."""

    lc_tau: float = hyper(1.0, "how much the scores are calibrated", low=0)
    has_loss: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True

    def loss(self, base: RowLoss, out: Outputs, y: Tensor, counts: Tensor, others: dict[str, Outputs]) -> Tensor:
        return base(out.scores - self.lc_tau * counts.clamp(min=FEWEST) ** -0.25, y)
