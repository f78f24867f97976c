"""Runs with several metrics: what is recorded, and which of them everything that shows one value takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from recorded import require_number
from torch import Tensor

import fedveca
from fedveca import Experiment, from_arrays, resume, run
from fedveca.cli import main
from fedveca.errors import UserError
from fedveca.runs import schema
from fedveca.runs.compare import make_table
from fedveca.runs.evaluate import Evaluator
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import Stopped
from fedveca.runs.rebuild import RebuiltModel
from fedveca.runs.schema import describe_quantity, list_test_values
from fedveca.runs.value_text import format_value
from fedveca.tasks.metrics import MetricFunction
from fedveca.trackers.tracking import to_values
from fedveca.views.board.app import BoardApi
from fedveca.views.board.index import RunIndex
from fedveca.views.board.query import Query
from fedveca.views.comparison import compare_curves
from fedveca.views.report.report import write_report
from fedveca.views.series import group_curves, list_metrics

E = Experiment(model="logistic", rounds=3, batch=8, lr=0.05, tau_0=3, metric="f1,perplexity,accuracy,confusion")
NAMES = ["test_loss", "test_f1", "test_perplexity", "test_accuracy", "test_confusion"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(E, tmp_path_factory.mktemp("several") / "a", device="cpu")


def test_every_tested_round_and_both_models_have_all_metrics_in_their_order(done: Run) -> None:
    for record in (*done.rounds, done.summary["last"], done.summary["kept"]):
        assert [name for name in record if name.startswith("test_")] == NAMES
    assert done.folder
    assert Run.open(done.folder).rounds == done.rounds
    lines = (done.folder / "rounds.jsonl").read_text().splitlines()
    assert [name for name in json.loads(lines[0]) if name.startswith("test_")] == NAMES


def test_values_are_those_of_the_kept_model(done: Run) -> None:
    model = RebuiltModel(done)
    data = model.load_test_rows()
    scores, y = model.predict(model.prepare(data.x_test, "test")).scores, data.y_test
    table = torch.zeros(10, 10).long()
    for target, predicted in zip(y.tolist(), scores.argmax(1).tolist(), strict=True):
        table[target, predicted] += 1
    kept = done.summary["kept"]
    assert kept["test_confusion"] == table.tolist()
    right = [2 * table[c, c] / (table[c].sum() + table[:, c].sum()) for c in range(10)]
    assert kept["test_f1"] == pytest.approx(float(sum(right)) / 10)
    assert kept["test_accuracy"] == pytest.approx(float(table.diagonal().sum() / table.sum()))
    assert kept["test_perplexity"] == pytest.approx(np.exp(require_number(kept, "test_loss")), rel=1e-5)


def test_the_first_metric_is_the_main_one_everywhere(done: Run) -> None:
    assert done.folder
    assert done.metric == Run.open(done.folder).metric == "test_f1"
    assert done.score == done.summary["kept"]["test_f1"]
    assert done.best in done.rounds
    row = RunIndex(done.folder.parent).list_runs()[0]
    assert (row.metric, row.label, row.better, row.score) == ("test_f1", "f1", "higher", done.score)
    assert list_metrics([done]) == ["test_loss", "test_f1", "test_accuracy", "test_perplexity", "train_loss"]
    assert compare_curves(group_curves([done])).metric == "test_f1"
    assert list(make_table([done])[0]["kept"]) == NAMES[:-1]


def test_a_main_metric_that_is_better_low_is_the_one_that_is_compared(done: Run) -> None:
    low = run(replace(E, metric="perplexity,accuracy"), device="cpu")
    assert low.metric == compare_curves(group_curves([low])).metric == "test_perplexity"
    assert low.better("test_perplexity") == "lower"
    assert low.rounds[-1]["test_loss"] == done.rounds[-1]["test_loss"]  # what is reported does not change the run


def test_the_report_and_trackers_take_several_metrics(done: Run, tmp_path: Path) -> None:
    write_report([done], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Test F1" in page
    numbers = to_values(done.rounds[-1], done.experiment.clients).numbers
    assert numbers["test_f1"] == done.rounds[-1]["test_f1"]
    assert not any(name.startswith("test_confusion") for name in numbers)


def test_a_resumed_run_records_the_same(done: Run, tmp_path: Path) -> None:
    asked = iter([True])
    with pytest.raises(Stopped):
        run(E, tmp_path / "a", device="cpu", stop=lambda: next(asked, False))
    again = resume(tmp_path / "a", device="cpu")
    drop = ("seconds",)
    for a, b in zip(again.rounds, done.rounds, strict=True):
        assert {k: v for k, v in a.items() if k not in drop} == {k: v for k, v in b.items() if k not in drop}
    assert again.summary["kept"] == done.summary["kept"]


# functions


@fedveca.metric(better="higher")
def near(scores: Tensor, y: Tensor) -> Tensor:
    return ((scores[:, 0] - y).abs() < 0.5).float()


@fedveca.metric(better="lower")
def worst(scores: Tensor, y: Tensor) -> Tensor:
    return (scores[:, 0] - y).abs().max()


X = np.random.default_rng(0).normal(size=(120, 4))
DATA = from_arrays(X, X @ np.array([1.0, -2.0, 0.5, 0.0]))
SMALL = Experiment(partition="iid", clients=3, rounds=2, batch=8, lr=0.05, tau_0=3)


def test_a_list_of_functions_and_names(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    metrics: list[str | MetricFunction] = [near, worst, "absolute_error"]
    done = run(SMALL, tmp_path / "a", data=DATA, model=model, metric=metrics, device="cpu")
    assert done.experiment.metric == "custom:near,worst,absolute_error"
    assert list_test_values(done.summary["kept"]) == ["test_loss", "test_near", "test_worst", "test_absolute_error"]
    found = Run.open(tmp_path / "a")
    assert (found.better("test_near"), found.better("test_worst")) == ("higher", "lower")
    with torch.no_grad():
        model.load_state_dict(done.model)
        scores = model(DATA.x_test)
    for function in (near, worst):
        value = float(function(scores, DATA.y_test).mean())
        assert require_number(done.summary["kept"], f"test_{function.__name__}") == pytest.approx(value, rel=1e-5)
    more = resume(tmp_path / "a", rounds=3, data=DATA, model=torch.nn.Linear(4, 1), metric=metrics, device="cpu")
    assert len(more.rounds) == 3


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (["f1", "accuracy"], r"^metric=.* holds names only, .*: Experiment\(metric='f1,accuracy'\); here at least one"),
        ([near, near], r"^metric has two called near; "),
        ([], r"^metric is an empty list; "),
        ([near, "f1"], r"metric=f1 is for labels; y holds numbers: take absolute_error$"),
    ],
)
def test_lists_that_do_not_fit_are_rejected(metric: list[object], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        run(SMALL, tmp_path / "a", data=DATA, model=torch.nn.Linear(4, 1), metric=metric)  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()


def test_the_test_rows_of_a_metric_of_all_rows_are_passed_in_blocks() -> None:
    built = fedveca.build(SMALL, data=DATA, model=torch.nn.Linear(4, 1), metric=worst)
    whole = Evaluator(built.problem, built.data, "cpu")
    parts = Evaluator(built.problem, built.data, "cpu")
    parts.block = 5
    a, b = whole(built.state.w), parts(built.state.w)
    assert require_number(a, "test_worst") == pytest.approx(require_number(b, "test_worst"), rel=1e-6)
    assert a["test_loss"] == pytest.approx(b["test_loss"], rel=1e-6)


def test_a_metric_of_all_rows_takes_rows_that_are_read_lazily(tmp_path: Path) -> None:
    x = X.astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    y, kept = x @ np.array([1.0, -2.0, 0.5, 0.0], np.float32), []
    for source, lazy in ((x, False), (str(tmp_path / "x.npy"), True)):
        data = from_arrays(source, y, lazy=lazy)
        torch.manual_seed(0)
        kept.append(run(SMALL, data=data, model=torch.nn.Linear(4, 1), metric=worst, device="cpu").summary["kept"])
    assert kept[0] == kept[1]


# the last model is evaluated once: as that of its round, as the last and as the kept one


class Counting:
    """A metric of all rows that counts how often it is asked: once when it is tried, once per evaluation."""

    __name__ = "counting"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, scores: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return scores.mean()


@pytest.mark.parametrize(
    ("settings", "evaluations"),
    [
        ({"keep": "last"}, 6),
        ({"keep": "best"}, 6),  # here the kept model is the last one; an earlier one would be evaluated again
        ({"keep": "rollback"}, 6),
        ({"keep": "last", "test_every": 4}, 2),  # after rounds 4 and 6; the last model is that of round 6
    ],
)
def test_the_last_model_is_evaluated_once(settings: dict[str, object], evaluations: int) -> None:
    counting = Counting()
    done = run(SMALL.replace(rounds=6, **settings), data=DATA, model=torch.nn.Linear(4, 1), metric=counting)
    assert counting.calls - 1 == evaluations
    last, final = done.summary["last"], done.rounds[-1]
    assert [last[name] for name in ("test_loss",)] == [final["test_loss"]]
    if settings["keep"] != "best":
        assert done.summary["kept"] == last
    else:
        kept = done.summary["kept"]
        assert kept["test_loss"] == done.rounds[kept["round"] - 1]["test_loss"]


def test_a_custom_share_is_shown_in_per_cent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the run itself, and by whoever opens its folder later: terminal, figure, report, notebook and board."""

    @fedveca.metric(better="higher", unit="share")
    def sure(scores: Tensor, y: Tensor) -> Tensor:
        return (scores.softmax(-1).amax(-1) > 0.2).float()

    made = run(replace(E, metric="auto"), tmp_path / "made", device="cpu", metric=[sure, "f1"])
    assert made.environment["units"] == {"test_sure": "share"}
    assert made.score is not None
    assert made.score < 1
    shown = f"{100 * made.score:.2f} %"
    monkeypatch.setattr(schema, "_stated_units", {})  # another process
    assert format_value("test_sure", made.score) == f"{made.score:.4f}"
    opened = Run.open(tmp_path / "made")
    assert format_value("test_sure", made.score) == shown
    assert describe_quantity("clients_sure_worst").unit == "share"
    assert shown in opened._repr_html_()
    assert main(["show", str(tmp_path / "made")]) == 0
    assert shown in capsys.readouterr().out
    write_report([opened], tmp_path / "report.html")
    assert shown.removesuffix(" %") in (tmp_path / "report.html").read_text("utf-8")
    assert any("sure (%)" in axes.get_ylabel() for axes in opened.plot().axes)
    listed = BoardApi(tmp_path).list_runs(Query([]))
    assert listed["quantities"]["test_sure"]["unit"] == "share"  # type: ignore[index]


@pytest.mark.parametrize("unit", [3, "a\nb", "x" * 21])
def test_a_unit_is_a_short_text(unit: object) -> None:
    with pytest.raises(UserError, match="is not a unit; allowed: text of up to 20"):
        fedveca.metric(better="higher", unit=unit)  # type: ignore[arg-type]
