"""What a client of a method sends after its local steps, found by a client that takes none."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedveca.algorithms.contract import STATISTICS, Algorithm, Order, start_client


class AnswerParts(NamedTuple):
    """The vectors and numbers of `finish`."""

    vectors: dict[str, int]  # the length of each
    numbers: set[str]


def find_answer(algorithm: Algorithm, order: Order) -> AnswerParts:
    """What a client of this method sends in answer to such an order, besides losses and running statistics."""
    order = order._replace(aux={name: v for name, v in order.aux.items() if name != STATISTICS})
    memory = {name: v[None] for name, v in algorithm.memory(order.w).items()}
    w = algorithm.begin(order, memory).expand(1, -1)
    one = torch.ones(1, 1, device=w.device)
    s = start_client(algorithm, order, memory, torch.zeros_like(w), one)
    vectors, numbers, _ = algorithm.finish(order, s, w, one)
    return AnswerParts({name: v.shape[-1] for name, v in vectors.items()}, {*numbers})
