"""Randomness inside a module (dropout and whatever else draws), directed to a generator that the caller seeds.

PyTorch's functions draw from one generator per process. Threads would share it, and the order in which clients compute
would change what each of them draws. Inside `DrawFrom` every operation that draws takes the given generator instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedveca.errors import UserError
from fedveca.tasks.compiler import Argument, EagerMode, Operation

aten = torch.ops.aten


@contextmanager
def draw_from(generator: torch.Generator) -> Iterator[None]:
    """Inside the context, a module of this thread draws its random numbers from `generator`.

    On a CUDA device attention takes PyTorch's plain path, since the fused kernels draw from the process's generator.
    """
    plain = sdpa_kernel(SDPBackend.MATH) if generator.device.type == "cuda" else nullcontext()
    with DrawFrom(generator), plain:
        yield


class DrawFrom(EagerMode):  # type: ignore[no-untyped-call]
    """Inside the context, operations of this thread that draw random numbers take them from `generator`."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator
        self.draws = 0  # operations that drew

    def __torch_dispatch__(
        self,
        func: Operation,
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: Mapping[str, Argument] | None = None,
    ) -> Argument:
        given = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags or not _draws(func, args, given):
            return func(*args, **given)
        self.draws += 1
        if func in _REPLACED:
            return _REPLACED[func](self.generator, *args, **given)
        if any(argument.name == "generator" for argument in func._schema.arguments):
            return func(*args, **given | {"generator": self.generator})
        packet, name = func.overloadpacket, func._overloadname
        twin = "generator" if name in ("default", "") else f"{name}_generator"
        if hasattr(packet, twin):
            return getattr(packet, twin)(*args, **given, generator=self.generator)
        raise UserError(
            f"the model draws random numbers by {func}, which no seed of a client can control; "
            "use nn.Dropout or torch.bernoulli"
        )


def _draws(func: Operation, args: tuple[Argument, ...], given: Mapping[str, Argument]) -> bool:
    """Whether this call draws: attention does so only with dropout."""
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return True
    at = names.index("dropout_p")
    return float(given.get("dropout_p", args[at] if at < len(args) else 0.0)) > 0


def _drop(generator: torch.Generator, x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """aten.native_dropout: what is kept, scaled by 1 / (1 - p), and the mask."""
    if not train or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x).bernoulli_(1 - p, generator=generator)
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask.bool()


def _fill_like(name: str) -> Callable[..., Tensor]:
    """rand_like and randn_like, which take no generator."""

    def fill(generator: torch.Generator, x: Tensor, **options: Argument) -> Tensor:
        empty: Tensor = torch.empty_like(x, **options)
        filled: Tensor = getattr(empty, name)(generator=generator)
        return filled

    return fill


def _bernoulli(generator: torch.Generator, x: Tensor, p: float) -> Tensor:
    return torch.empty_like(x).bernoulli_(p, generator=generator)


_REPLACED: dict[Operation, Callable[..., Argument]] = {
    aten.native_dropout.default: _drop,
    aten.rand_like.default: _fill_like("uniform_"),
    aten.randn_like.default: _fill_like("normal_"),
    aten.bernoulli.p: _bernoulli,
}
