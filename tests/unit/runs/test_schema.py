"""One schema: every recorded quantity is declared once, and what is not a value of it is rejected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor

from fedveca import Experiment, FedAvg, from_arrays, run
from fedveca.algorithms.contract import AskLoss, Fault, ServerState
from fedveca.algorithms.registry import methods
from fedveca.errors import UserError
from fedveca.runs import schema
from fedveca.runs.schema import FAMILIES, LARGEST_NUMBER, SCHEMA, Quantity, Round
from fedveca.runs.validate_records import validate_round, validate_summary
from fedveca.tasks.metric_settings import TABLES
from fedveca.tasks.metrics import METRICS


def model_for(method: str) -> str:
    """The quickest model that a method takes: one with a loss of its own does not take the closed form."""
    return "logistic" if methods()[method].algorithm.has_loss else "svm"


@dataclass(frozen=True)
class HighestLoss(FedAvg):
    chooses: ClassVar[bool] = True

    def choose(self, state: ServerState, p: Tensor, u: Tensor, m: int, ask: AskLoss) -> Tensor:
        return ask(torch.arange(len(p))).topk(m).indices


SMALL = Experiment(model="svm", rounds=3, batch=8, lr=0.05, tau_0=3)
REGRESSION = from_arrays(np.eye(40, 4), np.arange(40.0))
RUNS: dict[str, tuple[Experiment, dict[str, Any]]] = {
    **{name: (replace(SMALL, method=name, model=model_for(name)), {}) for name in methods()},
    "rollback": (replace(SMALL, keep="rollback"), {}),
    "last": (replace(SMALL, method="fedavg", keep="last"), {}),
    "privacy": (replace(SMALL, partition="iid", dp_noise=1.0), {}),
    "faults": (replace(SMALL, faults="drop:0.5,nan:0.2", rounds=6), {}),
    "growth": (replace(SMALL, method="fedavg", lr=1.0, rounds=4), {}),
    "guard": (replace(SMALL, method="fedavg", lr=1.0, rounds=8, guard="on"), {}),
    "choice": (replace(SMALL, participation=0.4), {"method": HighestLoss(0.05)}),
    "schedule": (replace(SMALL, lr_schedule="cosine"), {}),
    "classes": (replace(SMALL, model="mlp", metric="f1,balanced_accuracy,precision,recall,top5,confusion"), {}),
    "two classes": (replace(SMALL, model="svm", metric="auc,perplexity"), {}),
    "regression": (replace(SMALL, model="mlp", partition="iid", batch=4), {"data": REGRESSION}),
    "devices": (replace(SMALL, devices="phones"), {}),
    "buffered": (replace(SMALL, devices="phones", schedule="buffered", keep="last"), {}),
    "clients": (replace(SMALL, test_by="both", val=0.1, finetune_steps=2), {}),
}

OF_NODES = {  # what only a deployment or its replay records: tests/unit/deploy checks it
    *("wait_seconds", "work_seconds", "probe_seconds", "step_seconds", "order_bytes", "answer_bytes"),
    *("evaluation_seconds", "predicted_seconds"),
}


def fits(quantity: Quantity, value: object, record: Mapping[str, Any]) -> bool:
    """The kind of a value, said once more in other words than the schema's."""
    if quantity.kind == "flag":
        return value is True or value is False
    if quantity.kind == "faults":
        return bool(value) and all(set(v) == {"client", "what"} for v in value)  # type: ignore[attr-defined]
    if quantity.kind == "text":
        return isinstance(value, str)
    wanted = (int,) if quantity.whole else (int, float, type(None))
    if quantity.kind == "number":
        return type(value) in wanted
    assert isinstance(value, list)
    if quantity.kind == "table":
        assert len({len(value), *(len(row) for row in value)}) == 1
        value = [v for row in value for v in row]
    if quantity.kind.startswith("per "):
        over = {"per client": "ids", "per tested client": "tested", "per candidate": "candidates"}
        assert len(value) == len(record[over[quantity.kind]])
    return all(type(v) in wanted for v in value)


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[Round]]:
    return {name: run(e, device="cpu", **custom).rounds for name, (e, custom) in RUNS.items()}


def test_every_recorded_name_is_a_quantity_of_its_kind(recorded: dict[str, list[Round]]) -> None:
    seen: set[str] = set()
    for name, rounds in recorded.items():
        for k, record in enumerate(rounds):
            assert validate_round(record, k)
            for key, value in record.items():
                quantity = schema.find_quantity(key)
                assert quantity, (name, key)
                assert fits(quantity, value, record), (name, key, value)
            seen |= record.keys()
    assert seen - SCHEMA.keys() == {
        f"{family.prefix}{metric}{family.suffix}" for family in FAMILIES for metric in ("loss", "accuracy")
    }
    assert seen >= SCHEMA.keys() - OF_NODES  # and nothing is declared that no run records


def test_the_types_of_a_round_name_the_same_quantities() -> None:
    assert get_type_hints(Round, localns={"Fault": Fault}).keys() == SCHEMA.keys()


def test_the_page_of_metrics_names_every_quantity() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in SCHEMA if f"`{name}`" not in page] == []
    assert [f.prefix + "M" + f.suffix for f in FAMILIES if f"`{f.prefix}M{f.suffix}`" not in page] == []


@pytest.mark.parametrize(
    ("name", "label", "better", "unit"),
    [
        ("val_accuracy", "Validation accuracy", "higher", "share"),
        ("client_test_loss", "Loss of each client", "lower", ""),
        ("client_tuned_f1", "F1 of each client after local steps", "higher", "share"),
        ("clients_accuracy", "Mean accuracy over clients", "higher", "share"),
        ("clients_accuracy_rows", "Mean accuracy by rows", "higher", "share"),
        ("clients_loss_sd", "Spread of the loss over clients", None, ""),
        ("tuned_loss_worst", "Worst tenth of the clients: loss after local steps", "lower", ""),
        ("clients_near_half_best", "Best tenth of the clients: near half", "lower", ""),
    ],
)
def test_a_quantity_of_a_family_has_the_unit_and_the_direction_of_its_metric(
    name: str, label: str, better: schema.Direction | None, unit: str
) -> None:
    found = schema.describe_quantity(name, {"test_near_half": "lower"})
    assert (found.label, found.better, found.unit) == (label, better, unit)


@pytest.mark.parametrize(
    ("name", "value"),
    [("client_test_loss", 0.5), ("client_test_loss", ["x"]), ("clients_accuracy", [0.5]), ("tested", [0.5])],
)
def test_a_value_of_a_family_that_no_run_writes_is_rejected(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"invalid value for {name}"):
        validate_round({"round": 0, name: value}, 0)


# numbers


@pytest.mark.parametrize("value", [0, -3, 0.5, LARGEST_NUMBER, -LARGEST_NUMBER, 10**150 // 10])
def test_a_number(value: float) -> None:
    assert schema.is_number(value)
    assert schema.finite_number(value) == value


@pytest.mark.parametrize(
    "value",
    [1e305, -1e305, True, False, math.nan, math.inf, -math.inf, 10**400, -(10**400), "1", None, [1], np.int64(1)],
)
def test_not_a_number(value: object) -> None:
    assert not schema.is_number(value)
    assert schema.finite_number(value) is None
    assert schema.get_number({"a": value}, "a") is None


def test_a_count_is_a_whole_number_of_64_bits() -> None:
    assert [schema.is_count(v) for v in (0, 2**63 - 1, -(2**63) + 1)] == [True] * 3
    assert [schema.is_count(v) for v in (2**63, 1.0, True, None, "1")] == [False] * 5


# directions


def test_a_custom_metric_is_described_by_what_it_stated() -> None:
    for better in ("higher", "lower"):
        found = schema.describe_quantity("test_near_half", {"test_near_half": better})  # type: ignore[dict-item]
        assert found == Quantity("test_near_half", "Test near half", better=better)  # type: ignore[arg-type]
    assert schema.describe_quantity("test_near_half") == Quantity("test_near_half", "Test near half", better=None)
    assert schema.describe_quantity("test_near_half", {"test_far": "higher"}).better is None
    known = schema.describe_quantity("test_accuracy", {"test_accuracy": "lower"})
    assert (known.better, known.unit) == ("higher", "share")  # nobody restates what is known


def test_losses_are_better_low_and_accuracy_is_better_high() -> None:
    stated = {name: quantity.better for name, quantity in SCHEMA.items() if quantity.better}
    assert stated == {
        "train_loss": "lower",
        "test_loss": "lower",
        "test_accuracy": "higher",
        "test_absolute_error": "lower",
        "test_f1": "higher",
        "test_balanced_accuracy": "higher",
        "test_precision": "higher",
        "test_recall": "higher",
        "test_top5": "higher",
        "test_auc": "higher",
        "test_perplexity": "lower",
        "epsilon": "lower",
    }


def test_the_schema_states_of_metrics_what_they_state_of_themselves() -> None:
    for name, metric in METRICS.items():
        quantity = SCHEMA[f"test_{name}"]
        assert (quantity.better, quantity.unit) == (metric.better, metric.unit), name
        assert (quantity.kind == "table") == metric.table == (name in TABLES), name


def test_the_best_of_some_values() -> None:
    values = [0.5, None, 0.75, 1e305, 0.25]
    assert schema.pick_best(values, "higher") == 0.75
    assert schema.pick_best(values, "lower") == 0.25
    assert schema.pick_best(values, None) is None
    assert schema.pick_best([None, math.nan], "higher") is None


def test_the_metric_is_the_test_value_beside_the_loss() -> None:
    assert schema.find_metric([{"round": 0}, {"test_loss": 1.0, "test_worst": 2.0}]) == "test_worst"
    assert schema.find_metric([{"test_loss": 1.0}]) == "test_accuracy"
    assert schema.find_metric([]) == "test_accuracy"
    several = {"test_loss": 1.0, "test_confusion": [[1]], "test_f1": None, "test_accuracy": 0.5}
    assert schema.find_metric([several]) == "test_f1"  # the first number, also where it is null
    assert schema.list_test_values({"round": 1, **several}) == ["test_loss", "test_f1", "test_accuracy"]


@pytest.mark.parametrize("table", [3, [1], [[1.5]], [[True]], [["1"]], [[None]], {}])
def test_a_table_is_lists_of_counts(table: object) -> None:
    good = {"round": 0, "test_loss": 1.0, "test_confusion": [[1, 0], [2, 3]]}
    summary = {"tau_all": 1, "last": good, "kept": good}
    assert validate_round(good, 0)
    assert validate_summary(summary)
    with pytest.raises(UserError, match=r"^line 1 of rounds.jsonl: invalid value for test_confusion$"):
        validate_round({**good, "test_confusion": table}, 0)
    with pytest.raises(UserError, match=r"^summary.json: invalid value for kept$"):
        validate_summary({**summary, "kept": {**good, "test_confusion": table}})


# what no run writes


WRONG: list[tuple[str, object]] = [
    ("round", 1),
    ("round", False),
    ("round", 0.0),
    ("ids", 3),
    ("ids", [0.5]),
    ("tau", [True]),
    ("tau", [2**63]),
    ("tau_k", "3"),
    ("beta", [1e305]),
    ("accepted", 1),
    ("accepted", None),
    ("train_loss", 1e305),
    ("test_accuracy", [0.5]),
    ("faults", {}),
    ("bytes_up", 0.5),
    ("bytes_up", None),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_line_with_an_invalid_value(name: str, value: object) -> None:
    record = {"round": 0, "ids": [0], "left_out": [], "tau": [3]}
    assert validate_round(record, 0)
    with pytest.raises(UserError, match=f"^line 1 of rounds.jsonl: invalid value for {name}$"):
        validate_round(record | {name: value}, 0)


def test_a_line_counts_from_one_and_needs_its_round() -> None:
    with pytest.raises(UserError, match=r"^line 8 of rounds\.jsonl: invalid value for round$"):
        validate_round({"ids": []}, 7)
    assert validate_round({"round": 7, "train_loss": None, "mine": "anything"}, 7)


def test_a_summary_with_an_invalid_value() -> None:
    result = {"round": 3, "test_loss": 0.5, "test_accuracy": None}
    right = {"tau_all": 9, "last": result, "kept": result}
    assert validate_summary(right)
    for name, value in (
        ("tau_all", 9.0),
        ("tau_all", None),
        ("last", None),
        ("last", {"round": 3}),
        ("kept", result | {"round": True}),
        ("kept", result | {"test_loss": 1e305}),
        ("kept", result | {"test_worst": "x"}),
    ):
        with pytest.raises(UserError, match=rf"^summary\.json: invalid value for {name}$"):
            validate_summary(right | {name: value})
