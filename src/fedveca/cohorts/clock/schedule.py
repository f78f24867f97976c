"""When a round ends, and whose answers count: pure functions of the seconds after which clients answer."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Closing(NamedTuple):
    """The end of a round."""

    counts: Tensor  # [n] bool: whether a client's answer is among those that the server takes
    seconds: float  # from the start of the round


def close_round(seconds: Tensor, deadline: float = math.inf, enough: int | None = None) -> Closing:
    """The server takes the first `enough` answers that come in time, and waits for no more.

    Args:
        seconds: [n] when each client answers; inf for one that never does.
        deadline: When the server stops waiting; inf where it waits for everyone who will answer.
        enough: The answers that it wants; None for all.

    Returns:
        Whose answers count; of equally fast clients, the first ones. The round lasts until the last of them, or until
        the deadline where answers are missing.

    Examples:
        >>> close_round(torch.tensor([3.0, 1.0, 2.0]), deadline=2.5)
        Closing(counts=tensor([False,  True,  True]), seconds=2.5)
        >>> close_round(torch.tensor([3.0, 1.0, 2.0]), enough=2)
        Closing(counts=tensor([False,  True,  True]), seconds=2.0)
    """
    wanted = len(seconds) if enough is None else min(enough, len(seconds))
    counts = torch.zeros(len(seconds), dtype=torch.bool)
    counts[seconds.argsort(stable=True)[:wanted]] = True
    counts &= (seconds <= deadline) & torch.isfinite(seconds)
    if int(counts.sum()) < wanted and math.isfinite(deadline):
        return Closing(counts, deadline)
    return Closing(counts, float(seconds[counts].max()) if bool(counts.any()) else 0.0)
