"""A client's vectors as they arrive in one of the forms of `wire`; nothing of them is trusted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array
from numpy.typing import NDArray

from fedveca.algorithms.contract import STATISTICS, Named
from fedveca.cohorts.encodings import INDEX, INT8_MOST, SCALE, Encoding
from fedveca.cohorts.flower.messages import InvalidAnswer, check_array, check_norm, check_vector
from fedveca.cohorts.transfer import VectorTransfer


def read_vectors(arrays: Mapping[str, Array], lengths: Mapping[str, int], transfer: VectorTransfer) -> Named:
    """The vectors of an answer, checked and as float32.

    Args:
        arrays: What a client sent, under the names that `transfer.find_forms(lengths)` has.
        lengths: The length that each vector must have.
        transfer: How vectors travel.

    Returns:
        [P] each.

    Raises:
        InvalidAnswer: Where an array has another shape or type than it must have, a number is not finite or too large,
            a scale is negative, or an index is out of range or there twice.
    """
    found: Named = {}
    for name, size in lengths.items():
        if transfer.encoding is None or name == STATISTICS:
            v = check_vector(arrays[name], size, transfer.down, name)
        else:
            v = check_norm(_decode(arrays, name, size, transfer.encoding), name)
        found[name] = torch.from_numpy(v)
    return found


def _decode(arrays: Mapping[str, Array], name: str, size: int, encoding: Encoding) -> NDArray[np.generic]:
    """[size] float32."""
    parts: Named = {}
    for end, form in encoding.find_forms(size).items():
        array = check_array(arrays[name + end], form.length, form.dtype, str(form.dtype), name + end)
        v = torch.from_numpy(array.astype(np.int64) if end == INDEX else array.copy())
        if end == SCALE and not bool((torch.isfinite(v) & (v >= 0)).all()):
            raise InvalidAnswer(f"sent {name}{end} with a scale that is negative or not finite")
        if end == INDEX and not (bool((v[1:] > v[:-1]).all()) and int(v[-1]) < size):
            raise InvalidAnswer(f"sent {name}{end} with indices that do not rise or are not below {size}")
        if v.dtype == torch.int8 and bool((v < -INT8_MOST).any()):
            raise InvalidAnswer(f"sent {name} with -{INT8_MOST + 1}, where {INT8_MOST} is the most")
        parts[end] = v[None]
    return encoding.decode(parts, size)[0].numpy()
