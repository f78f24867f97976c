"""Threads that share the work, each with one arithmetic thread.

PyTorch's own threads meet at a barrier in every operation: for small operations that costs more than it
gains, and where another program holds a core, many times more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import torch

_A = TypeVar("_A")
_B = TypeVar("_B")


_inside = threading.local()  # whether this thread is one of a pool's


class ThreadPool:
    """`size` threads; a pool of one is the caller's own thread, and work inside a pool's thread stays in it."""

    def __init__(self, size: int = 0) -> None:
        self.size = size or torch.get_num_threads()

    def map(self, work: Callable[[_A], _B], items: Sequence[_A]) -> Iterator[_B]:
        """The results in the order of the items."""
        with use_one_thread():
            alone = min(self.size, len(items)) == 1 or getattr(_inside, "pool", False)
            yield from (map if alone else self._pool.map)(work, items)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.size, initializer=_enter_pool)


def _enter_pool() -> None:
    _inside.pool = True
    torch.set_num_threads(1)


@contextmanager
def use_one_thread() -> Iterator[None]:
    """One arithmetic thread inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
