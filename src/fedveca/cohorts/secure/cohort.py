"""Secure aggregation in a simulation: the integers of a deployment, its threshold and its bytes.

The masks cancel to the bit in the integers, so a fast engine need not draw them: what is left is the sum that a
server of a deployment finds. `engine=debug` draws and removes them.
"""

from __future__ import annotations

from torch import Tensor

from fedveca.algorithms.contract import Fault, Order, Report
from fedveca.cohorts.client_memory import PersistentMemory
from fedveca.cohorts.contract import ClientScores, Cohort, HeldPart
from fedveca.cohorts.secure.fixed_point import decode
from fedveca.cohorts.secure.lengths import WORD_BYTES, count_bytes


class SecureCohort:
    """A cohort of a simulation whose vectors reach the server only as one sum of integers."""

    def __init__(self, cohort: Cohort, fraction: int, threshold: int, asked: int) -> None:
        """Wraps clients that answer; those that are away or late are not asked here.

        Args:
            cohort: The clients; their aggregator is a `FixedPointSum`.
            fraction: Bits behind the point of its integers.
            threshold: Answers without which a round is void.
            asked: Clients of a round, with those that do not answer.
        """
        self.cohort, self.fraction, self.threshold, self.asked = cohort, fraction, threshold, asked
        self.sizes, self.weights = cohort.sizes, cohort.weights

    @property
    def memory(self) -> PersistentMemory:
        return self.cohort.memory

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        if not bool((tau > 0).any()):
            return self.cohort(k, order, ids, tau)  # losses only
        if len(ids) < self.threshold:
            why = f"void: {len(ids)} of {self.asked} clients answered; the threshold is {self.threshold}"
            return ids[:0], Report({}, {}, 0.0, faults=tuple(Fault(client=i, what=why) for i in ids.tolist()))
        who, report = self.cohort(k, order, ids, tau)
        mass = float(self.weights[who].sum())
        mean = {name: decode(v, self.fraction, mass).to(order.w) for name, v in report.mean.items()} if mass else {}
        extra = count_overhead(self.asked, len(ids), len(who), sum(v.numel() for v in report.mean.values()))
        return who, report._replace(mean=mean, norms=None, overhead=extra)

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        return self.cohort.evaluate(k, order, part, finetune)


def count_overhead(asked: int, arrived: int, counted: int, numbers: int) -> tuple[int, int]:
    """Bytes down and up that a round takes beyond an open one, whose clients send float32.

    Args:
        asked: Clients of the round; all of them shared their secrets.
        arrived: Those whose masked vectors arrived; one whose numbers are not finite sends zeros.
        counted: Those of them that count.
        numbers: Numbers of a client's vectors.
    """
    down, up = count_bytes(asked, arrived)
    return down, up + numbers * (WORD_BYTES * arrived - 4 * counted)
