"""What differential privacy has spent, by the Renyi accountant of dp-accounting: the only file that imports it.

Neighbours are runs in which one client has other data; the number of clients is known to all. So one client moves a
sum by twice its bound, and a Gaussian of sd z times the bound has a noise multiplier of z / 2.
"""

from __future__ import annotations

from typing import Any

import torch

from fedveca.algorithms import Algorithm
from fedveca.cohorts.faults import Faults
from fedveca.cohorts.local.cohort import Send
from fedveca.cohorts.privacy import Privacy
from fedveca.cohorts.random import clients_per_round, sample_clients
from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment


class Account:
    """Epsilon at `delta` of all that a run has let out.

    `releases` Gaussians a round. Where nothing that is let out tells who took part (`hidden`), the drawing of clients
    is counted in favour of privacy; else the client that was asked most often decides.
    """

    def __init__(
        self,
        noise: float,
        delta: float,
        *,
        releases: int,
        closing: int,
        clients: int,
        participation: float,
        seed: int,
        hidden: bool,
    ) -> None:
        try:
            import dp_accounting
            from dp_accounting import rdp
        except ImportError as error:
            raise UserError("dp_noise needs the extra fedveca[privacy]: pip install 'fedveca[privacy]'") from error
        self._of, self._rdp, self.delta, self.seed = dp_accounting, rdp, delta, seed
        self.noise, self.closing, self.hidden = noise / 2, closing, hidden
        self.clients, self.asked = clients, clients_per_round(clients, participation)
        self.one_round, self.end = self._curve(releases), self._curve(closing)
        self._most = [0]  # after each round: how often one client was asked at the most
        self._times = torch.zeros(clients, dtype=torch.int64)

    def spent(self, rounds: int) -> float:
        """After so many rounds."""
        return self._epsilon(self._count(rounds) * self.one_round)

    def spent_in_all(self, rounds: int) -> float:
        """With the closing evaluation that chooses the model."""
        if not self.closing:
            return self.spent(rounds)
        last = self._count(rounds + 1) - self._count(rounds)
        return self._epsilon(self._count(rounds) * self.one_round + last * self.end)

    def _curve(self, gaussians: int) -> Any:
        """Renyi divergence at every order, of so many Gaussians on the clients of one round."""
        of = self._of
        event = of.SelfComposedDpEvent(of.GaussianDpEvent(self.noise), gaussians)
        if self.hidden:
            event = of.SampledWithoutReplacementDpEvent(self.clients, self.asked, event)
        accountant = self._rdp.RdpAccountant(neighboring_relation=of.NeighboringRelation.REPLACE_ONE)
        self.orders = accountant.orders
        return accountant.compose(event).rdp if gaussians else 0 * accountant.rdp

    def _count(self, rounds: int) -> int:
        if self.hidden:
            return rounds
        while len(self._most) <= rounds:
            self._times[sample_clients(self.seed, len(self._most) - 1, self.clients, self.asked)] += 1
            self._most.append(int(self._times.max()))
        return self._most[rounds]

    def _epsilon(self, curve: Any) -> float:
        epsilon: float = self._rdp.compute_epsilon(self.orders, curve, self.delta)[0]
        return float(epsilon)


def sending(privacy: Privacy | None, faults: Faults | None) -> Send | None:
    """What clients do to their answers: the honest obey privacy, the bad ones do not."""
    if privacy and faults:
        return lambda k, ids, vectors, each: faults.send(k, ids, *privacy.send(k, ids, vectors, each))
    return privacy.send if privacy else faults.send if faults else None


def private(e: Experiment, algorithm: Algorithm, state: Any) -> tuple[Privacy, Account]:
    """What clients may send, and the account of it."""
    order = algorithm.order(state)
    s = algorithm.start(order, algorithm.memory(order.w), order.w)
    numbers = algorithm.finish(order, s, order.w, torch.ones(1, device=order.w.device))[1]
    wanted = {"best": ("loss",), "rollback": ("after",), "last": ()}[e.keep]
    seed = e.dp_seed if e.dp_seed < 0 else e.dp_seed * 2**31 + e.seed  # runs that differ by seed share no noise
    unit = {"dc": 1 / float(state.tau.double().mean())}  # SCAFFOLD's is of one step, its G of all
    equal = bool((state.tau == state.tau[0]).all())  # tau_k tells nothing of who was drawn
    account = Account(
        e.dp_noise,
        e.dp_delta,
        releases=1 + len(wanted) + bool(numbers),
        closing=e.keep == "best",
        clients=len(state.tau),
        participation=e.participation,
        seed=e.seed,
        hidden=equal and not numbers and not e.faults,
    )
    return Privacy(e.dp_clip, e.dp_noise, e.dp_bound, seed, wanted, unit), account
