"""Which checkpoints belong to a run: settings by name, data by their hash; those of version 0.1 are converted."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from same_runs import SMALL, lines, same

from fedveca import Experiment, Run, resume, run
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.checkpoint import FORMAT, FORMAT_0_1, FREE, _read_header, identify_run, load_checkpoint, seal
from fedveca.runs.folder_writer import FORMER, LAST
from fedveca.runs.setting_checks import FIELDS

E = Experiment(**(SMALL | {"rounds": 4}))
FOLDERS = Path(__file__).parents[2] / "system" / "golden" / "folders"


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A run of four rounds, cut off after two."""
    run(replace(E, rounds=2), tmp_path / "cut", device="cpu")
    for name in ("summary.json", "model.safetensors", FORMER):
        (tmp_path / "cut" / name).unlink()
    (tmp_path / "cut" / "experiment.toml").write_text(E.toml())
    return tmp_path / "cut"


def reseal(folder: Path, without: tuple[str, ...] = (), form: str = FORMAT, **others: Any) -> None:
    """The checkpoint with other settings in it, and with a right sum."""
    content = (folder / LAST).read_bytes()
    header = _read_header(content)
    settings = {name: v for name, v in json.loads(header["settings"]).items() if name not in without} | others
    identity = {"settings": json.dumps(settings), "data": header["data"]}
    (folder / LAST).write_bytes(seal(load(content), identity, form))


def test_a_checkpoint_names_every_setting_that_decides_a_number(cut: Path) -> None:
    stored = json.loads(_read_header((cut / LAST).read_bytes())["settings"])
    assert stored.keys() == {field.name for field in fields(Experiment)} - set(FREE)
    assert all(stored[name] == getattr(E, name) for name in stored)


def test_a_setting_newer_than_the_checkpoint_has_its_default(cut: Path, tmp_path: Path) -> None:
    run(E, tmp_path / "whole", device="cpu")
    assert E.smooth == FIELDS["smooth"].default
    reseal(cut, without=("smooth", "wire"))
    resume(cut, device="cpu")
    same(tmp_path / "whole", cut)


def test_a_setting_newer_than_the_checkpoint_with_another_value_is_another_experiment(cut: Path) -> None:
    assert E.lr != FIELDS["lr"].default
    reseal(cut, without=("lr",))
    with pytest.raises(UserError, match=f"{LAST} belongs to another experiment or other data$"):
        resume(cut, device="cpu")


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - set(FREE)))
def test_every_setting_is_compared(name: str, tmp_path: Path) -> None:
    built = build(E)
    here = getattr(E, name)
    other = here + 1 if isinstance(here, int | float) else f"{here}x"
    named = {f"state.{key}": v.clone() for key, v in built.state._asdict().items()} | {"kept": built.state.w.clone()}
    named["numbers"] = torch.tensor([1.0, 0.0, 0.5, 0.5], dtype=torch.float64)
    named |= {f"memory.{key}": v.clone() for key, v in built.cohort.memory.save().items()}
    identity = identify_run(built)
    (tmp_path / LAST).write_bytes(seal(named, identity))
    assert load_checkpoint(tmp_path, built, "cpu")[0].round == 1
    settings = json.loads(identity["settings"]) | {name: other}
    (tmp_path / LAST).write_bytes(seal(named, identity | {"settings": json.dumps(settings)}))
    with pytest.raises(UserError, match="belongs to another experiment"):
        load_checkpoint(tmp_path, built, "cpu")


def test_free_settings_are_not_compared(cut: Path) -> None:
    free: dict[str, Any] = {
        "rounds": 99,
        "data_dir": "x",
        "test_every": 7,
        "track": "wandb",
        "ray_address": "auto",
        "memory_mb": 1,
    }
    assert free.keys() == set(FREE)
    reseal(cut, **free)
    assert resume(cut, device="cpu").summary["rounds"] == 4


def test_a_setting_that_is_not_known_is_rejected(cut: Path) -> None:
    reseal(cut, momentum=0.9)
    with pytest.raises(UserError, match=f"{LAST} belongs to another experiment or other data$"):
        resume(cut, device="cpu")


@pytest.mark.parametrize("settings", ["", "[]", "null", "[" * 100_000, '{"lr": '])
def test_settings_that_cannot_be_read_are_another_experiments(settings: str, cut: Path) -> None:
    content = (cut / LAST).read_bytes()
    identity = {"settings": settings, "data": _read_header(content)["data"]}
    (cut / LAST).write_bytes(seal(load(content), identity))
    with pytest.raises(UserError, match=f"{LAST} belongs to another experiment or other data$"):
        resume(cut, device="cpu")


@pytest.mark.parametrize("form", ["9", "1", ""])
def test_another_format_is_of_another_version(form: str, cut: Path) -> None:
    reseal(cut, form=form)
    with pytest.raises(UserError, match=rf"{LAST} has the format of another version of fedveca \('{form}'\)$"):
        resume(cut, device="cpu")


# version 0.1


OLD = sorted(path.name for path in FOLDERS.iterdir() if path.is_dir() and not (path / "summary.json").exists())


@pytest.mark.parametrize("name", OLD)
def test_a_checkpoint_of_0_1_is_converted_before_the_settings_are_written_anew(name: str, tmp_path: Path) -> None:
    """Its mark is of the text of experiment.toml: killed between the two, the run would be lost."""
    for folder in ("straight", "killed"):
        shutil.copytree(FOLDERS / name, tmp_path / folder)
    killed = tmp_path / "killed"
    assert _read_header((killed / LAST).read_bytes())["format"] == FORMAT_0_1
    text, e = (killed / "experiment.toml").read_text(), Run.open(killed).experiment
    assert text != e.toml()  # or this shows nothing
    keeper, note = load_checkpoint(killed, build(e), "cpu")
    assert (keeper.round, note) == (3, "")
    header = _read_header((killed / LAST).read_bytes())
    assert (header["format"], "mark" in header) == (FORMAT, False)
    assert (killed / "experiment.toml").read_text() == text  # not yet
    (killed / "experiment.toml").write_text(e.toml())  # now it is, and the process is killed
    resume(killed, device="cpu")
    resume(tmp_path / "straight", device="cpu")
    same(tmp_path / "straight", killed)
    assert len(lines(killed)) == e.rounds


def test_a_checkpoint_of_0_1_of_other_settings_is_rejected(tmp_path: Path) -> None:
    shutil.copytree(FOLDERS / OLD[0], tmp_path / "run")
    path = tmp_path / "run" / "experiment.toml"
    e = Run.open(tmp_path / "run").experiment
    text = path.read_text()
    assert f"lr = {e.lr}\n" in text
    path.write_text(text.replace(f"lr = {e.lr}\n", f"lr = {2 * e.lr}\n"))
    with pytest.raises(UserError, match="belongs to another experiment or other data"):
        resume(tmp_path / "run", device="cpu")
