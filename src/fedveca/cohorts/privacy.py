"""User-level differential privacy: what a client may send, and the noise that covers it.

A client's vectors are cut jointly to one norm and summed with equal weights; the sum gets Gaussian noise. Losses,
of which only the mean is wanted, go the same way. Numbers that the server needs one by one (FedVeca's beta and
spread) are cut and noised by the client itself. A client whose numbers are not finite sends zeros, so that nothing
tells it apart. What all this spends is counted in runs/epsilon.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named, Order, Report
from fedveca.cohorts import random as draws
from fedveca.cohorts.client_memory import PersistentMemory
from fedveca.cohorts.faults import Inner

SUMMED = ("loss", "after")  # numbers of which only the mean is used
NUMBERS, NOISE = 16, 17  # purposes of the draws


@dataclass(frozen=True)
class Privacy:
    """The noise has sd `noise` times what one client adds at the most; replacing a client moves twice that."""

    clip: float  # of a client's vectors, jointly
    noise: float
    bound: float  # a loss counts in [0, bound], another number in [1 / bound, bound]
    seed: int  # negative: from the operating system, and never the same twice
    wanted: tuple[str, ...] = ()  # of SUMMED
    unit: dict[str, float] = field(default_factory=dict)  # of vectors whose natural size is not dp_clip's

    def send(self, k: int, ids: Tensor, vectors: Named, each: Named) -> tuple[Named, Named]:
        """At the client: vectors cut, losses beside them as vectors of one number, other numbers cut and noised."""
        out: Named = {}
        if vectors:
            norms = torch.stack([v.norm(dim=-1) / self._unit(name) for name, v in vectors.items()]).norm(dim=0)
            factor = torch.where(norms > self.clip, self.clip / norms, 1.0)[:, None]
            sound = torch.isfinite(norms)[:, None]
            out = {name: torch.where(sound, v * factor, 0.0) for name, v in vectors.items()}
        for name in self.wanted:
            if name in each:
                out[name] = each[name].nan_to_num(self.bound).clamp(0, self.bound)[:, None]
        named = {name: v for name, v in each.items() if name not in SUMMED}
        sd = self.noise * math.log(self.bound) * math.sqrt(len(named))
        for purpose, name in enumerate(sorted(named)):
            logs = named[name].double().nan_to_num(self.bound).clamp(1 / self.bound, self.bound).log()
            drawn = draws.normal(NUMBERS + 32 * purpose, self.seed, k, ids, 1)[:, 0]
            named[name] = (logs + sd * drawn.to(logs.device)).exp()
        return out, named

    def blurred(self, k: int, mean: Named, clients: int) -> Named:
        """Where sums are aggregated: the mean over so many clients, with the noise of their sum."""
        out = {}
        for purpose, name in enumerate(sorted(mean)):
            most = self.bound / 2 if name in SUMMED else self.clip * self._unit(name)  # a loss counts from the middle
            alone = torch.zeros(1, dtype=torch.int64, device=mean[name].device)
            drawn = draws.normal(NOISE + 32 * purpose, self.seed, k, alone, len(mean[name]))[0]
            out[name] = mean[name] + (self.noise * most / clients * drawn).to(mean[name])
        return out

    def _unit(self, name: str) -> float:
        return self.unit.get(name, 1.0)


class PrivateCohort:
    """A cohort whose clients send what `privacy` lets them, seen through its noise; all count the same."""

    def __init__(self, cohort: Inner, privacy: Privacy) -> None:
        self.cohort, self.privacy = cohort, privacy
        self.sizes = torch.ones_like(cohort.sizes)

    @property
    def memory(self) -> PersistentMemory:
        return self.cohort.memory

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        who, report = self.cohort(k, order, ids, tau)
        mean = self.privacy.blurred(k, report.mean, len(who)) if len(who) else {}
        told = {name: mean.pop(name).double().cpu().expand(len(who)) for name in SUMMED if name in mean}
        return who, report._replace(mean=mean, each=report.each | told, norms=None)  # which no noise covers
