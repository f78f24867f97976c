"""An experiment's clients on simulated devices."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from torch import Tensor

from fedveca.algorithms import Algorithm
from fedveca.algorithms.registry import is_pooled
from fedveca.cohorts.clock.buffer import BufferedCohort
from fedveca.cohorts.clock.cohort import TimedCohort, WorkRule
from fedveca.cohorts.clock.fleet import Fleet
from fedveca.cohorts.contract import Cohort, CohortOptions
from fedveca.cohorts.faults import Faults
from fedveca.cohorts.random import clients_per_round
from fedveca.cohorts.secure.lengths import WORD_BYTES
from fedveca.cohorts.transfer import PLAIN
from fedveca.errors import UserError, count_noun, printable
from fedveca.runs.clock_settings import read_devices
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder_types import Summary
from fedveca.runs.schema import Round

_log = logging.getLogger(__name__)


def time_cohort(
    e: Experiment, cohort: Cohort, algorithm: Algorithm, options: CohortOptions, faults: Faults | None
) -> TimedCohort | BufferedCohort:
    """The cohort on the devices that the settings name; what its clients compute is what `options` ask of them."""
    profiles, clients = read_devices(e.devices), len(cohort.sizes)
    if is_pooled(e.method) and not profiles[0].share:
        profiles = profiles[:1]  # one client, that of all rows
    fleet = Fleet(profiles, clients, e.seed, f"devices={printable(e.devices)}")
    rule = make_work_rule(e, algorithm, cohort.sizes, options)
    if e.schedule == "buffered":
        size, at_once = find_buffer(e, algorithm, clients)
        return BufferedCohort(cohort, fleet, rule, size=size, at_once=at_once, staleness=e.staleness)
    return TimedCohort(
        cohort,
        fleet,
        rule,
        deadline=e.deadline if e.schedule == "deadline" else math.inf,
        late=e.late,
        enough=clients_per_round(clients, e.participation) if e.over_selection else None,
        find_absent=faults.find_absent if faults else None,
    )


def make_work_rule(e: Experiment, algorithm: Algorithm, sizes: Tensor, options: CohortOptions) -> WorkRule:
    """What clients with `sizes` [N] rows compute and send, as `options` ask of them."""
    return WorkRule(
        algorithm,
        sizes,
        options["batch"],
        options["probe"],
        options["want_loss"],
        options["want_loss_after"],
        options.get("transfer", PLAIN),
        WORD_BYTES if e.secure == "on" else 0,
    )


def find_buffer(e: Experiment, algorithm: Algorithm, clients: int) -> tuple[int, int]:
    """Of schedule=buffered: the answers of a round and the clients at work; UserError where the method forbids it."""
    for fails, why in (
        (algorithm.needs_everyone, "converges to another point where clients are absent"),
        (algorithm.needs_whole_step, "cannot bear a shorter step of the server, as old answers make it"),
        (algorithm.chooses, "chooses the clients of a round itself"),
    ):
        if fails:
            raise UserError(f"schedule=buffered cannot go with method={e.method}, which {why}")
    at_once = clients_per_round(clients, e.participation)
    size = e.buffer or max(1, at_once // 2)
    if size > at_once:
        raise UserError(f"buffer={size} is more than the {count_noun(at_once, 'client')} at work; take fewer")
    return size, at_once


def warn_untimed(e: Experiment, algorithm: Algorithm) -> None:
    """Says so where a method is to adapt to seconds, in a simulation without them; a deployment measures its own."""
    if algorithm.needs_timing and not e.devices:
        _log.warning("method=%s adapts to simulated seconds, and there are none without devices", e.method)


def invite_share(e: Experiment) -> float:
    """The share of the clients that are asked per round: `over_selection` asks for more than are needed."""
    return min(1.0, e.participation * (1 + e.over_selection))


def sum_time(records: Sequence[Round]) -> Summary:
    """What a run took in all: simulated seconds, and joules where its devices state what they use."""
    found: Summary = {"clock": records[-1]["clock"]}
    if any("joules" in record for record in records):
        found["joules"] = math.fsum(record["joules"] for record in records if "joules" in record)
    return found
