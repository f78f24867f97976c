"""Sees every operation of PyTorch inside a context, without its compiler."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the context, `__torch_dispatch__` sees the operations of this thread."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled in here, and PyTorch would load its compiler, two seconds, to keep it out."""
        return False
