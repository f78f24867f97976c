"""Settings that say something about a choice which was not made: they change nothing, and a command says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fedveca.algorithms.registry import concerns
from fedveca.runs.settings import SettingList


class Use(NamedTuple):
    """A setting has an effect with some values of another one only."""

    setting: str
    of: str  # the other one
    values: tuple[str, ...]


USES = (
    Use("concentration", "partition", ("dirichlet", "dirichlet_niid", "dirichlet_balanced", "quantity")),
    Use("shards", "partition", ("shards",)),
    Use("labels_per_client", "partition", ("labels",)),
    Use("exponent", "partition", ("power_law",)),
    Use("heterogeneity", "data", ("synthetic",)),
    Use("layers", "model", ("lstm", "gpt")),
    Use("norm", "model", ("vgg11", "resnet18")),
    Use("dropout", "model", ("vgg11", "lstm", "gpt")),
    Use("beta1", "optimizer", ("adam", "adamw")),
    Use("beta2", "optimizer", ("adam", "adamw")),
    Use("adam_eps", "optimizer", ("adam", "adamw")),
    Use("lr_final", "lr_schedule", ("cosine",)),
    Use("lr_every", "lr_schedule", ("step",)),
    Use("lr_decay", "lr_schedule", ("step",)),
    Use("test_share", "test_by", ("client", "both")),
    Use("aggregate_clip", "aggregate", ("clip",)),
)


def list_unused(e: SettingList, named: Iterable[str], methods: Iterable[str]) -> list[str]:
    """A sentence for every named setting that changes nothing.

    Args:
        e: All settings.
        named: The settings that somebody wrote down.
        methods: The methods that run with them.

    Returns:
        The sentences, in the order of `named`.
    """
    uses, methods = {use.setting: use for use in USES}, list(methods)
    said = []
    for key in named:
        value, use = getattr(e, key), uses.get(key)
        if use and getattr(e, use.of) not in use.values:
            allowed = " or ".join(use.values)
            said.append(f"{key}={value} has no effect with {use.of}={getattr(e, use.of)}; it is for {use.of}={allowed}")
        elif not any(concerns(key, method) for method in methods):
            said.append(f"{key}={value} has no effect with method={' or '.join(methods)}")
        elif key == "tau_0" and e.epochs:
            said.append(f"tau_0={value} has no effect with epochs={e.epochs}")
        elif key == "participation" and value != 1 and methods == ["centralised"]:
            said.append(f"participation={value} has no effect with method=centralised, which has all rows in one place")
    return said
