"""What a cohort is: the clients of a federation, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, NotRequired, Protocol, TypedDict

from torch import Tensor

from fedveca.algorithms.contract import Fault, Named, Order, Report
from fedveca.cohorts.aggregate import AggregationRule
from fedveca.cohorts.client_memory import PersistentMemory
from fedveca.cohorts.holdout import Holdout
from fedveca.cohorts.transfer import VectorTransfer

# (round, ids [n], vectors [n, P] each, numbers [n] each) -> vectors and numbers as the clients send them
Send = Callable[[int, Tensor, Named, Named], tuple[Named, Named]]


HeldPart = Literal["val", "test"]  # of the rows that clients hold back


class ClientScores(NamedTuple):
    """What clients found on the rows that they hold back, one value per client."""

    ids: Tensor  # [n] the clients that have such rows and answered, rising
    rows: Tensor  # [n] how many rows each has
    values: Named  # [n] float64 each: "loss", and each metric by its name
    faults: tuple[Fault, ...] = ()
    seconds: Tensor | None = None  # [n] float64: from the question to the answer, where it was measured


class Cohort(Protocol):
    """The clients, wherever they are: in this process, on a cluster, on the nodes of a deployment."""

    sizes: Tensor  # [N] D_i, the rows of each client
    weights: Tensor  # [N] to which each client's p_i is in proportion: D_i, or 1

    @property
    def memory(self) -> PersistentMemory:
        """What the clients remember between rounds, as a checkpoint stores it."""
        ...

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """Asks clients `ids` for tau local steps from the order; returns who answered, and the report.

        A client whose numbers are not finite does not answer. Where tau is 0 the clients only evaluate their loss.
        """
        ...

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        """Asks all clients to evaluate the order's model on rows that they hold back.

        With `finetune`, each client takes so many local steps of round k first; nothing of them is remembered or sent.
        """
        ...


class CohortOptions(TypedDict):
    """The options of every cohort that computes its clients' steps itself; `LocalCohort` explains each."""

    batch: int
    seed: NotRequired[int]
    probe: NotRequired[int]
    sampling: NotRequired[str]
    want_loss: NotRequired[bool]
    want_loss_after: NotRequired[bool]
    pixels: NotRequired[str]
    aggregate: NotRequired[AggregationRule]
    send: NotRequired[Send | None]
    equal_weights: NotRequired[bool]
    memory_bytes: NotRequired[int]
    local_statistics: NotRequired[bool]
    held: NotRequired[Holdout | None]
    transfer: NotRequired[VectorTransfer]
