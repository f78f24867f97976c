"""The sum of one round under masks that are really drawn: what `engine=debug` computes with `secure=on`."""

from __future__ import annotations

import secrets

import numpy as np
import torch
from torch import Tensor

from fedveca.algorithms.contract import Named
from fedveca.cohorts.aggregate import Piece
from fedveca.cohorts.secure.fixed_point import FixedPointSum
from fedveca.cohorts.secure.lengths import KEY_BYTES
from fedveca.cohorts.secure.masks import add_pair_masks, expand, find_public, join_vectors, split_vector


class MaskedSum(FixedPointSum):
    """Clients one by one: each masks its integers, and only the sum is unmasked."""

    def __init__(self, fraction: int) -> None:
        super().__init__(fraction)
        self._vectors: list[Named] = []  # of each client, in the order in which they came

    def add(self, piece: Piece) -> None:
        self._vectors.append(piece.vectors)

    def close(self, mass: float) -> Named:
        if not self._vectors or not self._vectors[0]:
            return {}
        first = self._vectors[0]
        purpose, masks, seeds = (
            secrets.token_bytes(KEY_BYTES),
            [secrets.token_bytes(KEY_BYTES) for _ in self._vectors],
            [secrets.token_bytes(KEY_BYTES) for _ in self._vectors],
        )
        publics = dict(enumerate(map(find_public, masks)))
        lengths = {name: len(v) for name, v in first.items()}
        total = np.zeros(sum(lengths.values()), "<u8")
        for i, vectors in enumerate(self._vectors):
            masked = join_vectors({name: v.cpu().numpy() for name, v in vectors.items()})
            masked += expand(seeds[i], len(masked))
            add_pair_masks(masked, i, masks[i], {j: key for j, key in publics.items() if j != i}, purpose)
            total += masked
        for seed in seeds:
            total -= expand(seed, len(total))
        found = split_vector(total.view("<i8"), lengths)
        return {name: _to_tensor(found[name].tobytes(), first[name]) for name in lengths}


def _to_tensor(data: bytes, like: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.int64).to(like.device)
