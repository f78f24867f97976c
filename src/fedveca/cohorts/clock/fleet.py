"""The devices of a run's clients: from rows and bytes to seconds and joules, a pure function of (seed, round, client).

A client's seconds in a round are those of the order on its way, of computing, and of the answer on its way:

    latency + bytes_down / down  +  forward (rows + loss rows) + backward rows  +  latency + bytes_up / up

A gradient of a row costs its forward and its backward pass, a loss alone its forward pass. What a server computes and
what clients evaluate for the record costs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.cohorts.clock.profiles import DeviceProfile
from fedveca.cohorts.random import draw_normal, draw_uniform
from fedveca.errors import UserError, count_noun

_PROFILE_PURPOSE, _VARIETY_PURPOSE = 70, 71  # of the draws of a client's device
_SPREAD_PURPOSE, _AVAILABILITY_PURPOSE = 72, 73  # of the draws of a round


class Work(NamedTuple):
    """What n clients do in a round, [n] each or one number for all."""

    rows: Tensor  # whose gradient is computed, one by one as often as it is
    loss_rows: Tensor  # whose loss alone is computed
    down: int  # bytes of the order
    up: int  # bytes of the answer


class Fleet:
    """A device for each of N clients."""

    def __init__(self, profiles: Sequence[DeviceProfile], clients: int, seed: int, said: str = "devices") -> None:
        """Gives every client its device.

        Args:
            profiles: With shares, each client's is drawn; without them, the first is client 0's, and so on. One
                profile is every client's.
            clients: Number of clients N.
            seed: Of all draws.
            said: What an error calls the profiles.
        """
        if not profiles[0].share and len(profiles) not in (1, clients):
            raise UserError(
                f"{said} has {count_noun(len(profiles), 'profile')} without a share for "
                f"{count_noun(clients, 'client')}; name one for each client, one for all, or a share for each"
            )
        self.seed, ids = seed, torch.arange(clients)
        if profiles[0].share:
            ends = torch.tensor([p.share for p in profiles], dtype=torch.float64).cumsum(0)
            which = torch.searchsorted(ends, draw_uniform(_PROFILE_PURPOSE, seed, 0, ids), right=True)
            which = which.clamp(max=len(profiles) - 1)
        else:
            which = ids if len(profiles) > 1 else torch.zeros_like(ids)
        self.names = [profiles[i].name for i in which.tolist()]  # [N]
        fields = [field.name for field in dataclasses.fields(DeviceProfile) if field.name != "name"]
        numbers = {name: torch.tensor([getattr(p, name) for p in profiles], dtype=torch.float64) for name in fields}
        mine = {name: v[which] for name, v in numbers.items()}  # [N] each
        factor = _scale_by(mine["variety"], draw_normal(_VARIETY_PURPOSE, seed, 0, ids, 1)[:, 0])
        self.forward, self.backward = mine["forward_ms"] * factor / 1000, mine["backward_ms"] * factor / 1000
        self.latency = mine["latency_ms"] / 1000
        self.down, self.up = mine["down_mbit"] * 125_000, mine["up_mbit"] * 125_000  # bytes per second
        self.availability, self.spread, self.network_spread = (
            mine["availability"],
            mine["spread"],
            mine["network_spread"],
        )
        self.per_row, self.per_byte = mine["joules_per_row"], mine["joules_per_byte"]
        each = self.forward + self.backward
        self.forward_share = torch.where(each > 0, self.forward / each, 1.0)

    @property
    def has_energy(self) -> bool:
        """Whether any device states what it uses."""
        return bool((self.per_row > 0).any() or (self.per_byte > 0).any())

    def find_available(self, k: int, ids: Tensor) -> Tensor:
        """[n] bool: which clients are there in round k."""
        return draw_uniform(_AVAILABILITY_PURPOSE, self.seed, k, ids) < self.availability[ids]

    def find_seconds(self, k: int, ids: Tensor, work: Work) -> Tensor:
        """[n] float64: from the server's order to the client's answer."""
        computing, network = self._draw_factors(k, ids)
        return self._count_network(ids, work) * network + self._count_computing(ids, work) * computing

    def find_step_seconds(self, k: int, ids: Tensor, rows: Tensor) -> Tensor:
        """[n] float64: of `find_seconds`, those of the gradients of so many rows."""
        return (self.forward + self.backward)[ids] * rows * self._draw_factors(k, ids)[0]

    def fit_steps(self, k: int, ids: Tensor, work: Work, tau: Tensor, batch: int, seconds: float) -> Tensor:
        """[n] int64: the most local steps, at most tau, with which each client answers in time; 0 where none does.

        Args:
            k: The round.
            ids: The clients.
            work: Of tau local steps.
            tau: [n] local steps.
            batch: Rows of one of them.
            seconds: The time.
        """
        late = self.find_seconds(k, ids, work) - seconds
        step = self.find_step_seconds(k, ids, torch.full_like(tau, batch))
        too_many = torch.where(step > 0, (late / step).clamp(0, 1e15), torch.where(late > 0, 1e15, 0.0))
        fewer = (tau - too_many.ceil().long()).clamp(min=0)
        cut = work._replace(rows=work.rows - (tau - fewer) * batch)
        over = self.find_seconds(k, ids, cut) > seconds  # where rounding left it a little too long
        return torch.where(over & (fewer > 0), fewer - 1, fewer)

    def find_joules(self, ids: Tensor, work: Work) -> Tensor:
        """[n] float64: what computing and sending use up."""
        rows = work.rows + work.loss_rows * self.forward_share[ids]
        return self.per_row[ids] * rows + self.per_byte[ids] * (work.down + work.up)

    def _count_network(self, ids: Tensor, work: Work) -> Tensor:
        return 2 * self.latency[ids] + work.down / self.down[ids] + work.up / self.up[ids]

    def _count_computing(self, ids: Tensor, work: Work) -> Tensor:
        return self.forward[ids] * (work.rows + work.loss_rows) + self.backward[ids] * work.rows

    def _draw_factors(self, k: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """[n] each: by what computing and messages of round k take longer than their means."""
        computing, network = draw_normal(_SPREAD_PURPOSE, self.seed, k, ids, 2).unbind(1)
        return _scale_by(self.spread[ids], computing), _scale_by(self.network_spread[ids], network)


def _scale_by(spread: Tensor, z: Tensor) -> Tensor:
    """A log-normal factor with the mean 1 and this standard deviation, from a standard normal z; 1 without spread."""
    variance = torch.log1p(spread**2)
    return torch.exp(variance.sqrt() * z - variance / 2)
