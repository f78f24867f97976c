"""Every preset makes an experiment whose parts fit; data that are not at hand are replaced by rows of their form."""

from __future__ import annotations

import pytest
import torch

from fedveca import Dataset, Experiment, build
from fedveca.runs.experiment import preset
from fedveca.runs.presets import presets
from fedveca.tasks.datasets.dataset import DATASETS, DatasetEntry, Request
from fedveca.tasks.partition import RULES

ROWS = {"mnist": (4000, (1, 28, 28)), "cifar10": (6000, (3, 32, 32))}


def make_rows(name: str) -> Dataset:
    g = torch.Generator().manual_seed(0)
    if name == "shakespeare":
        x = torch.randint(0, 96, (1700, 81), generator=g)
        return Dataset(name, x[:, :-1], x[:, 1:], x[:9, :-1], x[:9, 1:], 96, "as-is", torch.arange(1700) % 833)
    rows, shape = ROWS[name]
    x = torch.randint(0, 256, (rows, *shape), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (rows,), generator=g)
    return Dataset(name, x, y, x[:50], y[:50], 10, "unit" if name == "mnist" else "standardised", None)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if "cifar" in name or "gpt" in name else name for name in presets()],
)
def test_the_preset_builds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    e = Experiment(**preset(name))
    if e.data in (*ROWS, "shakespeare"):

        def load(request: Request) -> Dataset:
            return make_rows(e.data)

        monkeypatch.setitem(DATASETS, e.data, DatasetEntry(load, ""))
    assert e.partition in RULES
    built = build(e)
    assert len(built.shares.sizes) == e.clients
    assert built.state.w.shape == (built.problem.size,)


def test_what_presets_ask_of_a_round() -> None:
    """One epoch of ten clients, as FLUTE's: the steps by size add up to the rows of ten mean clients."""
    e = Experiment(**preset("lstm-shakespeare"))
    epoch = 41_241 / e.batch * 10 / e.clients
    assert e.tau_all / e.rounds == pytest.approx(epoch, rel=1e-3)
    vgg = Experiment(**preset("vgg11-cifar10"))
    assert vgg.tau_all / vgg.rounds == 2 * 50_000 / vgg.batch
