"""Normalisation: by groups of channels within a row, or over a batch; and the way from the latter to the former."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from fedveca.errors import UserError, show_value

GROUPS = 32  # at most


def make_norm(kind: str, channels: int) -> nn.Module:
    """The layer that `norm=` names for this many channels."""
    if kind == "group":
        return nn.GroupNorm(count_groups(channels), channels)
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.Identity()


def count_groups(channels: int, most: int = GROUPS) -> int:
    """The most groups, up to `most`, that divide the channels into equal groups of two or more."""
    return max(g for g in range(1, most + 1) if channels % g == 0 and (g == 1 or channels // g > 1))


def to_group_norm(module: nn.Module, groups: int = GROUPS) -> nn.Module:
    """Makes a copy of a module in which every BatchNorm1d, 2d and 3d is a GroupNorm.

    BatchNorm's statistics differ between clients, and its scores depend on the other rows of a batch; GroupNorm has
    neither trouble. Weights and biases are kept. Where a layer has statistics of its training, these are put into the
    weights, so that a row with just these statistics gets the scores that it had in evaluation mode.

    Args:
        module: The model, which is not changed.
        groups: The most groups of a layer; each layer has as many as divide its channels into equal groups of at
            least two.

    Returns:
        The copy.

    Raises:
        UserError: Where `groups` is not a whole number from 1 up, a layer is lazy, or a BatchNorm1d has one channel.

    Examples:
        >>> from torch import nn
        >>> made = to_group_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))
        >>> made[1].num_groups
        24
    """
    if type(groups) is not int or groups < 1:
        raise UserError(f"groups={show_value(groups)} is out of range; it is a whole number from 1 up")
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            _check(part, name or "the module")
    return _convert(deepcopy(module), groups)


def _check(batch: nn.modules.batchnorm._BatchNorm, name: str) -> None:
    if any(nn.parameter.is_lazy(v) for v in (*batch.parameters(), *batch.buffers())):
        raise UserError(f"{name} is a lazy BatchNorm; call the model once before it is converted")
    if batch.num_features == 1 and isinstance(batch, nn.BatchNorm1d):
        raise UserError(f"{name} is a BatchNorm1d of one channel; normalised within a row it would be a constant")


def _convert(module: nn.Module, groups: int) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _from_batch_norm(module, groups)
    for key, part in module.named_children():
        setattr(module, key, _convert(part, groups))
    return module


def _from_batch_norm(batch: nn.modules.batchnorm._BatchNorm, groups: int) -> nn.GroupNorm:
    channels = batch.num_features
    made = nn.GroupNorm(count_groups(channels, groups), channels, batch.eps, batch.affine)
    made.train(batch.training)
    if not batch.affine:
        return made
    made.to(batch.weight.device, batch.weight.dtype)
    with torch.no_grad():
        scale, shift = torch.ones_like(batch.weight), torch.zeros_like(batch.weight)
        if batch.running_mean is not None and batch.running_var is not None:
            mean, variance = (v.view(made.num_groups, -1) for v in (batch.running_mean, batch.running_var))
            middle = mean.mean(1, keepdim=True)  # of all values of a group
            spread = (variance + mean**2).mean(1, keepdim=True) - middle**2
            scale = ((spread + batch.eps) / (variance + batch.eps)).sqrt().flatten()
            shift = ((middle - mean) / (variance + batch.eps).sqrt()).flatten()
        made.bias.copy_(batch.bias + batch.weight * shift)
        made.weight.copy_(batch.weight * scale)
    for new, old in ((made.weight, batch.weight), (made.bias, batch.bias)):
        new.requires_grad_(old.requires_grad)
    return made
