"""How much memory a computation holds at its peak, counted operation by operation: the same on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedveca.tasks.compiler import Argument, EagerMode, Operation


class LiveBytes(EagerMode):  # type: ignore[no-untyped-call]
    """Inside the context, counts the bytes of tensors that operations of this thread make and that are in use.

    It sees what vmap and autograd make, and what they hold; what an operation needs only within itself it does not see.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0  # bytes
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Operation,
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: Mapping[str, Argument] | None = None,
    ) -> Argument:
        made = func(*args, **(kwargs or {}))
        for v in tree_leaves(made):
            if isinstance(v, Tensor):
                self._add(v)
        return made

    def _add(self, v: Tensor) -> None:
        storage = v.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, key, size).atexit = False

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
