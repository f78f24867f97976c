"""Random changes of the rows of a local step, on the device: crop, flip, cutout, or a function of the user's.

A step draws with torch's random functions inside `draw_from`, so that its numbers are those of (seed, round, client,
local step) on every engine. No step asks the host for a value, so that a CUDA graph can capture it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedveca.errors import UserError, explain_error, printable
from fedveca.tasks.augment_settings import CROP, CUTOUT, FLIP_SIDES, AugmentStep, parse_augment
from fedveca.tasks.randomness import draw_from

Augmentation = Callable[[Tensor], Tensor]  # rows [B, ...], ready for the model -> rows of the same shape and kind


def crop(x: Tensor, padding: int) -> Tensor:
    """Images [B, C, H, W], padded with `padding` zeros at each side and cut to their size at a random place each."""
    height, width = x.shape[-2:]
    windows = pad(x, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)  # [B, C, 2p + 1, 2p + 1, H, W], a view
    top, left = torch.randint(0, 2 * padding + 1, (2, len(x)), device=x.device)
    return windows[torch.arange(len(x), device=x.device), :, top, left]


def flip(x: Tensor) -> Tensor:
    """Images [B, C, H, W], each mirrored left to right with probability 1/2."""
    mirrored = torch.rand(len(x), device=x.device) < 0.5
    return torch.where(mirrored[:, None, None, None], x.flip(-1), x)


def cutout(x: Tensor, side: int) -> Tensor:
    """Images [B, C, H, W] with zeros in a square each, whose centre is any pixel: at an edge part of it is outside."""
    inside = []
    for size in x.shape[-2:]:
        first = torch.randint(0, size, (len(x), 1), device=x.device) - side // 2
        at = torch.arange(size, device=x.device)
        inside.append((at >= first) & (at < first + side))  # [B, H] and [B, W]
    rows, columns = inside
    return x.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def make_augmentation(augment: str | Augmentation, said: str, rows: Tensor) -> Augmentation | None:
    """What `augment` does to a batch; None where it is empty.

    Args:
        augment: The setting's text, or a function of the user's.
        said: What an error calls it: `augment=...`.
        rows: Some rows, prepared for the model, on which a function is tried.

    Raises:
        UserError: With one sentence, where it does not fit the rows.
    """
    if not isinstance(augment, str):
        _try_function(augment, said, rows)
        return augment
    steps = parse_augment(augment)
    if not steps:
        return None
    if rows.dim() != 4 or not rows.is_floating_point():
        raise UserError(f"{said} is for images [C, H, W]; these rows have the shape {list(rows.shape[1:])}")
    height, width = rows.shape[-2:]
    for kind, pixels in steps:
        most = min(height, width) - (kind == CROP)  # some of the image stays
        if pixels > most:
            raise UserError(f"{said}: {kind}:{pixels} is too much for images of {height} x {width}; at most {most}")
    return partial(_apply, [_STEPS[step.kind](step) for step in steps])


def _apply(steps: list[Augmentation], x: Tensor) -> Tensor:
    for step in steps:
        x = step(x)
    return x


_STEPS: dict[str, Callable[[AugmentStep], Augmentation]] = {
    CROP: lambda step: partial(crop, padding=step.pixels),
    FLIP_SIDES: lambda step: flip,
    CUTOUT: lambda step: partial(cutout, side=step.pixels),
}


def _try_function(function: Augmentation, said: str, rows: Tensor) -> None:
    """UserError where a function of the user's does not give rows again, or not the same with the same seed."""
    if not callable(function):
        raise UserError(f"{said} is {type(function).__name__}; it is a function of a batch x [B, ...] that gives x")
    state = torch.get_rng_state()
    try:
        first, again = (_call_with_seed(function, rows) for _ in range(2))
    except UserError as error:
        raise UserError(f"{said}: {error}") from error
    except Exception as error:
        raise UserError(f"{said} fails on rows of shape {list(rows.shape[1:])}: {explain_error(error)}") from error
    finally:
        drew = not torch.equal(state, torch.get_rng_state())
        torch.set_rng_state(state)
    if not isinstance(first, Tensor) or first.shape != rows.shape or first.dtype != rows.dtype:
        got = f"{list(first.shape)} ({first.dtype})" if isinstance(first, Tensor) else printable(type(first).__name__)
        raise UserError(f"{said} gives {got} for a batch {list(rows.shape)} ({rows.dtype}); it must give the same form")
    if drew or not torch.equal(first.nan_to_num(), again.nan_to_num()):
        raise UserError(f"{said} gives other rows each time with the same seed; let it draw with torch's functions")


def _call_with_seed(function: Augmentation, rows: Tensor) -> Tensor:
    with torch.no_grad(), draw_from(torch.Generator().manual_seed(0)):
        return function(rows.clone())
