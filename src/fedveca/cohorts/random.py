"""All random draws as a pure function of (seed, round, client): no generator, so no state to save or to synchronise.

The bits are splitmix64's, in wrapping int64 arithmetic, so that every device draws the same.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def _to_signed(x: int) -> int:
    return (x & (2**64 - 1)) - (2**64 if x & 2**63 else 0)


_STEP, _MIX1, _MIX2 = _to_signed(0x9E3779B97F4A7C15), _to_signed(0xBF58476D1CE4E5B9), _to_signed(0x94D049BB133111EB)


_MODEL_PURPOSE = 64  # of the draws inside a model
_SHUFFLE_PURPOSE = 65  # of the order of a client's rows
_EPOCHS_PURPOSE = 66  # of a client's number of epochs
_HOLDOUT_PURPOSE = 67  # of the rows that a client holds back
_JUDGES_PURPOSE = 68  # of the clients on which models are compared
_CHOICE_PURPOSE = 69  # of a method that chooses clients


def _shift(x: Tensor, by: int) -> Tensor:
    low: int = 2 ** (64 - by) - 1
    return (x >> by).bitwise_and_(low)  # logical, where >> on int64 keeps the sign


def _mix(x: Tensor) -> Tensor:
    x = _shift(x, 30).bitwise_xor_(x).mul_(_MIX1)
    x = _shift(x, 27).bitwise_xor_(x).mul_(_MIX2)
    return _shift(x, 31).bitwise_xor_(x)


def _mix_integer(x: int) -> int:
    """The same of one number, without a tensor's cost."""
    x &= 2**64 - 1
    x = ((x >> 30) ^ x) * _MIX1 & 2**64 - 1
    x = ((x >> 27) ^ x) * _MIX2 & 2**64 - 1
    return (x >> 31) ^ x


def _stream(seed: int, k: int, ids: Tensor) -> Tensor:
    """[n] int64: one stream per client of the round."""
    return _mix(ids + _to_signed(_mix_integer(_mix_integer(seed * 2 + 1) + k)))


def draw_rows(seed: int, k: int, ids: Tensor, sizes: Tensor, steps: int, batch: int, first: int = 0) -> Tensor:
    """[n, steps, batch] int64: which of its rows each client takes at each step from `first`, with replacement."""
    if ids.device.type == "cpu":
        return _draw_on_host(seed, k, ids, sizes, steps, batch, first)
    count = torch.arange(first * batch + 1, (first + steps) * batch + 1, device=ids.device)
    bits = _mix(_stream(seed, k, ids)[:, None] + count * _STEP)
    return ((_shift(bits, 32) * sizes[:, None]) >> 32).view(len(ids), steps, batch)


def _mix_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_mix` in NumPy, where shifts are logical and an operation costs less."""
    y = x >> np.uint64(30)
    y ^= x
    y *= np.uint64(_MIX1 % 2**64)
    z = y >> np.uint64(27)
    z ^= y
    z *= np.uint64(_MIX2 % 2**64)
    np.right_shift(z, np.uint64(31), out=y)
    y ^= z
    return y


def _draw_on_host(seed: int, k: int, ids: Tensor, sizes: Tensor, steps: int, batch: int, first: int) -> Tensor:
    """`draw_rows` in NumPy: the same numbers in less than half the time."""
    of_round = np.uint64(_mix_integer(_mix_integer(seed * 2 + 1) + k))
    stream = _mix_array(ids.numpy().view(np.uint64) + of_round)
    count = np.arange(first * batch + 1, (first + steps) * batch + 1, dtype=np.uint64)
    count *= np.uint64(_STEP % 2**64)
    bits = _mix_array(stream[:, None] + count)
    bits >>= np.uint64(32)
    bits *= sizes.numpy().view(np.uint64)[:, None]
    bits >>= np.uint64(32)
    return torch.from_numpy(bits.view(np.int64)).view(len(ids), steps, batch)


def shuffle_rows(seed: int, k: int, ids: Tensor, sizes: Tensor, steps: int, batch: int, first: int = 0) -> Tensor:
    """[n, steps, batch] int64: the same without replacement, as places in a sequence of shuffled epochs.

    In an epoch each of a client's rows stands once, in an order that is a pure function of (seed, round, client,
    epoch). A batch that reaches the end of an epoch takes its other rows from the next one. Only the epochs that these
    steps reach are computed, those of all clients by two stable sorts.
    """
    device, start, stop = ids.device, first * batch, (first + steps) * batch
    epoch = start // sizes  # [n] the first one of each client
    length = (-(-stop // sizes) - epoch) * sizes  # [n] rows of its epochs
    begin = length.cumsum(0) - length
    owner = torch.arange(len(ids), device=device).repeat_interleave(length)  # of each of these rows, one after another
    at, size = torch.arange(len(owner), device=device) - begin[owner], sizes[owner]
    row = at % size
    stream = _mix(_side_stream(_SHUFFLE_PURPOSE, seed, k, ids)[owner] + (epoch[owner] + at // size) * _STEP)
    order = _mix(stream + (row + 1) * _STEP).argsort(stable=True)
    order = order[(begin[owner] + at - row)[order].argsort(stable=True)]  # by epoch, and by the random bits in it
    place = (begin + start - epoch * sizes)[:, None] + torch.arange(stop - start, device=device)
    return row[order][place].view(len(ids), steps, batch)


def order_rows(seed: int, owner: Tensor, position: Tensor) -> Tensor:
    """[D] int64: the place of each row in a random order of its client's rows, drawn once for the whole run.

    `owner` [D] rises; `position` [D] is a row's place among the rows of its client.
    """
    stream = _side_stream(_HOLDOUT_PURPOSE, seed, 0, owner)
    order = _mix(stream + (position + 1) * _STEP).argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]  # by client, and by the random bits within it
    place = torch.empty_like(position)
    place[order] = position
    return place


class RowSampling(Protocol):
    """Which rows clients take at each local step; see `draw_rows`."""

    def __call__(
        self, seed: int, k: int, ids: Tensor, sizes: Tensor, steps: int, batch: int, first: int = 0
    ) -> Tensor: ...


SAMPLINGS: dict[str, RowSampling] = {"random": draw_rows, "shuffle": shuffle_rows}


def draw_seed(seed: int, k: int, client: int, step: int) -> int:
    """The seed of what a model draws inside a local step, in [0, 2^63): for dropout, another one at each step."""
    stream = _mix_integer(_mix_integer(_mix_integer(_mix_integer(seed * 2 + 1) + k) + client) + _MODEL_PURPOSE)
    return _mix_integer(stream + (step + 1) * _STEP) >> 1


def clients_per_round(clients: int, participation: float) -> int:
    """How many clients take part in a round: a share of all, at least one."""
    return max(1, round(participation * clients))


def sample_clients(seed: int, k: int, clients: int, n: int) -> Tensor:
    """[n] int64, rising: the clients that take part in round k, without replacement."""
    if n >= clients:
        return torch.arange(clients)
    bits = _stream(seed, -1 - k, torch.arange(clients))
    return bits.topk(n, sorted=False).indices.sort().values


def choose_judges(seed: int, clients: int, n: int) -> Tensor:
    """[n] int64, rising: the clients on which the models of a run are compared, the same in all rounds; n at most."""
    return shuffle_clients(_JUDGES_PURPOSE, seed, clients)[:n].sort().values


def draw_uniform(purpose: int, seed: int, k: int, ids: Tensor) -> Tensor:
    """[n] float64 in [0, 1): one number per client of the round; each purpose has its own draws."""
    return _to_unit(_side_stream(purpose, seed, k, ids))


def draw_epochs(seed: int, k: int, ids: Tensor, low: int, high: int) -> Tensor:
    """[n] int64, uniform from low to high: the epochs of each client of round k."""
    return low + (draw_uniform(_EPOCHS_PURPOSE, seed, k, ids) * (high - low + 1)).long()


def draw_choice(seed: int, k: int, ids: Tensor) -> Tensor:
    """[n] float64 in (0, 1): with what a method chooses the clients of round k."""
    return draw_uniform(_CHOICE_PURPOSE, seed, k, ids).clamp_(min=2.0**-54)


def shuffle_clients(purpose: int, seed: int, clients: int) -> Tensor:
    """[N] int64: all clients in an order drawn once for the whole run."""
    return _side_stream(purpose, seed, 0, torch.arange(clients)).argsort()


def draw_fractions(purpose: int, seed: int, k: int, ids: Tensor, count: int) -> Tensor:
    """[n, count] float32 in [0, 1), uniform on steps of 2^-24: so many numbers per client of the round."""
    bits = _mix(_side_stream(purpose, seed, k, ids)[:, None] + torch.arange(1, count + 1, device=ids.device) * _STEP)
    return _shift(bits, 40).float() * 2.0**-24


def draw_normal(purpose: int, seed: int, k: int, ids: Tensor, count: int) -> Tensor:
    """[n, count] float64, standard normal, by Box and Muller; a negative seed asks the operating system for bits."""
    if seed < 0:
        bits = torch.frombuffer(bytearray(os.urandom(16 * len(ids) * count)), dtype=torch.int64).to(ids.device)
    else:
        bits = _mix(
            _side_stream(purpose, seed, k, ids)[:, None] + torch.arange(1, 2 * count + 1, device=ids.device) * _STEP
        )
    angle, radius = _to_unit(bits).view(len(ids), 2, count).unbind(1)
    return (-2 * torch.log1p(-radius)).sqrt() * torch.cos(2 * math.pi * angle)


def _side_stream(purpose: int, seed: int, k: int, ids: Tensor) -> Tensor:
    """[n] int64: a stream other than the one that rows are drawn from."""
    return _mix(_stream(seed, k, ids) + _to_signed(purpose * _STEP))


def _to_unit(bits: Tensor) -> Tensor:
    """The upper 53 bits as a float64 in [0, 1)."""
    return _shift(bits, 11).double() * 2.0**-53
