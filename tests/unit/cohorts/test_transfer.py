"""Vectors on their way: int8 without bias, top-k by hand, what is not sent, exact bytes, in every engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedveca
from fedveca import Experiment
from fedveca.algorithms.contract import STATISTICS, Order, Report
from fedveca.cohorts.encodings import INDEX, SCALE, Int8Encoding, TopKEncoding
from fedveca.cohorts.flower.wire import narrow, widen
from fedveca.cohorts.random import draw_fractions
from fedveca.cohorts.transfer import RESIDUAL, VectorTransfer
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.federate import federate

E = Experiment(method="scaffold", model="svm", clients=3, rounds=4, batch=8, tau_0=3, keep="last")
IDS = torch.tensor([0, 1, 2])


def vectors(n: int = 3, size: int = 600, seed: int = 1) -> Tensor:
    return torch.randn(n, size, generator=torch.Generator().manual_seed(seed)) * 10.0 ** torch.arange(n)[:, None]


def never(count: int) -> Tensor:
    raise AssertionError("nothing is drawn")


def test_int8_is_right_in_the_mean() -> None:
    """The mean of 4,000 draws is within five standard errors of the vector, in every coordinate."""
    v, times = vectors(1, 300).expand(4_000, -1), 4_000
    got = VectorTransfer("int8").send(0, torch.arange(times), {"G": v}, {})[0]["G"]
    scale = v[0].abs().view(-1)[:256].max() / 127, v[0].abs()[256:].max() / 127
    step = torch.where(torch.arange(300) < 256, *scale)
    assert float((got - v).abs().max() / step.max()) <= 1 + 1e-5
    error = (got.double().mean(0) - v[0].double()).abs()
    assert float((error / (0.5 * step / times**0.5)).max()) < 5
    assert float(error.max() / step.max()) > 1e-4  # it is rounded


def test_int8_by_hand() -> None:
    v = torch.tensor([[254.0, -254.0, 1.0, 0.0, 3.0]])
    low = Int8Encoding().encode(v, lambda count: torch.full((1, count), 0.999))
    high = Int8Encoding().encode(v, lambda count: torch.zeros(1, count))
    assert low[""].tolist() == [[127, -127, 0, 0, 1]]
    assert high[""].tolist() == [[127, -127, 1, 0, 2]]
    assert low[SCALE].tolist() == [[2.0]]
    assert Int8Encoding().decode(low, 5).tolist() == [[254.0, -254.0, 0.0, 0.0, 2.0]]


def test_a_block_has_its_own_scale_and_zeros_stay_zeros() -> None:
    v = torch.zeros(1, 600)
    v[0, 300], v[0, 599] = 1.0, 1e-42
    sent = Int8Encoding().encode(v, lambda count: torch.full((1, count), 0.5))
    assert torch.equal(sent[SCALE][0] > 0, torch.tensor([False, True, True]))
    got = Int8Encoding().decode(sent, 600)
    assert got[0, 300] == pytest.approx(1.0)
    assert bool(torch.isfinite(got).all())
    assert int((got != 0).sum()) <= 2


def test_draws_are_of_the_seed_the_round_the_client_and_the_name() -> None:
    v = vectors(2, 200, 3)[:1].expand(2, -1)

    def send(seed: int = 0, k: int = 0, name: str = "G", ids: tuple[int, int] = (0, 1)) -> Tensor:
        return VectorTransfer("int8", seed=seed).send(k, torch.tensor(ids), {name: v}, {})[0][name]

    base = send()
    assert torch.equal(base, send())
    assert not torch.equal(base[0], base[1])
    assert torch.equal(base.flip(0), send(ids=(1, 0)))  # whoever is next to it
    for other in (send(seed=1), send(k=1), send(name="dc")):
        assert not torch.equal(base, other)


def test_fractions_fill_the_unit_interval() -> None:
    u = draw_fractions(75, 0, 0, torch.arange(20), 5_000)
    assert u.dtype == torch.float32
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(u.var()) == pytest.approx(1 / 12, abs=0.002)


def test_top_k_by_hand() -> None:
    v = torch.tensor([[1.0, -5.0, 2.0, 2.0, -2.0], [0.0, 0.0, 0.0, 7.0, 0.0]])
    sent = TopKEncoding(0.6).encode(v, never)
    assert sent[INDEX].tolist() == [[1, 2, 3], [0, 1, 3]]  # of equal ones the first
    assert sent[""].tolist() == [[-5.0, 2.0, 2.0], [0.0, 0.0, 7.0]]
    assert TopKEncoding(0.6).decode(sent, 5).tolist() == [[0.0, -5.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 7.0, 0.0]]
    assert [TopKEncoding(share).count(1000) for share in (1e-9, 0.01, 0.1, 1.0)] == [1, 10, 100, 1000]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(1, 6), st.integers(0, 999))
def test_what_was_sent_and_what_is_remembered_is_all_there_was(size: int, share: float, rounds: int, seed: int) -> None:
    transfer, memory = VectorTransfer("topk", share), {RESIDUAL + "G": torch.zeros(2, size)}
    given_, sent = torch.zeros(2, size).double(), torch.zeros(2, size).double()
    for k in range(rounds):
        v = vectors(2, size, seed + k)
        arrived, memory = transfer.send(k, IDS[:2], {"G": v}, memory)
        assert int((arrived["G"] != 0).sum(1).max()) <= TopKEncoding(share).count(size)
        given_, sent = given_ + v.double(), sent + arrived["G"].double()
    torch.testing.assert_close(sent + memory[RESIDUAL + "G"].double(), given_, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_floats_are_what_nodes_send(wire: str) -> None:
    v = vectors()
    got = VectorTransfer(wire).send(0, IDS, {"G": v}, {})[0]["G"]
    assert torch.equal(got, torch.from_numpy(widen(narrow(v.numpy(), wire), wire)))


@pytest.mark.parametrize("wire", ["float16", "bfloat16", "int8", "topk"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_does_not_arrive_as_one_that_is(wire: str, bad: float) -> None:
    v = vectors(2)
    v[0, 5] = bad
    got = VectorTransfer(wire).send(0, IDS[:2], {"G": v}, {RESIDUAL + "G": torch.zeros(2, 600)})[0]["G"]
    assert torch.isfinite(got.norm(dim=1)).tolist() == [False, True]


def test_bytes_by_hand() -> None:
    lengths = {"G": 600, STATISTICS: 7}
    wanted = {"float32": 2428, "float16": 1214, "bfloat16": 1214, "int8": 600 + 3 * 4 + 28, "topk": 60 * (4 + 2) + 28}
    for wire, count in wanted.items():
        transfer = VectorTransfer(wire)
        assert transfer.count_bytes(lengths) == count
        report = transfer.label(Report({name: torch.zeros(n) for name, n in lengths.items()}, {}, 1.0))
        assert report.payload in (count, None)
        assert report.width == (2 if "16" in wire else 4)
    assert VectorTransfer("topk", 0.01).count_bytes({"G": 2**16 + 1}) == 655 * (4 + 4)


@pytest.mark.parametrize("wire", ["int8", "topk"])
def test_running_statistics_travel_as_they_are(wire: str) -> None:
    v = vectors(1, 9)
    assert torch.equal(VectorTransfer(wire).send(0, IDS[:1], {STATISTICS: v}, {})[0][STATISTICS], v)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedveca", "feddyn"])
@pytest.mark.parametrize("wire", ["float16", "int8", "topk"])
def test_the_debug_engine_sends_the_same(method: str, wire: Any) -> None:
    e = replace(E, method=method, wire=wire, participation=0.7, rounds=3)
    fast, plain = fedveca.run(e, device="cpu"), fedveca.run(replace(e, engine="debug"), device="cpu")
    assert [record["bytes_up"] for record in fast.rounds] == [record["bytes_up"] for record in plain.rounds]
    for name, v in plain.model.items():
        torch.testing.assert_close(fast.model[name], v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wire", ["float16", "int8", "topk"])
def test_the_mean_is_of_what_arrives(wire: Any) -> None:
    """One round of FedAvg, transcribed: the model as it comes down, each client's vector as it comes up."""
    e = replace(E, method="fedavg", wire=wire, rounds=1)
    built, plain = build(e), build(replace(e, wire="float32")).cohort
    transfer = VectorTransfer(wire, e.wire_share, e.seed)
    order, p = transfer.receive(built.algorithm.order(built.state)), built.cohort.sizes / built.cohort.sizes.sum()
    w = built.state.w
    for i in range(3):
        v = plain(0, order, IDS[i : i + 1], torch.tensor([3]))[1].mean["G"]
        memory = {RESIDUAL + "G": torch.zeros(1, len(v))}
        w = w - p[i] * e.lr * transfer.send(0, IDS[i : i + 1], {"G": v[None]}, memory)[0]["G"][0]
    ((state, record),) = federate(built.algorithm, built.cohort, built.state, 1)
    torch.testing.assert_close(state.w, w, rtol=1e-5, atol=1e-6)
    assert record["bytes_up"] == 3 * (transfer.count_bytes({"G": len(w)}) + 8)
    assert record["bytes_down"] == 3 * ((2 if wire == "float16" else 4) * len(w) + 8)


@pytest.mark.parametrize("engine", ["local", "debug"])
@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_clients_start_from_the_model_as_it_arrives(wire: Any, engine: Any) -> None:
    """Their losses, which are not rounded, are of the model in float16; with int8 of the model itself."""
    e = replace(E, method="fedavg", engine=engine, keep="best")
    w = 3 * vectors(1, 64)[0]
    tau = torch.ones(3, dtype=torch.int64)
    losses = {
        (form, start): build(replace(e, wire=form)).cohort(0, Order(model, {}), IDS, tau)[1].each["loss"]
        for form in ("float32", wire)
        for start, model in (("plain", w), ("rounded", w.half().float()))
    }
    assert not torch.equal(losses["float32", "plain"], losses["float32", "rounded"])
    arrives = "rounded" if wire == "float16" else "plain"
    assert torch.equal(losses[wire, "plain"], losses["float32", arrives])


def test_what_clients_remember_is_kept_over_a_resume(tmp_path: Path) -> None:
    """Two rounds, then two more: the same bytes as four, with a share of the clients per round."""
    e = replace(E, wire="topk", participation=0.7, rounds=4)
    whole = fedveca.run(e, tmp_path / "whole", device="cpu")
    fedveca.run(replace(e, rounds=2), tmp_path / "half", device="cpu")
    again = fedveca.resume(tmp_path / "half", rounds=4, device="cpu")
    for mine, other in zip(again.rounds, whole.rounds, strict=True):
        assert {**mine, "seconds": 0} == {**other, "seconds": 0}
    for name, v in whole.model.items():
        assert torch.equal(again.model[name], v), name


def test_the_clock_counts_the_bytes_that_travel(tmp_path: Path) -> None:
    file = tmp_path / "slow.csv"
    file.write_text("name,up_mbit\na,0.001\n", "utf-8")
    seconds = {}
    for wire in ("float32", "int8"):
        r = fedveca.run(Experiment(**{**vars(E), "rounds": 1, "wire": wire, "devices": str(file)}), device="cpu")
        seconds[wire] = r.rounds[0]["clock"], r.rounds[0]["bytes_up"] / 3 * 8 / 1000
    for clock, wanted in seconds.values():
        assert clock == pytest.approx(wanted, rel=1e-6)
    assert seconds["int8"][0] < 0.4 * seconds["float32"][0]


def test_a_method_without_clients_sends_nothing() -> None:
    e = replace(E, method="centralised", rounds=1)
    mine, other = fedveca.run(replace(e, wire="int8"), device="cpu"), fedveca.run(e, device="cpu")
    assert all(torch.equal(mine.model[name], v) for name, v in other.model.items())


@pytest.mark.parametrize(
    ("given_settings", "said"),
    [
        ({"wire": "int8", "dp_noise": 1.0}, "wire=int8 cannot go with dp_noise"),
        ({"wire": "topk", "aggregate": "median"}, "aggregate=median cannot go with wire=topk"),
        ({"wire": "topk", "aggregate": "trimmed"}, "aggregate=trimmed cannot go with wire=topk"),
        ({"wire": "topk", "wire_share": 0.0}, "wire_share=0.0 is out of range"),
    ],
)
def test_what_does_not_go_together(given_settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Experiment(**given_settings)


@pytest.mark.parametrize("wire", ["int8", "topk"])
def test_scaffnew_needs_the_whole_vectors(wire: Any) -> None:
    with pytest.raises(UserError, match=f"wire={wire} cannot go with method=scaffnew"):
        build(replace(E, method="scaffnew", wire=wire))


@pytest.mark.parametrize("wire", ["int8", "topk"])
@pytest.mark.parametrize("more", [{"faults": "drop:0.3"}, {"faults": "nan:0.3"}, {"aggregate": "clip"}])
def test_faults_and_clipping_go_with_it(wire: Any, more: dict[str, Any]) -> None:
    r = fedveca.run(replace(E, wire=wire, rounds=3, **more), device="cpu")
    assert all(np.isfinite(v.numpy()).all() for v in r.model.values())
    if more.get("faults") == "nan:0.3":
        assert all(len(record["ids"]) == 2 for record in r.rounds)
