"""Nodes that evaluate on rows of their own: the simulator's values, checked answers, and a server without data."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
from flower_grid import Change, Grid
from flwr.app import Error
from flwr.supercore.task_identity import TaskIdentity

from fedveca.cohorts.flower import roster
from fedveca.cohorts.flower.cohort import FlowerCohort
from fedveca.cohorts.flower.forms import NodeForm, agree_on_form, read_form
from fedveca.cohorts.flower.messages import InvalidAnswer
from fedveca.cohorts.flower.roster import TooFewClients
from fedveca.deploy import server
from fedveca.deploy.exchange import decode_answer, encode
from fedveca.deploy.node_process import make_node_cohort, work
from fedveca.deploy.server import join_without_data, make_cohort
from fedveca.errors import UserError
from fedveca.runs.build import Built, build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import resume, run
from fedveca.runs.task_data import load_data
from fedveca.version import __version__

E = Experiment(
    model="mlp", clients=3, rounds=3, batch=8, lr=0.05, tau_0=3, round_timeout=5.0, partition="dirichlet",
    test_by="client", test_share=0.25, val=0.15, finetune_steps=2, metric="accuracy,f1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(roster, "_RETRY_SECONDS", 0.001)
    make_node_cohort.cache_clear()


def make_nothing_loadable(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The server's own loader fails from now on; that of the nodes, which are in this process, does not."""

    def fail(e: Experiment) -> None:
        raise AssertionError("the server loads data")

    monkeypatch.setattr(server, "load_test_data", fail)
    return monkeypatch.undo


def join(e: Experiment, folder: Path, changes: dict[tuple[int, int], Change] | None = None) -> tuple[FlowerCohort, Any]:
    grid: Any = Grid(e, folder, changes or {}, e.clients)
    cohort, data = join_without_data(grid, e, say=lambda text: None)
    return cohort, data


def compare_values(ours: Run, theirs: Run) -> None:
    for a, b in zip(ours.rounds, theirs.rounds, strict=True):
        for name, value in b.items():
            if not name.endswith("_seconds") and name.startswith(
                ("val_", "client_", "clients_", "tuned_", "test_", "tested", "accepted")
            ):
                assert a[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name  # type: ignore[literal-required]
    for name, v in theirs.model.items():
        assert float((ours.model[name] - v).abs().max()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        {},
        {"method": "scaffold", "keep": "last"},
        pytest.param(
            {"model": "real_models:normed", "norm_stats": "local", "metric": "accuracy"}, marks=pytest.mark.slow
        ),
        {"participation": 0.4, "val": 0.0},
        {"feature_noise": 0.1, "model": "svm", "metric": "accuracy"},
        {"data": "synthetic", "partition": "writer", "pixels": "auto"},
    ],
    ids=["best", "scaffold", "statistics", "partial", "noise", "synthetic"],
)
def test_a_server_without_data_gets_what_the_simulator_gets(words: dict[str, Any], tmp_path: Path) -> None:
    e = replace(E, **words)
    cohort, data = join(e, tmp_path)
    assert len(data.x) == 0
    assert bool((data.x_test == 0).all())
    done = run(e, tmp_path / "run", data=data, cohort=cohort, device="cpu")
    compare_values(done, run(e, device="cpu"))
    assert Run.open(tmp_path / "run").summary == done.summary


def test_both_test_where_the_server_has_rows(tmp_path: Path) -> None:
    e, data = replace(E, test_by="both"), load_data(E)[0]
    grid: Any = Grid(e, tmp_path, {}, e.clients)
    done = run(e, data=data, cohort=make_cohort(grid, e, data, say=lambda text: None), device="cpu")
    compare_values(done, run(e, device="cpu"))


@pytest.mark.slow
def test_a_run_without_data_at_the_server_is_resumed(tmp_path: Path) -> None:
    whole = run(E, tmp_path / "whole", data=join(E, tmp_path)[1], cohort=join(E, tmp_path)[0], device="cpu")
    cohort, data = join(replace(E, rounds=2), tmp_path)
    run(replace(E, rounds=2), tmp_path / "part", data=data, cohort=cohort, device="cpu")
    cohort, data = join(E, tmp_path)
    done = resume(tmp_path / "part", rounds=3, data=data, cohort=cohort, device="cpu")
    compare_values(done, whole)


def test_rows_of_a_nodes_own_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """{client} in the name is the client's number; the data set that the settings name is read nowhere."""
    simulated = replace(E, test_by="both")
    built = build(simulated)
    data, shares = load_data(simulated)
    for i in range(3):
        mine = shares.rows[shares.start[i] : shares.start[i + 1]]
        np.savez(tmp_path / f"rows-{i}.npz", x=data.x[mine].numpy(), y=data.y[mine].numpy())
    monkeypatch.setenv("FEDVECA_NODE_DATA", str(tmp_path / "rows-{client}.npz"))
    e = replace(E, data="mnist", data_dir=str(tmp_path / "nothing"), pixels=built.data.pixels)  # type: ignore[arg-type]
    cohort, rows = join(e, tmp_path)
    done = run(e, data=rows, cohort=cohort, device="cpu")
    want = run(simulated, device="cpu")
    for a, b in zip(done.rounds, want.rounds, strict=True):
        for name in ("client_test_loss", "client_tuned_accuracy", "val_loss", "clients_f1"):
            ours, theirs = (cast(dict[str, Any], record)[name] for record in (a, b))
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def test_serve_reads_no_data_where_clients_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_nothing_loadable(monkeypatch)
    grid: Any = Grid(E, tmp_path, {}, E.clients)

    class Context:
        run_config = asdict(E) | {"out": str(tmp_path / "run")}

    context: Any = Context()
    done = server.serve(grid, context)
    assert done.rounds[-1]["tested"] == [0, 1, 2]
    assert done.summary["kept"]["test_accuracy"] is not None
    assert Run.open(tmp_path / "run").model.keys() == done.model.keys()


# answers are checked


def put(record: str, name: str, value: Any) -> Change:
    return lambda records: records[record].__setitem__(name, value)


def built_of(cohort: FlowerCohort) -> Built:
    return build(E, data=load_data(E)[0], cohort=cohort)


WRONG: dict[str, tuple[Change, str]] = {
    "another client": (put("answer", "client", 0), "answered with client 0, not 1"),
    "other rows": (put("answer", "rows", 7), "answered with rows 7, not"),
    "a word too many": (put("answer", "extra", 1), "answered with ['extra'] besides client, round, rows"),
    "a loss that is NaN": (put("numbers", "loss", float("nan")), "loss = nan, which is not a finite number"),
    "a loss below zero": (put("numbers", "loss", -0.5), "loss = -0.5, which cannot be negative"),
    "a loss beyond float32": (put("numbers", "loss", 1e60), "loss = 1e+60, which is beyond float32"),
    "an accuracy above 1": (put("numbers", "accuracy", 1.5), "sent accuracy = 1.5; allowed: 0 to 1"),
    "a name too many": (put("numbers", "auc", 0.5), "sent ['accuracy', 'auc', 'f1', 'loss'], not"),
    "no loss": (lambda records: records["numbers"].pop("loss") and None, "sent ['accuracy', 'f1'], not"),
    "an error": (lambda records: Error(1, "out of paper"), "failed: out of paper"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_left_out_and_recorded(name: str, tmp_path: Path) -> None:
    change, said = WRONG[name]
    grid: Any = Grid(E, tmp_path, {(1, 0): change}, E.clients)
    cohort = make_cohort(grid, E, load_data(E)[0], say=lambda text: None)
    built = built_of(cohort)
    scores = cohort.evaluate(0, built.algorithm.order(built.state), "test")
    assert scores.ids.tolist() == [0, 2]
    assert [fault["client"] for fault in scores.faults] == [1]
    assert scores.faults[0]["what"].startswith("test: ")
    assert said in scores.faults[0]["what"]


def test_a_node_whose_model_diverged_is_recorded_as_null(tmp_path: Path) -> None:
    grid: Any = Grid(E, tmp_path, {}, E.clients)
    cohort = make_cohort(grid, E, load_data(E)[0], say=lambda text: None)
    built = built_of(cohort)
    order = built.algorithm.order(built.state._replace(w=torch.full_like(built.state.w, 1e30)))
    scores = cohort.evaluate(0, order, "val")
    assert scores.ids.tolist() == [0, 1, 2]
    assert bool(scores.values["loss"].isnan().all())
    assert scores.faults == ()


def test_a_node_that_does_not_answer_in_time_is_left_out_of_the_record(tmp_path: Path) -> None:
    """It is named in the round's faults; the means are of the others."""
    cohort, data = join(replace(E, round_timeout=0.05), tmp_path)
    grid: Any = cohort.grid
    pull, silent = grid.pull_messages, [True]

    def pull_all_but_one(ids: Any) -> Any:
        found = pull(ids)
        return [] if silent[0] and any(m.metadata.src_node_id == 102 for m in found) else found

    grid.pull_messages = pull_all_but_one
    done = run(replace(E, rounds=1, finetune_steps=0), data=data, cohort=cohort, device="cpu")
    record = done.rounds[0]
    assert record["tested"] == [0, 1]
    assert len(record["client_test_loss"]) == 2  # type: ignore[typeddict-item]
    said = [fault["what"] for fault in record["faults"] if fault["client"] == 2]
    assert "test: timed out after 0.05 s" in said
    assert "validation: timed out after 0.05 s" in said


# what rows look like

FORM = NodeForm((8,), (), False, "as-is", 10)


def test_a_form_survives_its_journey() -> None:
    for form in (FORM, NodeForm((3, 4, 5), (7,), False, "unit", 0), NodeForm((9,), (9,), True, "as-is", 80)):
        assert read_form(form.to_settings()) == form


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"shape": ""}, "says its rows have no shape"),
        ({"shape": "8,x"}, "says its rows have shape '8,x', which are not sizes"),
        ({"shape": "0"}, "says its rows have shape '0', which are not sizes"),
        ({"shape": "9" * 50}, "which are not sizes"),
        ({"shape": ",".join("2" * 9)}, "which are not sizes"),
        ({"targets": 3}, "says its rows have targets 3, which are not sizes"),
        ({"tokens": 1}, "says of its rows that tokens is 1, not True or False"),
        ({"classes": -1}, "says it has -1 labels; allowed: 0 to 1048576"),
        ({"classes": True}, "says it has True labels; allowed: 0 to 1048576"),
        ({"pixels": "\x1b[2J"}, "says its rows are prepared by pixels='\\x1b[2J', which is not known"),
        ({"pixels": "channels:1:1"}, "which is not known"),
    ],
)
def test_what_is_not_a_form_is_rejected(words: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidAnswer) as error:
        read_form(FORM.to_settings() | words)
    assert said in str(error.value)


def test_most_clients_decide_what_rows_look_like() -> None:
    odd = FORM._replace(shape=(9,))
    agreed, out = agree_on_form({0: odd, 1: FORM._replace(classes=4), 2: FORM})
    assert agreed == FORM  # the labels of all
    assert out == {
        0: "has rows (pixels=as-is) of shape [9] with targets of shape []; "
        "most clients have rows (pixels=as-is) of shape [8] with targets of shape []"
    }
    assert agree_on_form({0: odd, 1: FORM})[0] == odd  # the lowest number decides between equals
    assert agree_on_form({0: FORM, 1: FORM._replace(classes=0)})[0].classes == 0  # numbers to predict


def test_the_odd_node_is_rejected_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "_JOIN_SECONDS", 0.3)
    said: list[str] = []
    e = replace(E, round_timeout=0.3)
    grid: Any = Grid(e, tmp_path, {(1, -1): put("answer", "shape", "7,7")}, e.clients)
    with pytest.raises(TooFewClients) as error:
        join_without_data(grid, e, say=said.append)
    text = "node 101 has rows (pixels=as-is) of shape [7, 7] with targets of shape []; most clients have rows"
    assert str(error.value).startswith(f"clients 1 of 3 did not connect; {text}")
    assert sum(line.startswith(text) for line in said) == 1


def test_the_odd_node_may_come_back_with_the_right_rows(tmp_path: Path) -> None:
    wrong = [put("answer", "shape", "7,7")] * 2

    def change(records: dict[str, Any]) -> None:
        if wrong:
            wrong.pop()(records)

    cohort, _ = join(E, tmp_path, {(1, -1): change})
    assert len(cohort.sizes) == 3
    assert "has rows (pixels=as-is) of shape [7, 7]" in cohort.faults[0]["what"]


def test_nodes_that_hold_nothing_back_are_not_enough(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^test_share=0.0001 leaves no client a row to hold back"):
        join(replace(E, test_share=0.0001), tmp_path)


def test_a_node_says_how_many_rows_it_holds_back(tmp_path: Path) -> None:
    held = build(E).held
    assert held
    for i in range(3):
        request: Any = {"settings": asdict(E), "client": i, "order": {"classes": 10, "pixels": "as-is"}}
        fields = decode_answer(work(encode(request, {}), tmp_path))[0]["fields"]
        sizes = [int(part.sizes[i]) for part in held]
        rows = {"rows": sizes[0], "val": sizes[1], "test": sizes[2]}
        assert fields == {"client": i, "version": __version__, **rows}
    assert "FEDVECA_TEST_DATA" not in os.environ
