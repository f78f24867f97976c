"""User-level differential privacy: what a client may send, the noise that covers it, and the epsilon that is spent.

A client's vectors are clipped jointly to one norm and summed with equal weights; the sum gets Gaussian noise. Losses,
of which only the mean is wanted, go the same way. Numbers that the server needs one by one (FedVeca's beta and
spread) are clipped and noised by the client itself. A client whose numbers are not finite sends zeros, so that nothing
distinguishes it.

What all this spends is counted by the Renyi accountant of dp-accounting, which only this file imports. Neighbours are
runs in which one client has other data; the number of clients is public. So one client moves a sum by twice its bound,
and a Gaussian of standard deviation z times the bound has a noise multiplier of z / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Order, Report, start_client
from fedveca.cohorts import random as draws
from fedveca.cohorts.aggregate import LOSS_NUMBERS
from fedveca.cohorts.client_memory import PersistentMemory
from fedveca.cohorts.contract import ClientScores, Cohort, HeldPart, Send
from fedveca.cohorts.faults import Faults
from fedveca.errors import UserError

_NUMBERS_PURPOSE, _NOISE_PURPOSE = 16, 17  # of the draws


@dataclass(frozen=True)
class Privacy:
    """The noise has standard deviation `noise` times the most that a client adds; replacing one moves twice that."""

    clip: float  # of a client's vectors, jointly
    noise: float
    bound: float  # a loss counts in [0, bound], another number in [1 / bound, bound]
    seed: int  # negative: from the operating system, and never the same twice
    wanted: tuple[str, ...] = ()  # of LOSS_NUMBERS
    unit: dict[str, float] = field(default_factory=dict)  # of vectors whose natural size is not dp_clip's

    def send(self, k: int, ids: Tensor, vectors: Named, each: Named) -> tuple[Named, Named]:
        """At the client: clips vectors, sends losses as vectors of one number, clips and noises other numbers."""
        out: Named = {}
        if vectors:
            norms = torch.stack([v.norm(dim=-1) / self._unit(name) for name, v in vectors.items()]).norm(dim=0)
            factor = torch.where(norms > self.clip, self.clip / norms, 1.0)[:, None]
            finite = torch.isfinite(norms)[:, None]
            out = {name: torch.where(finite, v * factor, 0.0) for name, v in vectors.items()}
        for name in self.wanted:
            if name in each:
                out[name] = each[name].nan_to_num(self.bound).clamp(0, self.bound)[:, None]
        others = {name: v for name, v in each.items() if name not in LOSS_NUMBERS}
        sd = self.noise * math.log(self.bound) * math.sqrt(len(others))
        for purpose, name in enumerate(sorted(others)):
            logs = others[name].double().nan_to_num(self.bound).clamp(1 / self.bound, self.bound).log()
            noise = draws.draw_normal(_NUMBERS_PURPOSE + 32 * purpose, self.seed, k, ids, 1)[:, 0]
            others[name] = (logs + sd * noise.to(logs.device)).exp()
        return out, others

    def add_noise(self, k: int, mean: Named, clients: int) -> Named:
        """At the server: the mean over so many clients, with the noise of their sum."""
        out = {}
        for purpose, name in enumerate(sorted(mean)):
            loss = name in LOSS_NUMBERS
            most = self.bound / 2 if loss else self.clip * self._unit(name)  # a loss counts from the middle
            server = torch.zeros(1, dtype=torch.int64, device=mean[name].device)
            noise = draws.draw_normal(_NOISE_PURPOSE + 32 * purpose, self.seed, k, server, len(mean[name]))[0]
            out[name] = mean[name] + (self.noise * most / clients * noise).to(mean[name])
        return out

    def _unit(self, name: str) -> float:
        return self.unit.get(name, 1.0)


class PrivateCohort:
    """A cohort whose clients send what `privacy` lets them; the server sees it with noise, and all count the same."""

    def __init__(self, cohort: Cohort, privacy: Privacy) -> None:
        self.cohort, self.privacy = cohort, privacy
        self.sizes = self.weights = torch.ones_like(cohort.sizes)

    @property
    def memory(self) -> PersistentMemory:
        return self.cohort.memory

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        who, report = self.cohort(k, order, ids, tau)
        mean = self.privacy.add_noise(k, report.mean, len(who)) if len(who) else {}
        losses = {name: mean.pop(name).double().cpu().expand(len(who)) for name in LOSS_NUMBERS if name in mean}
        return who, report._replace(mean=mean, each=report.each | losses, norms=None)  # norms have no noise

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        raise UserError("what each client evaluates gets no noise, so it cannot go with dp_noise")


class Account:
    """The epsilon of all that a run has released, at a given delta."""

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
        """Prepares the count of one run.

        Args:
            noise: Standard deviation of each Gaussian, as a multiple of what one client adds at the most.
            delta: The delta at which epsilon is given.
            releases: Gaussians per round.
            closing: Gaussians of the closing evaluation that chooses the model.
            clients: Number of clients N.
            participation: Share of the clients that are asked per round.
            seed: Of the sampling of clients.
            hidden: Whether nothing that is released shows who took part. The sampling of clients then counts in
                favour of privacy; otherwise the client that was asked most often decides.
        """
        try:
            import dp_accounting
            from dp_accounting import rdp
        except ImportError as error:
            raise UserError("dp_noise needs the extra fedveca[privacy]: pip install 'fedveca[privacy]'") from error
        self._dp, self._rdp, self.delta, self.seed = dp_accounting, rdp, delta, seed
        self.noise, self.closing, self.hidden = noise / 2, closing, hidden
        self.clients, self.asked = clients, draws.clients_per_round(clients, participation)
        self.one_round, self.end = self._divergence(releases), self._divergence(closing)
        self._most = [0]  # after each round: how often one client was asked at the most
        self._times = torch.zeros(clients, dtype=torch.int64)

    def spent(self, rounds: int) -> float:
        """Epsilon after so many rounds."""
        return self._epsilon(self._count(rounds) * self.one_round)

    def spent_in_all(self, rounds: int) -> float:
        """Epsilon with the closing evaluation that chooses the model."""
        if not self.closing:
            return self.spent(rounds)
        last = self._count(rounds + 1) - self._count(rounds)
        return self._epsilon(self._count(rounds) * self.one_round + last * self.end)

    def _divergence(self, gaussians: int) -> NDArray[np.float64]:
        """Renyi divergence at every order, of so many Gaussians on the clients of one round."""
        dp = self._dp
        event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(self.noise), gaussians)
        if self.hidden:
            event = dp.SampledWithoutReplacementDpEvent(self.clients, self.asked, event)
        accountant = self._rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
        self.orders = accountant.orders
        divergence: NDArray[np.float64] = accountant.compose(event).rdp if gaussians else 0 * accountant.rdp
        return divergence

    def _count(self, rounds: int) -> int:
        """How often the mechanism of one round was applied to the client that was asked most often."""
        if self.hidden:
            return rounds
        while len(self._most) <= rounds:
            self._times[draws.sample_clients(self.seed, len(self._most) - 1, self.clients, self.asked)] += 1
            self._most.append(int(self._times.max()))
        return self._most[rounds]

    def _epsilon(self, divergence: NDArray[np.float64]) -> float:
        return float(self._rdp.compute_epsilon(self.orders, divergence, self.delta)[0])


def make_privacy(
    algorithm: Algorithm,
    order: Order,
    tau: Tensor,
    *,
    clip: float,
    noise: float,
    bound: float,
    delta: float,
    noise_seed: int,
    wanted: tuple[str, ...],
    closing: bool,
    participation: float,
    seed: int,
    faults: bool,
) -> tuple[Privacy, Account]:
    """What clients may send, and the account of it.

    Args:
        algorithm: The method; whether it needs numbers one by one decides what is released.
        order: The first round's order.
        tau: [N] the local steps of the first round.
        clip: The largest joint norm of a client's vectors (dp_clip).
        noise: Standard deviation of the noise, as a multiple of the bound (dp_noise).
        bound: The largest loss, and the largest number (dp_bound).
        delta: The delta at which epsilon is given (dp_delta).
        noise_seed: Of the noise (dp_seed); negative takes the operating system's randomness.
        wanted: The losses that are released in every round, of LOSS_NUMBERS.
        closing: Whether a closing evaluation releases the loss once more.
        participation: Share of the clients that are asked per round.
        seed: Of the sampling of clients.
        faults: Whether faults are simulated, which show who took part.

    Returns:
        The rule for the clients and the server, and the account of its epsilon.
    """
    s = start_client(algorithm, order, algorithm.memory(order.w), order.w, torch.ones(1, device=order.w.device))
    numbers = algorithm.finish(order, s, order.w, torch.ones(1, device=order.w.device))[1]
    unit = {"dc": 1 / float(tau.double().mean())}  # SCAFFOLD's is of one step, its G of all
    equal = bool((tau == tau[0]).all())  # tau_k then shows nothing of who was sampled
    account = Account(
        noise,
        delta,
        releases=1 + len(wanted) + bool(numbers),
        closing=closing,
        clients=len(tau),
        participation=participation,
        seed=seed,
        hidden=equal and not numbers and not faults,
    )
    if noise_seed >= 0:
        noise_seed = noise_seed * 2**31 + seed  # runs that differ by seed share no noise
    return Privacy(clip, noise, bound, noise_seed, wanted, unit), account


def compose_sending(privacy: Privacy | None, faults: Faults | None) -> Send | None:
    """What clients do to their answers: the honest ones apply privacy, attackers do not."""
    if privacy and faults:
        return lambda k, ids, vectors, each: faults.send(k, ids, *privacy.send(k, ids, vectors, each))
    return privacy.send if privacy else faults.send if faults else None
