"""The forms of `wire` over Flower nodes: as in the simulator, exact bytes, memory of the right round, nothing trusted.

The nodes are in this process: their messages are Flower's own, written to bytes and read back, only not sent.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")
from flower_grid import Change, Grid
from flwr.app import Array, Error
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.task_identity import TaskIdentity

from fedveca.algorithms.contract import STATISTICS
from fedveca.cohorts.flower import roster
from fedveca.cohorts.flower.messages import InvalidAnswer
from fedveca.cohorts.flower.payload import read_vectors
from fedveca.cohorts.transfer import VectorTransfer
from fedveca.deploy.node_process import make_node_cohort
from fedveca.deploy.server import make_cohort
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import resume, run
from fedveca.runs.task_data import load_data

E = Experiment(model="svm", clients=3, rounds=4, batch=16, lr=0.05, tau_0=4, round_timeout=5.0, partition="dirichlet")
P = 64
WIRES = ["float16", "bfloat16", "int8", "topk"]


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)
    make_node_cohort.cache_clear()


def deploy(
    e: Experiment, folder: Path, out: Path | None = None, changes: dict[tuple[int, int], Change] | None = None
) -> tuple[Run, Any]:
    grid: Any = Grid(e, folder, changes or {}, 3)
    data = load_data(e)[0]
    cohort = make_cohort(grid, e, data, say=lambda text: None)
    return run(e, out, data=data, cohort=cohort, device="cpu"), grid


def close(mine: Run, other: Run) -> None:
    for name, v in other.model.items():
        assert float((mine.model[name] - v).abs().max()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("method", ["fedveca", "scaffold"])
def test_a_deployment_is_the_simulation(method: str, wire: Any, tmp_path: Path) -> None:
    e = replace(E, method=method, wire=wire, participation=0.7)
    deployed, simulated = deploy(e, tmp_path)[0], run(e, device="cpu")
    for mine, other in zip(deployed.rounds, simulated.rounds, strict=True):
        for name in ("ids", "tau", "bytes_up", "bytes_down"):
            assert mine[name] == other[name], name  # type: ignore[literal-required]
    close(deployed, simulated)
    plain = run(replace(e, wire="float32"), device="cpu")
    assert any(float((plain.model[name] - v).abs().max()) > 1e-6 for name, v in deployed.model.items())


@pytest.mark.parametrize("wire", ["float32", *WIRES])
def test_bytes_are_those_of_the_messages(wire: Any, tmp_path: Path) -> None:
    """The arrays of each answer have as many bytes as are recorded; a message has a few hundred more per array."""
    e = replace(E, method="scaffold", wire=wire, rounds=1, keep="last")
    deployed, grid = deploy(e, tmp_path)
    messages = [message_from_proto(ProtoMessage.FromString(data)) for data in grid.replies.values()]
    answers = [m for m in messages if "vectors" in m.content.array_records]
    sent = sum(array.numpy().nbytes for m in answers for array in m.content.array_records["vectors"].values())
    numbers = 8 * len(("tau",)) * len(answers)
    assert len(answers) == 3
    assert sent + numbers == deployed.rounds[0]["bytes_up"]
    arrays = sum(len(m.content.array_records["vectors"]) for m in answers)
    lengths = [len(data) for data in grid.replies.values()][-3:]
    assert sent < sum(lengths) < sent + 300 * arrays + 3 * 700


def test_void_rounds_late_memory_and_a_resumed_server(tmp_path: Path) -> None:
    """A client fails once, so that a round is void and the others' residuals of it are not used; then a new server."""
    e = replace(E, method="scaffold", wire="topk", min_clients=3, keep="last")
    failed: list[int] = []

    def fails_once(records: dict[str, Any]) -> Error | None:
        failed.append(1)
        return Error(1, "fails") if len(failed) == 1 else None

    first, _ = deploy(replace(e, rounds=2), tmp_path, tmp_path / "run", {(1, 1): fails_once})
    assert len(failed) == 2
    assert "void" in first.rounds[1]["faults"][0]["what"]
    make_node_cohort.cache_clear()  # the nodes were killed too
    data, grid = load_data(e)[0], Grid(e, tmp_path, {}, 3)
    again = resume(tmp_path / "run", rounds=4, data=data, cohort=make_cohort(grid, e, data, say=lambda text: None))  # type: ignore[arg-type]
    whole, _ = deploy(e, tmp_path / "other")
    assert all(torch.equal(again.model[name], v) for name, v in whole.model.items())
    close(again, run(e, device="cpu"))


def change(name: str, value: np.ndarray[Any, Any]) -> Change:
    return lambda records: records["vectors"].__setitem__(name, Array(value))


def rename(name: str, other: str) -> Change:
    return lambda records: records["vectors"].__setitem__(other, records["vectors"].pop(name))


Q, S = np.ones(P, np.int8), np.ones(1, np.float32)
VALUES, INDICES = np.ones(6, np.float32), np.arange(6, dtype=np.uint16)
BAD = {
    "int8 of another length": ("int8", change("G", Q[1:]), "sent G of shape [63], not [64]"),
    "int8 as float32": ("int8", change("G", Q.astype(np.float32)), "sent G as float32, not as int8"),
    "int8 of -128": ("int8", change("G", -128 * Q), "sent G with -128, where 127 is the most"),
    "a scale too many": ("int8", change("G/scale", np.ones(2, np.float32)), "sent G/scale of shape [2], not [1]"),
    "a scale that is NaN": ("int8", change("G/scale", S * np.nan), "sent G/scale with a scale that is negative or not"),
    "a scale without end": ("int8", change("G/scale", S * np.inf), "sent G/scale with a scale that is negative or not"),
    "a scale below zero": ("int8", change("G/scale", -S), "sent G/scale with a scale that is negative or not"),
    "a scale as float64": ("int8", change("G/scale", S.astype(float)), "sent G/scale as float64, not as float32"),
    "a scale that overflows": ("int8", change("G/scale", S * np.float32(3e38)), "sent G with a number that is not fi"),
    "a large scale": ("int8", change("G/scale", S * np.float32(1e30)), "beyond float32"),
    "no scale": ("int8", rename("G/scale", "scale"), "sent ['G', 'beta', 'grad', 'grad/scale'"),
    "an index out of range": ("topk", change("G/index", INDICES + 59), "indices that do not rise or are not below 64"),
    "an index far out of range": (
        "topk",
        change("G/index", INDICES + 65000),
        "indices that do not rise or are not below 64",
    ),
    "an index twice": ("topk", change("G/index", INDICES // 2), "sent G/index with indices that do not rise"),
    "indices that fall": (
        "topk",
        change("G/index", INDICES[::-1].copy()),
        "sent G/index with indices that do not rise",
    ),
    "too few indices": ("topk", change("G/index", INDICES[1:]), "sent G/index of shape [5], not [6]"),
    "indices with a sign": (
        "topk",
        change("G/index", INDICES.astype(np.int16)),
        "sent G/index as int16, not as uint16",
    ),
    "long indices": ("topk", change("G/index", INDICES.astype(np.int64)), "sent G/index as int64, not as uint16"),
    "too many values": ("topk", change("G", np.ones(64, np.float32)), "sent G of shape [64], not [6]"),
    "a value that is NaN": ("topk", change("G", VALUES * np.nan), "sent G with a number that is not finite"),
    "a value that is too large": ("topk", change("G", VALUES * np.float32(1e30)), "whose square is beyond float32"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_vector_is_left_out_and_named(name: str, tmp_path: Path) -> None:
    wire, wrong, said = BAD[name]
    e = replace(E, wire=wire, rounds=1)  # type: ignore[arg-type]
    deployed, _ = deploy(e, tmp_path, None, {(1, 0): wrong})
    (fault,) = deployed.rounds[0]["faults"]
    assert fault["client"] == 1
    assert said in fault["what"]
    assert len(fault["what"]) < 800
    assert deployed.rounds[0]["ids"] == [0, 2]


ARRAYS = st.sampled_from(["i1", "u1", "<i2", "<u2", "<u4", "<i8", "<f2", "<f4", "<f8", ">f4", "?"])


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(["int8", "topk"]), ARRAYS, ARRAYS, st.integers(0, 70), st.integers(0, 9), st.binary(max_size=64))
def test_any_arrays_are_a_vector_or_rejected(wire: str, a: str, b: str, n: int, m: int, noise: bytes) -> None:
    """Whatever types, lengths and bytes: an InvalidAnswer of one line, or a finite vector of the right length."""
    transfer = VectorTransfer(wire)
    end = "/scale" if wire == "int8" else "/index"

    def fill(dtype: str, length: int) -> Array:
        kind = np.dtype(dtype)
        data = (noise * (1 + length * kind.itemsize))[: length * kind.itemsize].ljust(length * kind.itemsize, b"\1")
        return Array(np.frombuffer(data, kind).copy())

    said, got = "", torch.zeros(P)
    try:
        with np.errstate(all="ignore"):
            got = read_vectors({"G": fill(a, n), "G" + end: fill(b, m)}, {"G": P}, transfer)["G"]
    except InvalidAnswer as error:
        said = str(error)
    assert len(said) < 300
    assert said.isprintable()
    assert got.shape == (P,)
    assert got.dtype == torch.float32
    assert bool(torch.isfinite(got).all())


@pytest.mark.parametrize("wire", ["int8", "topk"])
def test_what_is_packed_is_what_arrives(wire: str) -> None:
    transfer = VectorTransfer(wire, 0.2)
    v = {"G": torch.randn(1, 700), STATISTICS: torch.randn(1, 5)}
    arrived, _ = transfer.send(3, torch.tensor([1]), v, {"residual/G": torch.zeros(1, 700)})
    packed = transfer.pack({name: value[0] for name, value in v.items()})
    got = read_vectors({name: Array(array) for name, array in packed.items()}, {"G": 700, STATISTICS: 5}, transfer)
    assert all(torch.equal(got[name], arrived[name][0]) for name in v)
