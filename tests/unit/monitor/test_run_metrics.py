"""A run's figures: each is what the run's records say, and no text of a node becomes a label."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedveca.monitor.run_metrics import FAULT_REASONS, ROUND_PARTS, RunMetrics, classify_fault
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from fedveca.runs.schema import Round

E = Experiment(model="svm", clients=3, rounds=2, batch=8)


def read(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Figures by name and label values, as Prometheus would read them."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def record(k: int, faults: list[str] | None = None, **more: object) -> Round:
    found = {"round": k, "ids": [0, 2], "left_out": [1], "tau": [3, 4], "seconds": 1.5, "train_loss": 0.25}
    found |= {"faults": [{"client": 1, "what": what} for what in faults or []]}
    return found | more  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("timed out after 300 s", "timeout"),
        ("timed out after 300 s (attempt 1, void)", "timeout"),
        ("test: timed out after 300 s", "timeout"),
        ("answered round 3 too late", "late"),
        ("late", "late"),
        ("is not connected", "disconnected"),
        ("could not be asked: the SuperLink does not know its node", "disconnected"),
        ("unavailable", "disconnected"),
        ("drop", "disconnected"),
        ("crash", "disconnected"),
        ("has numbers that are not finite", "diverged"),
        ("validation: has numbers that are not finite", "diverged"),
        ("nan", "diverged"),
        ("failed: timed out after it was late (Flower's error 1)", "failed"),
        ("node 12 says it is client 1, but its key is not client 1's; it is not asked", "rejected"),
        ("sent G with a number that is not finite", "invalid"),
        ("sent 'timed out after', not 'G'", "invalid"),
        ("flip", "invalid"),
        ("", "invalid"),
    ],
)
def test_a_fault_has_one_of_a_few_reasons(what: str, reason: str) -> None:
    assert classify_fault(what) == reason


@given(st.text())
def test_any_text_has_a_reason_that_is_known(what: str) -> None:
    assert classify_fault(what) in FAULT_REASONS


def test_each_figure_is_what_the_records_say() -> None:
    parts = iter([{"send": 99.0}, {"send": 0.1, "answers": 0.6, "server": 0.2}, {"send": 0.2, "answers": 0.4}])
    metrics = RunMetrics(parts=lambda: next(parts), connected=lambda: 7)
    metrics.start(E, None)
    metrics.round(record(0, ["is not connected"], bytes_down=10, bytes_up=20, test_loss=0.9, test_accuracy=0.5))
    metrics.round(
        record(1, ["timed out after 1 s", "failed: x"], bytes_down=1, bytes_up=2, train_loss=0.125, test_accuracy=0.75)
    )
    found = read(metrics.registry)
    assert found[("fedveca_round",)] == 2
    assert found[("fedveca_rounds_planned",)] == E.rounds
    assert found[("fedveca_run_active",)] == 1
    assert found[("fedveca_run_info", E.data, E.method, E.model)] == 1
    assert found[("fedveca_train_loss",)] == 0.125
    assert found[("fedveca_test_value", "accuracy")] == 0.75
    assert found[("fedveca_test_value", "loss")] == 0.9
    states = {"asked": 3, "answered": 2, "left_out": 1, "connected": 7}
    assert {state: found[("fedveca_clients", state)] for state in states} == states
    faults = dict.fromkeys(FAULT_REASONS, 0) | {"disconnected": 1, "timeout": 1, "failed": 1}
    assert {reason: found[("fedveca_faults_total", reason)] for reason in FAULT_REASONS} == faults
    assert found[("fedveca_bytes_total", "down")] == 11
    assert found[("fedveca_bytes_total", "up")] == 22
    assert found[("fedveca_round_seconds_sum",)] == 3.0
    assert found[("fedveca_round_seconds_count",)] == 2
    spent = {part: found[("fedveca_round_part_seconds_total", part)] for part in ROUND_PARTS}
    assert spent == pytest.approx({"send": 0.3, "answers": 1.0, "server": 0.2})  # not what came before the first round
    metrics.end(Run(E, [], {}))
    assert read(metrics.registry)[("fedveca_run_active",)] == 0


def test_what_is_missing_or_diverged_is_not_made_up() -> None:
    metrics = RunMetrics()
    metrics.start(E, None)
    metrics.round(record(0, train_loss=None, test_loss=None, test_accuracy=float("nan")))
    found = read(metrics.registry)
    assert found[("fedveca_round",)] == 1
    assert not [name for name in found if name[0] == "fedveca_test_value"]
    assert ("fedveca_clients", "connected") not in found
    assert found[("fedveca_bytes_total", "up")] == 0


def test_the_number_of_series_is_bounded_whatever_nodes_and_records_say() -> None:
    metrics = RunMetrics()
    metrics.start(E, None)
    metrics.round(record(0))
    before = len(read(metrics.registry))
    for k in range(200):
        hostile = {f"test_{k}": 1.0, f"client_test_{k}": [1.0], f'test_x"}}\n{k}': 2.0}
        metrics.round(record(k, [f"sent {k}\nfedveca_round 9", f"node {k} {k}", f"failed: {k}"], **hostile))
    assert len(read(metrics.registry)) == before


def test_a_setting_is_a_bounded_label_on_one_line() -> None:
    metrics = RunMetrics()
    named = Experiment(model="package.module:" + "m" * 200)
    metrics.start(named, None)
    (labels,) = [name for name in read(metrics.registry) if name[0] == "fedveca_run_info"]
    assert len(labels[3]) < 80


def test_the_file_has_the_figures_of_the_last_round(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "run.prom")
    metrics.start(E, None)
    metrics.round(record(0))
    assert (tmp_path / "run.prom").read_bytes() == generate_latest(metrics.registry)
    assert re.search(r"^fedveca_round 1.0$", (tmp_path / "run.prom").read_text(), re.MULTILINE)


@pytest.mark.parametrize("engine", ["local", "debug"])
def test_figures_of_a_real_run(engine: Literal["local", "debug"], tmp_path: Path) -> None:
    metrics = RunMetrics()
    done = run(
        Experiment(model="svm", clients=3, rounds=3, batch=8, engine=engine), tmp_path / "run", observers=[metrics]
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    found = read(metrics.registry)
    assert found[("fedveca_round",)] == len(lines) == len(done.rounds)
    assert found[("fedveca_train_loss",)] == lines[-1]["train_loss"]
    assert found[("fedveca_test_value", "accuracy")] == lines[-1]["test_accuracy"]
    assert found[("fedveca_bytes_total", "up")] == sum(line["bytes_up"] for line in lines)
    assert found[("fedveca_round_seconds_sum",)] == pytest.approx(sum(line["seconds"] for line in lines))
    assert found[("fedveca_clients", "answered")] == 3
