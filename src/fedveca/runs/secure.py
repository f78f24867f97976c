"""From the settings of secure aggregation to its parts: the threshold, the integers, and the cohort of a simulation."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from fedveca.algorithms.registry import is_pooled
from fedveca.cohorts.aggregate import AggregationRule
from fedveca.cohorts.contract import Cohort
from fedveca.cohorts.random import clients_per_round
from fedveca.cohorts.secure.cohort import SecureCohort
from fedveca.cohorts.secure.fixed_point import FixedPointSum, choose_fraction
from fedveca.cohorts.secure.secure_settings import check_quorum
from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment


def find_quorum(e: Experiment, clients: int) -> tuple[int, int]:
    """How many clients a round asks, and how many must answer.

    Raises:
        UserError: If they are too few for secure aggregation, or the method has no clients.
    """
    if is_pooled(e.method):
        raise UserError(f"secure=on cannot go with method={e.method}, which has no clients")
    asked = clients_per_round(clients, e.participation)
    return asked, check_quorum(asked, e.secure_threshold, f"clients={clients} with participation={e.participation:g}")


def make_secure_rule(e: Experiment, weights: Tensor) -> AggregationRule:
    """What sums the clients' vectors as integers; with engine=debug under masks that are really drawn.

    Args:
        e: The experiment.
        weights: [N] of all clients.
    """
    fraction = choose_fraction(int(weights.sum()))
    if e.engine != "debug":
        return partial(FixedPointSum, fraction)
    try:
        from fedveca.cohorts.secure.masked_sum import MaskedSum
    except ModuleNotFoundError as error:
        raise UserError("secure=on with engine=debug needs the extra fedveca[flower]: its cryptography") from error
    return partial(MaskedSum, fraction)


def secure_cohort(e: Experiment, cohort: Cohort) -> SecureCohort:
    """The clients of a simulation, whose vectors the server sees as a sum."""
    asked, threshold = find_quorum(e, len(cohort.sizes))
    return SecureCohort(cohort, choose_fraction(int(cohort.weights.sum())), threshold, asked)
