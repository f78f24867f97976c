"""What a run folder says about who started the run and about its metric; a run as a frame and in a notebook."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from same_runs import SMALL
from torch import Tensor

import fedveca
from fedveca import Experiment, Run, build, compare_table, report, resume, run
from fedveca.cli import main
from fedveca.errors import UserError
from fedveca.runs.compare import make_table
from fedveca.runs.folder import COLUMNS_OF_A_FRAME
from fedveca.runs.interrupt import PYTHON, RUN, Stopped, find_starter, how_to_resume
from fedveca.tasks.datasets.dataset import load
from fedveca.views.figures.plot import RunFigure

E = Experiment(**(SMALL | {"rounds": 3}))
OWN = replace(load("digits"), name="custom:mine")


@fedveca.metric(better="higher")
def share_of_eights(scores: Tensor, y: Tensor) -> Tensor:
    return ((scores.argmax(1) == 8) & (y == 8)).float()


def plain(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.argmax(1) == y).float()


def environment(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "environment.json").read_text())
    return found


# who resumes it


def test_a_run_with_custom_objects_is_resumed_from_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    how = f"fedveca.resume({str(folder)!r}, ...) in Python, with the same objects"
    with pytest.raises(Stopped) as stopped:
        run(E, folder, device="cpu", data=OWN, stop=lambda: True)
    assert str(stopped.value) == f"stopped after round 1 of 3, all saved; resume it with: {how}"
    assert environment(folder)["started_by"] == PYTHON == "Python" == find_starter(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["run", "--resume", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said == f"fedveca: {folder} was made with custom objects (data=custom:mine); resume it with: {how}\n"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert resume(folder, device="cpu", data=OWN).summary["rounds"] == 3


def test_a_run_of_settings_alone_is_resumed_by_the_command(tmp_path: Path) -> None:
    """Also where it was started from Python, and where data that have a name were given."""
    for name, custom in (("a", {}), ("b", {"data": load("digits")})):
        with pytest.raises(Stopped, match=f"resume it with: fedveca run --resume {tmp_path / name}$"):
            run(E, tmp_path / name, device="cpu", stop=lambda: True, **custom)  # type: ignore[arg-type]
        assert "started_by" not in environment(tmp_path / name)
        assert find_starter(tmp_path / name) == RUN
        assert main(["run", "--resume", str(tmp_path / name), "--device", "cpu", "--quiet"]) == 0


@pytest.mark.parametrize("content", [None, "", "[]", '{"started_by": "someone"}', '{"started_by": 3}'])
def test_a_folder_that_does_not_say_who_started_it(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "environment.json").write_text(content)
    assert how_to_resume(tmp_path) == f"fedveca run --resume {tmp_path}"


# the direction of a metric


def test_what_a_custom_metric_states_is_in_the_folder(tmp_path: Path) -> None:
    e = replace(E, model="mlp", partition="iid")
    done = run(e, tmp_path / "run", device="cpu", metric=share_of_eights)
    assert done.metric == "test_share_of_eights"
    assert environment(tmp_path / "run")["better"] == {"test_share_of_eights": "higher"}
    for each in (done, Run.open(tmp_path / "run")):
        assert each.directions == {"test_share_of_eights": "higher"}
        assert each.better("test_share_of_eights") == "higher"
        assert each.better("test_loss") == "lower"
    more = resume(tmp_path / "run", rounds=4, device="cpu", metric=share_of_eights)
    assert more.directions == done.directions


def test_a_metric_that_states_nothing_has_no_direction(tmp_path: Path) -> None:
    for name, custom in (("custom", {"metric": plain}), ("known", {})):
        done = run(replace(E, model="mlp", partition="iid"), tmp_path / name, device="cpu", **custom)  # type: ignore[arg-type]
        assert "better" not in environment(tmp_path / name)
        assert done.directions == Run.open(tmp_path / name).directions == {}
    assert done.better("test_accuracy") == "higher"  # as the schema says
    assert done.better("test_plain") is None


@pytest.mark.parametrize("stated", ['"higher"', "3", '{"test_a": "best"}', '{"test_a": ["higher"]}', '{"test_a": {}}'])
def test_directions_that_no_run_writes_are_none(stated: str, tmp_path: Path) -> None:
    run(E, tmp_path / "run", device="cpu")
    (tmp_path / "run" / "environment.json").write_text(f'{{"better": {stated}}}')
    assert Run.open(tmp_path / "run").directions == {}


# as a frame, in a notebook


def test_a_frame_has_a_row_per_round() -> None:
    done = run(replace(E, test_every=2), device="cpu")
    frame = done.frame()
    assert list(frame["round"]) == [0, 1, 2]
    assert set(frame.columns) == {name for record in done.rounds for name in record}
    assert list(frame["tau"]) == [record["tau"] for record in done.rounds]
    assert frame["test_loss"].isna().tolist() == [True, False, False]
    assert frame["tau_k"].tolist() == [record["tau_k"] for record in done.rounds]


def test_a_frame_is_bounded_and_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(replace(E, rounds=1), device="cpu")
    record: Any = dict(done.rounds[0])
    record |= {f"x{n}": n for n in range(COLUMNS_OF_A_FRAME + 1 - len(record))}
    with pytest.raises(UserError, match=rf"^rounds\.jsonl has 1001 names; a frame has at most {COLUMNS_OF_A_FRAME}"):
        replace(done, rounds=[record]).frame()
    record.popitem()
    assert len(replace(done, rounds=[record]).frame().columns) == COLUMNS_OF_A_FRAME
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^run\.frame\(\) needs pandas: pip install pandas$"):
        done.frame()


def test_a_notebook_shows_a_run(tmp_path: Path) -> None:
    done = run(E, tmp_path / "run", device="cpu")
    shown = done._repr_html_()
    assert "FedVeca: svm on digits" in shown
    assert "3 of 3 rounds" in shown
    assert shown.count("<svg") >= 2  # curves
    assert "<script" not in shown
    kept = done.summary["kept"]["test_accuracy"]
    assert kept is not None
    assert f"{100 * kept:.2f}" in shown


# what a Run offers


@pytest.fixture(scope="module")
def short() -> Run:
    return run(Experiment(model="svm", rounds=4, batch=8, lr=0.05, tau_0=3), device="cpu")


def test_runs_and_built_parts_show_themselves_on_one_line(short: Run, tmp_path: Path) -> None:
    accuracy = short.summary["kept"]["test_accuracy"]
    task = "FedVeca, svm on digits, 5 clients, case3"
    assert repr(short) == f"Run({task}, 4/4 rounds, test_accuracy {accuracy:.4g})"
    assert repr(Run(short.experiment, [], {}, folder=tmp_path)) == f"Run({task}, 0/4 rounds, {tmp_path})"
    diverged = Run(short.experiment, short.rounds, {**short.summary, "stopped": "why"})
    assert repr(diverged).endswith(", diverged)")
    assert repr(build(short.experiment)) == f"Built({task}, 1438 training rows, 64 parameters)"


def test_the_best_round_is_the_one_with_the_best_test_value(short: Run) -> None:
    values = short.column("test_accuracy")
    assert short.best == short.rounds[values.index(max(values))]  # type: ignore[type-var]
    assert short.score == short.summary["kept"]["test_accuracy"]
    half = Run(short.experiment, short.rounds[:2], {})
    assert half.score == values[1]
    assert Run(short.experiment, [], {}).best is None
    unknown: Any = [{"round": k, "test_loss": loss, "test_hits": k} for k, loss in enumerate((3.0, 1.0, 2.0))]
    assert Run(short.experiment, unknown, {}).best == unknown[1]  # nobody stated which direction is better


def test_a_run_in_memory_is_saved_as_run_would_have_written_it(short: Run, tmp_path: Path) -> None:
    saved = short.save(tmp_path / "saved")
    assert saved.folder == tmp_path / "saved"
    written = run(short.experiment, tmp_path / "written", device="cpu")
    again = Run.open(tmp_path / "saved")
    assert (again.experiment, again.rounds, again.summary) == (short.experiment, short.rounds, short.summary)
    for name in ("experiment.toml", "environment.json", "model.safetensors"):
        assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / "written" / name).read_bytes()
    copy = written.save(tmp_path / "copy")
    assert Run.open(tmp_path / "copy").rounds == written.rounds
    assert copy.model.keys() == written.model.keys()
    with pytest.raises(UserError, match="already holds a run"):
        short.save(tmp_path / "copy")


def test_plot_and_report(short: Run, tmp_path: Path) -> None:
    figure = short.plot(tmp_path / "run.svg")
    assert [axis.get_ylabel() for axis in figure.axes][:2] == ["test loss", "test accuracy (%)"]
    assert (tmp_path / "run.svg").read_bytes().startswith(b"<?xml")
    assert isinstance(figure, RunFigure)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.get_suptitle() == "FedVeca, svm on digits, 5 clients, case3"
    with pytest.raises(UserError, match="is not the name of a figure"):
        short.plot(tmp_path / "run.txt")
    with pytest.raises(UserError, match="nothing to draw"):
        Run(short.experiment, [], {}).plot()
    assert short.report(tmp_path / "one.html") == tmp_path / "one.html"
    short.save(tmp_path / "runs" / "a")
    assert report(tmp_path / "runs", tmp_path / "two.html") == tmp_path / "two.html"
    for name in ("one.html", "two.html"):
        assert "svm" in (tmp_path / name).read_text("utf-8")
    assert compare_table([short]) == make_table([short])
    with pytest.raises(UserError, match="is not a list of runs"):
        report([3])  # type: ignore[list-item]


def test_a_column_that_no_round_has_is_rejected() -> None:
    done = run(Experiment(rounds=1, batch=8), device="cpu")
    assert len(done.column("test_accuracy")) == 1
    assert done.column("beta") == []  # recorded from the second round on
    with pytest.raises(UserError, match=r"^'test_acc' is not recorded in this run \(did you mean test_accuracy\?\)$"):
        done.column("test_acc")
