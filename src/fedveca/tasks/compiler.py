"""PyTorch's compiler, torch._dynamo, stays unloaded until something is compiled: loading it takes about a second."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

Argument: TypeAlias = Any  # of an operation, or its result: a tensor, a number, a list of either
Operation: TypeAlias = "OpOverload[Argument, Argument]"


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the context, operations of this thread pass through `__torch_dispatch__`, where nothing is compiled."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: PyTorch would load its compiler with the first operation, to keep it out of here."""
        return False
