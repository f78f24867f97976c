"""A real Flower federation whose server has no data at all: SuperLink, SuperNodes, keys, from the command line."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("flwr")
from fedveca.cli import main
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from fedveca.runs.task_data import load_data

pytestmark = pytest.mark.slow
E = Experiment(
    model="logistic", partition="dirichlet", clients=3, rounds=3, batch=16, lr=0.1, tau_0=4, test_by="client",
    test_share=0.25, val=0.15, finetune_steps=3, metric="accuracy,f1", round_timeout=240.0,
)  # fmt: skip


def test_a_server_without_a_data_set_finishes_with_what_the_simulator_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings name MNIST, which is nowhere; only the nodes have rows. The kept model is chosen on theirs."""
    data, shares = load_data(E)
    for i in range(3):
        mine = shares.rows[shares.start[i] : shares.start[i + 1]]
        np.savez(tmp_path / f"rows-{i}.npz", x=data.x[mine].numpy(), y=data.y[mine].numpy())
    monkeypatch.setenv("FEDVECA_NODE_DATA", str(tmp_path / "rows-{client}.npz"))
    monkeypatch.setenv("FEDVECA_DATA", str(tmp_path / "nothing"))
    monkeypatch.delenv("FEDVECA_TEST_DATA", raising=False)
    asked = replace(E, data="mnist", data_dir=str(tmp_path / "nothing"), pixels=cast(Any, data.pixels))
    default = asdict(Experiment())
    words = [f"{name}={value}" for name, value in asdict(asked).items() if value != default[name] and name != "clients"]
    out = tmp_path / "run"
    assert main(["deploy", "local", *words, "--nodes", "3", "--out", str(out), "--quiet"]) == 0
    done, want = Run.open(out), run(E, device="cpu")
    for ours, theirs in zip(done.rounds, want.rounds, strict=True):
        assert ours["tested"] == [0, 1, 2]
        for name, value in theirs.items():
            if name.startswith(("val_", "client", "tuned_", "test_", "accepted")):
                assert cast(dict[str, Any], ours)[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    for name, v in want.model.items():
        assert float((done.model[name] - v).abs().max()) < 1e-6
    assert done.summary["kept"]["round"] == want.summary["kept"]["round"]
    assert "client_test_accuracy" in done.summary["kept"]
    assert main(["report", str(out), "--out", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").stat().st_size > 10_000
