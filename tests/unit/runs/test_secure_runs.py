"""secure=on in a simulation: the open run to the stated error, the same integers in every engine, voids and bytes."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedveca.algorithms.contract import Order, Report
from fedveca.algorithms.registry import deployable_methods
from fedveca.cohorts.aggregate import Mean
from fedveca.cohorts.debug import DebugCohort
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.ray.worker import PartialMean, merge_means
from fedveca.cohorts.secure.cohort import SecureCohort
from fedveca.cohorts.secure.fixed_point import LARGEST_NORM, FixedPointSum, bound_error, choose_fraction
from fedveca.cohorts.secure.lengths import count_bytes
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import resume, run
from fedveca.runs.setting_fields import Weights

E = Experiment(model="svm", rounds=4, batch=8, lr=0.05, tau_0=4, keep="last")
P = 64


def ask(e: Experiment) -> tuple[Tensor, Report]:
    """The first round's report."""
    built = build(e)
    ids = torch.arange(e.clients)
    return built.cohort(0, built.algorithm.order(built.state), ids, built.state.tau)


def weights_of(done: Run) -> Tensor:
    return torch.cat([v.flatten() for v in done.model.values()])


@pytest.mark.parametrize("weights", ["rows", "uniform"])
def test_a_mean_is_the_open_one_to_the_stated_error(weights: Weights) -> None:
    """The open sum is of float32, which rounds by more than the fixed point does."""
    e = dataclasses.replace(E, weights=weights, method="scaffold")
    (_, hidden), (_, plain) = ask(dataclasses.replace(e, secure="on")), ask(e)
    assert hidden.mean.keys() == plain.mean.keys()
    assert bound_error(5, 1.0) < 5e-12
    for name, v in plain.mean.items():
        rounding = 4 * torch.finfo(torch.float32).eps * v.abs().max()
        assert float((hidden.mean[name] - v).abs().max()) <= bound_error(5, 1.0) + rounding


def test_the_mean_is_that_of_float64_to_the_stated_error() -> None:
    """Against the exact mean of the vectors that clients computed, before it is rounded to float32."""
    built = build(dataclasses.replace(E, secure="on"))
    local: Any = built.cohort.cohort  # type: ignore[attr-defined]
    seen: dict[int, Tensor] = {}

    def keep(k: int, ids: Tensor, vectors: Any, each: Any) -> Any:
        seen.update(zip(ids.tolist(), vectors["G"].double(), strict=True))
        return vectors, each

    local.send = keep
    _, report = local(0, built.algorithm.order(built.state), torch.arange(5), built.state.tau)
    rows = local.weights.double()
    exact = sum(rows[i] * seen[i] for i in range(5)) / rows.sum()
    fraction = choose_fraction(int(rows.sum()))
    found = report.mean["G"].double() * 2.0**-fraction / rows.sum()
    assert 0 < float((found - exact).abs().max()) <= bound_error(5, 1.0)


@pytest.mark.parametrize("method", deployable_methods())
def test_every_method_works_on_sums(method: str) -> None:
    e = dataclasses.replace(E, method=method, model="mlp", hidden=8, rounds=3, keep="best")
    hidden, plain = run(dataclasses.replace(e, secure="on")), run(e)
    assert float((weights_of(hidden) - weights_of(plain)).abs().max()) < 1e-4
    assert [record["tau"] for record in hidden.rounds] == [record["tau"] for record in plain.rounds]


def test_the_debug_engine_draws_masks_and_finds_the_same_integers() -> None:
    """Both engines on vectors with the same bits: one client per chunk, one thread."""
    e = dataclasses.replace(E, secure="on", method="scaffold")
    fast, plain = build(e).cohort, build(dataclasses.replace(e, engine="debug")).cohort
    assert isinstance(fast, SecureCohort)
    assert isinstance(fast.cohort, LocalCohort)
    assert isinstance(plain, SecureCohort)
    assert isinstance(plain.cohort, DebugCohort)
    vectors = {"G": torch.randn(5, 30), "dc": torch.randn(5, 7)}
    sums = []
    for rule in (fast.cohort.aggregate, plain.cohort.aggregate):
        aggregator = rule()
        for i in range(5):
            one = {name: v[i : i + 1] for name, v in vectors.items()}
            aggregator.add(aggregator.reduce(torch.tensor([3.0 + i]), one))
        sums.append(aggregator.close(1.0))
    assert type(plain.cohort.aggregate()).__name__ == "MaskedSum"
    assert all(torch.equal(sums[0][name], sums[1][name]) for name in vectors)
    assert plain.cohort.aggregate().close(0.0) == {}


def test_a_debug_run_is_the_local_one() -> None:
    e = dataclasses.replace(E, secure="on")
    a, b = (weights_of(run(dataclasses.replace(e, engine=engine))) for engine in ("local", "debug"))  # type: ignore
    assert float((a - b).abs().max()) < 1e-6


def test_workers_sums_are_added_as_integers() -> None:
    """2^62 + 1 has more bits than a float64."""
    a, b = (PartialMean({"G": np.array([v], np.int64)}, 2.0) for v in (2**62, 1))
    assert merge_means(a, b).mean["G"].tolist() == [2**62 + 1]
    assert merge_means(a, b).mass == 4.0


def test_lost_clients_below_the_threshold_make_a_round_void() -> None:
    """5 clients, of which 4 must answer: a round with fewer changes no model and no client's memory."""
    e = dataclasses.replace(E, secure="on", faults="drop:0.3", rounds=8, method="scaffold")
    records, here = run(e).rounds, []
    plain = run(dataclasses.replace(e, secure="off")).rounds
    for record, other in zip(records, plain, strict=True):
        here.append(len(other["ids"]))
        void = here[-1] < 4
        assert len(record["ids"]) == (0 if void else here[-1])
        if void:
            why = f"void: {here[-1]} of 5 clients answered; the threshold is 4"
            assert [f["what"] for f in record["faults"] if f["client"] in other["ids"]] == here[-1] * [why]
            assert record["accepted"] is False
    assert min(here) < 4 <= max(here[:-1]) < 6
    assert any(len(record["ids"]) == 4 for record in records)  # and those of 4 or 5 count


def test_a_void_round_leaves_the_clients_memory_alone() -> None:
    built = build(dataclasses.replace(E, secure="on", method="scaffold"))
    order, tau = built.algorithm.order(built.state), built.state.tau
    who, report = built.cohort(0, order, torch.tensor([0, 1, 2]), tau[:3])
    assert len(who) == 0
    assert not built.cohort.memory.save()
    assert {fault["client"] for fault in report.faults} == {0, 1, 2}
    who, _ = built.cohort(0, order, torch.tensor([0, 1, 2, 4]), tau[:4])
    assert who.tolist() == [0, 1, 2, 4]
    losses = built.cohort(0, order, torch.tensor([2]), torch.zeros(1, dtype=torch.int64))[1].each
    assert losses["loss"].numel() == 1  # a loss is not masked, so nobody need help


def test_the_threshold_can_be_set() -> None:
    built = build(dataclasses.replace(E, secure="on", secure_threshold=3))
    order, tau = built.algorithm.order(built.state), built.state.tau
    assert len(built.cohort(0, order, torch.tensor([0, 1, 2]), tau[:3])[0]) == 3
    assert len(built.cohort(0, order, torch.tensor([0, 1]), tau[:2])[0]) == 0


def test_bytes_count_the_protocol() -> None:
    """Masked numbers of 8 bytes in place of 4, and the keys and shares of 5 clients."""
    hidden, plain = run(dataclasses.replace(E, secure="on")).rounds, run(E).rounds
    size = (plain[0]["bytes_down"] // 5 - 8) // 4  # of w
    down, up = count_bytes(5, 5)
    for a, b in zip(hidden, plain, strict=True):
        assert a["bytes_down"] - b["bytes_down"] == down
        assert a["bytes_up"] - b["bytes_up"] == up + 5 * 2 * size * (8 - 4)  # G and grad


def test_the_bytes_of_a_model_of_430698_numbers_are_below_twice_the_open_ones() -> None:
    """P of the paper's CNN, 5 nodes, FedAvg: one vector down and one up per client."""
    size, clients = 430_698, 5
    plain = clients * (4 * size + 8) + clients * (4 * size + 2 * 8)
    down, up = count_bytes(clients, clients)
    hidden = plain + down + up + clients * size * 4
    assert hidden / plain == pytest.approx(1.5013, abs=5e-5)


@pytest.mark.parametrize("kind", ["faults", "participation"])
def test_resumed_equals_uninterrupted(kind: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"faults": "drop:0.15"} if kind == "faults" else {"clients": 8, "participation": 0.5}
    e = dataclasses.replace(E, secure="on", method="scaffold", rounds=6, **more)
    run(e, tmp_path / "whole")
    run(dataclasses.replace(e, rounds=3), tmp_path / "parts")
    resume(tmp_path / "parts", rounds=6)
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts")]
    assert all(v.numpy().tobytes() == models[1][name].numpy().tobytes() for name, v in models[0].items())
    whole, parts = (Run.open(tmp_path / name).rounds for name in ("whole", "parts"))
    for a, b in zip(whole, parts, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


def test_privacy_and_devices_go_with_it() -> None:
    """The server adds the noise to the sum, which is all it sees; a longer answer takes longer on a slow device."""
    pytest.importorskip("dp_accounting")
    e = dataclasses.replace(E, secure="on", dp_noise=0.5, dp_seed=1, clients=8)
    a, b = run(e), run(dataclasses.replace(e, secure="off"))
    assert float((weights_of(a) - weights_of(b)).abs().max()) < 1e-5
    e = dataclasses.replace(E, devices="phones")
    hidden, plain = run(dataclasses.replace(e, secure="on")).rounds[-1], run(e).rounds[-1]
    assert hidden["clock"] > plain["clock"]


@pytest.mark.parametrize("engine", ["local", "debug"])
def test_a_vector_beyond_the_range_does_not_count(engine: str) -> None:
    """As one that is not finite: its client is left out, in every engine, and the others' mean stands."""
    e = dataclasses.replace(E, secure="on", engine=engine, method="fedavg")  # type: ignore[arg-type]
    built = build(e)
    inner: Any = built.cohort.cohort  # type: ignore[attr-defined]

    def lengthen(k: int, ids: Tensor, vectors: Any, each: Any) -> Any:
        far = torch.where(ids == 2, 4 * LARGEST_NORM, 1.0)[:, None]
        return {name: v / v.norm(dim=-1, keepdim=True) * far for name, v in vectors.items()}, each

    inner.send = lengthen
    who, report = built.cohort(0, built.algorithm.order(built.state), torch.arange(5), built.state.tau)
    assert who.tolist() == [0, 1, 3, 4]
    assert float(report.mean["G"].norm()) < 1.01


def test_a_rule_without_a_bound_counts_every_finite_vector() -> None:
    assert Mean().largest == np.inf
    assert partial(FixedPointSum, 30)().largest == 2.0**22


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"aggregate": "median"}, "aggregate=median cannot go with secure=on: a robust rule needs"),
        ({"aggregate": "clip"}, "aggregate=clip cannot go with secure=on"),
        ({"wire": "float16"}, "wire=float16 cannot go with secure=on: masked numbers are whole numbers of 64 bits"),
        (
            {"schedule": "buffered", "devices": "phones", "keep": "last"},
            "schedule=buffered cannot go with secure=on: masks cancel between clients of one round",
        ),
        ({"secure": "off", "secure_threshold": 3}, "secure_threshold=3 is of secure=on"),
    ],
)
def test_settings_that_cannot_go_with_it(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError) as error:
        Experiment(**{"secure": "on", **settings})
    assert why in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"clients": 2}, "secure=on needs 3 clients or more per round; clients=2 with participation=1 draws 2"),
        ({"clients": 10, "participation": 0.2}, "clients=10 with participation=0.2 draws 2"),
        ({"secure_threshold": 2}, "allowed with 5 clients per round: [3, 5], or 0 for two thirds of them"),
        ({"secure_threshold": 6}, "secure_threshold=6 is out of range"),
        ({"method": "centralised"}, "secure=on cannot go with method=centralised, which has no clients"),
    ],
)
def test_clients_too_few_for_it(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError) as error:
        build(Experiment(secure="on", **settings))
    assert why in str(error.value)


def test_an_order_without_steps_is_passed_on() -> None:
    built = build(dataclasses.replace(E, secure="on"))
    order: Order = built.algorithm.order(built.state)
    _, report = built.cohort(0, order, torch.arange(5), torch.zeros(5, dtype=torch.int64))
    assert report.mean == {}
    assert report.overhead == (0, 0)
