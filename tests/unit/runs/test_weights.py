"""A run's model from its folder, and runs that start from a model on disk."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedveca import Experiment, Run, UserError, models, resume, run
from fedveca.cli import main
from fedveca.runs.build import build
from fedveca.runs.interrupt import Stopped
from fedveca.runs.weights import pack_model

E = Experiment(data="digits", hidden=5, rounds=2, batch=16, tau_0=2, lr=0.05)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(E, tmp_path_factory.mktemp("runs") / "first")


def test_an_opened_run_has_its_kept_model(done: Run) -> None:
    assert done.folder is not None
    opened = Run.open(done.folder)
    assert opened.model.keys() == done.model.keys()
    assert all(torch.equal(opened.model[name], v) for name, v in done.model.items())
    assert opened == Run.open(done.folder)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    module.load_state_dict(opened.model, strict=True)


def test_the_model_is_read_when_it_is_used(done: Run, tmp_path: Path) -> None:
    assert done.folder is not None
    copy = tmp_path / "copy"
    shutil.copytree(done.folder, copy)
    opened = Run.open(copy)
    (copy / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=f"^the model of {copy} cannot be read: "):
        len(opened.model)
    (copy / "model.safetensors").unlink()
    assert dict(Run.open(copy).model) == {}  # a run that has not ended


def test_a_run_starts_from_a_run_or_a_file(done: Run, tmp_path: Path) -> None:
    assert done.folder is not None
    file = done.folder / "model.safetensors"
    for init in (str(done.folder), str(file)):
        w = build(replace(E, init=init)).state.w
        assert torch.equal(build(E).problem.state(w)["1.weight"], done.model["1.weight"])
    second = run(replace(E, init=str(done.folder), seed=4), tmp_path / "second")
    environment = json.loads((tmp_path / "second" / "environment.json").read_text())
    assert environment["init_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert Run.open(tmp_path / "second").experiment.init == str(done.folder)
    first = second.rounds[0]["train_loss"]
    assert first is not None
    assert first < (done.rounds[0]["train_loss"] or 0)  # not from the start again


def test_convolutions_and_custom_modules_start_from_a_file(tmp_path: Path) -> None:
    e = replace(E, model="cnn", rounds=1)
    made = build(e)
    file = tmp_path / "a.safetensors"
    want = {name: torch.randn(v.shape) for name, v in made.problem.state(made.state.w).items()}
    save_file(want, file)
    w, running = pack_model(made.problem, want, "it")
    assert len(running) == 0
    assert torch.equal(build(replace(e, init=str(file))).state.w, w)
    assert all(torch.equal(v, want[name]) for name, v in made.problem.state(w).items())
    module = models.Cnn((1, 8, 8), 10)
    assert torch.equal(build(replace(e, init=str(file)), model=module).state.w, w)


def test_running_statistics_start_from_the_file_too(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    done = run(replace(E, rounds=1), tmp_path / "a", model=net)
    built = build(replace(E, init=str(tmp_path / "a")), model=net)
    state = built.problem.state(torch.cat([built.state.w, built.statistics]))
    assert torch.equal(state["1.running_mean"], done.model["1.running_mean"])
    assert float(built.statistics.abs().sum()) != float(built.problem.initial_statistics().abs().sum())


def test_a_frozen_weight_must_be_the_models(tmp_path: Path) -> None:
    layer = nn.Linear(64, 10)
    layer.bias.requires_grad_(False)
    net, file = nn.Sequential(nn.Flatten(), layer), tmp_path / "a.safetensors"
    save_file({"1.weight": torch.zeros(10, 64), "1.bias": layer.bias.detach().clone()}, file)
    assert float(build(replace(E, init=str(file)), model=net).state.w.abs().max()) == 0
    save_file({"1.weight": torch.zeros(10, 64), "1.bias": torch.ones(10)}, file)
    with pytest.raises(UserError, match=r"does not fit the model: 1.bias is frozen, and has other values there$"):
        build(replace(E, init=str(file)), model=net)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"1.bias": None}, "does not fit the model: it lacks 1.bias$"),
        ({"more": torch.ones(2)}, "does not fit the model: it has more, which the model does not have$"),
        ({"1.bias": torch.ones(6)}, r"does not fit the model: 1.bias has the shape \[6\], not \[5\]$"),
        ({"1.bias": torch.full((5,), torch.nan)}, "holds NaN or infinity in 1.bias; training starts from it$"),
    ],
)
def test_a_model_that_does_not_fit_gets_one_sentence(
    done: Run, tmp_path: Path, change: dict[str, torch.Tensor | None], said: str
) -> None:
    file = tmp_path / "a.safetensors"
    save_file({name: v for name, v in (dict(done.model) | change).items() if v is not None}, file)
    with pytest.raises(UserError, match=f"^init={file} {said}"):
        run(replace(E, init=str(file)), tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("papre", "init=papre is not known (did you mean paper?); it is paper, torch, or the path of a"),
        ("", "init= is not known; it is paper, torch, or the path of a .safetensors file or of a run folder"),
        ("./nowhere", "init=./nowhere is neither a .safetensors file nor a run folder"),
        ("nowhere.safetensors", "init=nowhere.safetensors cannot be read: nowhere.safetensors is missing"),
    ],
)
def test_what_is_no_model_is_named(
    init: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", f"init={init}", "rounds=1", "--out", "r"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_path_is_for_the_server_alone() -> None:
    """A node of a deployment gets w_0 with its orders, and does not look for the file."""
    from fedveca.deploy.node_process import make_node_cohort

    cohort = make_node_cohort(replace(E, init="/nowhere/a.safetensors"), 0, 10, "as-is")
    assert cohort.problem.size == 64 * 5 + 5 + 5 * 10 + 10


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^init={tmp_path} cannot be read: model.safetensors is missing$"):
        build(replace(E, init=str(tmp_path)))


def test_resuming_does_not_need_the_file_once_there_is_a_checkpoint(done: Run, tmp_path: Path) -> None:
    file = tmp_path / "start.safetensors"
    save_file({name: v.contiguous() for name, v in done.model.items()}, file)
    e = replace(E, init=str(file), rounds=4)
    whole = run(e, tmp_path / "whole")
    rounds = iter([False, True])
    with pytest.raises(Stopped):
        run(e, tmp_path / "part", stop=lambda: next(rounds, True))
    file.unlink()
    resumed = resume(tmp_path / "part")
    assert all(torch.equal(v, resumed.model[name]) for name, v in whole.model.items())
    stored = load_file(tmp_path / "part" / "model.safetensors")
    assert all(torch.equal(v, stored[name]) for name, v in whole.model.items())


def test_a_run_without_a_checkpoint_resumes_with_the_same_file_only(done: Run, tmp_path: Path) -> None:
    file = tmp_path / "start.safetensors"
    save_file({name: v.contiguous() for name, v in done.model.items()}, file)
    run(replace(E, init=str(file)), tmp_path / "a")
    for name in ("checkpoint.safetensors", "checkpoint.former.safetensors", "summary.json", "rounds.jsonl"):
        (tmp_path / "a" / name).unlink()
    (tmp_path / "a" / "rounds.jsonl").touch()
    save_file({name: 2 * v for name, v in done.model.items()}, file)
    with pytest.raises(UserError, match=r"cannot be resumed: init=.* is not the file that it started from$"):
        resume(tmp_path / "a")
