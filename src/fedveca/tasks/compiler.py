"""PyTorch's compiler, torch._dynamo, stays unloaded until something is compiled: loading it takes about a second.

Two of PyTorch's own functions load it only to turn it off. Before it is loaded, there is nothing to turn off.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import torch
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


class _Unloaded(ModuleType):
    """A module that is loaded when an attribute is used that it does not have yet."""

    def __getattr__(self, name: str) -> object:
        return getattr(import_module(self.__name__), name)


def delay_compiler() -> None:
    """Lets `torch.func.grad` and its relatives compute without the compiler, unless it is loaded already.

    They look up `torch._dynamo.compiled_autograd._disable`, and PyTorch loads `torch._dynamo` for that. Here a module
    with nothing but that context takes its place. Any other use loads the compiler, which then replaces it: an import
    puts the module that it has loaded in this attribute.
    """
    compiler, autograd = _Unloaded("torch._dynamo"), _Unloaded("torch._dynamo.compiled_autograd")
    vars(autograd)["_disable"] = nullcontext
    vars(compiler)["compiled_autograd"] = autograd
    vars(torch).setdefault("_dynamo", compiler)
