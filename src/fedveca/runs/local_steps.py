"""How many local steps a client takes where the settings decide it: tau_0, a total of all rounds, or epochs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedveca.algorithms.registry import is_adaptive
from fedveca.cohorts.random import clients_per_round, draw_epochs
from fedveca.errors import UserError
from fedveca.runs.epoch_settings import parse_epochs
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import StepRule

MOST_STEPS = 10**8  # local steps of a client in one round


def initial_steps(e: Experiment, sizes: Tensor) -> Tensor:
    """[N] tau_(0,i): max(1, ceil(E D_i / B)) where epochs are given, with the most of them where they are random.

    Else it is the paper's fair share floor(tau_all / K * D_i / D) where tau_all is given, or tau_0. Where only a share
    of the clients takes part in a round, each takes so many more of tau_all. With `share=exact` the step rule decides.
    """
    if epochs := parse_epochs(e.epochs):
        check_epochs(e.epochs, e.method)
        tau = [epochs.count_steps(size, e.batch) for size in sizes.tolist()]
        if max(tau) > MOST_STEPS:
            raise UserError(
                f"epochs={e.epochs} gives a client {max(tau)} local steps per round; at most {MOST_STEPS}: "
                "take fewer epochs, or a larger batch"
            )
        return torch.tensor(tau)
    if is_adaptive(e.method) or not e.tau_all:
        return torch.full_like(sizes, e.tau_0)
    rows = e.rounds * int(sizes.sum()) * clients_per_round(len(sizes), e.participation)
    tau = [max(1, e.tau_all * size * len(sizes) // rows) for size in sizes.tolist()]  # products may pass int64
    if max(tau) > MOST_STEPS:
        most = e.tau_all * MOST_STEPS // max(tau)
        raise UserError(
            f"tau_all={e.tau_all} gives a client {max(tau)} local steps per round; at most {MOST_STEPS}: "
            f"take more rounds, or tau_all of {most} or less"
        )
    return torch.tensor(tau)


def check_epochs(text: str, method: object) -> None:
    """UserError where a method that chooses its own local steps is given random ones."""
    epochs = parse_epochs(text)
    if epochs and epochs.random and is_adaptive(method):
        raise UserError(
            f"epochs={text} cannot go with method={method}, which chooses its local steps itself; "
            "name one number of epochs, for its start"
        )


def make_step_rule(e: Experiment, sizes: Tensor) -> StepRule | None:
    """The local steps of each round where they differ from round to round; else None.

    That is where epochs are random, max(1, ceil(E D_i / B)) with E drawn anew, and where tau_all is shared exactly.
    """
    epochs = parse_epochs(e.epochs)
    if epochs is not None:
        return _draw_by_epochs(e, sizes, int(epochs.low), int(epochs.high)) if epochs.random else None
    if e.share == "exact" and e.tau_all and not is_adaptive(e.method):
        return _share_exactly(e, sizes)
    return None


def _draw_by_epochs(e: Experiment, sizes: Tensor, low: int, high: int) -> StepRule:
    def count(k: int, ids: Tensor) -> Tensor:
        rows = draw_epochs(e.seed, k, ids, low, high) * sizes[ids]
        return (-(-rows // e.batch)).clamp(min=1)

    return count


def _share_exactly(e: Experiment, sizes: Tensor) -> StepRule:
    """Every round's steps, of which all rounds' sum is tau_all.

    Where all clients take part, each has its part of tau_all, by rows, and takes it evenly over the rounds. Else each
    round has its part of tau_all, and divides it by rows over its clients.
    """
    rounds, clients = e.rounds, clients_per_round(len(sizes), e.participation)
    if e.tau_all < rounds * clients:
        raise UserError(
            f"tau_all={e.tau_all} with share=exact is less than one local step per client and round: take "
            f"{rounds * clients} or more, or share=floor"
        )
    parts = divide_steps(e.tau_all, sizes.tolist(), rounds) if clients == len(sizes) else []

    def count(k: int, ids: Tensor) -> Tensor:
        if parts:
            return torch.tensor([_part_of_round(parts[i], k, rounds) for i in ids.tolist()])
        return torch.tensor(divide_steps(_part_of_round(e.tau_all, k, rounds), sizes[ids].tolist()))

    return count


def _part_of_round(total: int, k: int, rounds: int) -> int:
    """Of steps that are spread evenly over the rounds, those of round k."""
    return total * (k + 1) // rounds - total * k // rounds


def divide_steps(total: int, sizes: Sequence[int], fewest: int = 1) -> list[int]:
    """Divides a number of steps by size, with exactly this sum: the method of the largest remainder.

    Each client gets its quota total * D_i / D rounded down; the steps that are left go to the largest remainders, of
    equal ones to the lower client. A client whose quota is below `fewest` gets so many, and the others share the rest.

    Args:
        total: At least `fewest` for each client.
        sizes: D_i, rows of each client.
        fewest: Steps that each client takes at least.

    Examples:
        >>> divide_steps(30, [17, 17, 17, 20, 29])
        [5, 5, 5, 6, 9]
        >>> divide_steps(10, [1, 100, 100])
        [1, 5, 4]
    """
    open_ids = list(range(len(sizes)))
    steps = [fewest] * len(sizes)
    while True:
        left, rows = total - fewest * (len(sizes) - len(open_ids)), sum(sizes[i] for i in open_ids)
        small = {i for i in open_ids if left * sizes[i] < fewest * rows}
        if not small:
            break
        open_ids = [i for i in open_ids if i not in small]
    for i in open_ids:
        steps[i] = left * sizes[i] // rows
    by_remainder = sorted(open_ids, key=lambda i: (-(left * sizes[i] % rows), i))
    for i in by_remainder[: total - sum(steps)]:
        steps[i] += 1
    return steps
