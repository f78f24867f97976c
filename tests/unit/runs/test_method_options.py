"""Methods from a file, and hyperparameters of methods that are not settings themselves."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedveca import Experiment, FedAvg, compare, run
from fedveca.algorithms import registry
from fedveca.algorithms.registry import is_adaptive, load_method
from fedveca.cli import main
from fedveca.runs.build import make_method
from fedveca.runs.folder import Run
from fedveca.runs.method_options import parse_method_options
from fedveca.views.series import find_look

METHODS = """
from dataclasses import dataclass
from typing import ClassVar

from fedveca import FedAvg, hyper
from fedveca.algorithms import Algorithm


@dataclass(frozen=True)
class Part(FedAvg):
    part: float = hyper(0.5, "of the step", low=0, high=1)
    times: int = 1
    word: str = "none"
    flag: bool = False
    mu: float = 0.75
    odd: tuple = ()

    def update(self, state, ids, p, report):
        return state._replace(w=state.w - self.lr * self.part * report.mean["G"]), {}


@dataclass(frozen=True)
class Steps(FedAvg):
    adapts: ClassVar[bool] = True


@dataclass(frozen=True)
class Unfinished(Algorithm):
    lr: float


@dataclass(frozen=True)
class Wrong(FedAvg):
    def update(self, state, ids, p, report):
        return state._replace(w=report.mean["misspelt"]), {}


class Plain: ...
"""
SMALL: dict[str, Any] = {"model": "svm", "rounds": 2, "batch": 8, "tau_0": 2, "lr": 0.05}


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "some_methods.py").write_text(METHODS)
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in registry._loaded if name.startswith("some_methods:")]:
        registry._loaded.pop(name)
    sys.modules.pop("some_methods", None)


def test_a_class_in_a_file_is_a_method(tmp_path: Path) -> None:
    e = Experiment(method="some_methods:Part", **SMALL)
    assert "some_methods" not in sys.modules  # settings alone import nothing
    done = run(e, tmp_path / "run", device="cpu")
    assert done.experiment.method == "some_methods:Part"
    assert repr(make_method(e)) == "Part(lr=0.05, part=0.5, times=1, word='none', flag=False, mu=0.1, odd=())"
    again = run(e, method=load_method("some_methods:Part").algorithm(lr=0.05), device="cpu")  # type: ignore[call-arg]
    assert again.summary["kept"] == done.summary["kept"]
    assert find_look("some_methods:Part")[0] == "Part"


def test_a_record_that_names_a_method_imports_nothing(tmp_path: Path) -> None:
    run(Experiment(method="some_methods:Steps", **SMALL), tmp_path / "run", device="cpu")
    assert is_adaptive("some_methods:Steps")
    registry._loaded.pop("some_methods:Steps")
    sys.modules.pop("some_methods")
    assert Run.open(tmp_path / "run").experiment.method == "some_methods:Steps"
    assert find_look("some_methods:Steps")[0] == "Steps"
    assert not is_adaptive("some_methods:Steps")
    assert main(["report", str(tmp_path / "run"), "-q"]) == 0
    assert "some_methods" not in sys.modules


def test_options_have_the_types_of_the_fields() -> None:
    e = Experiment(method="some_methods:Part", method_options="part=0.25, times=3,word=fc1 fc2,flag=on", **SMALL)
    made = "Part(lr=0.05, part=0.25, times=3, word='fc1 fc2', flag=True, mu=0.1, odd=())"
    assert repr(make_method(e)) == made
    assert repr(make_method(Experiment(method="corrected", method_options="by_rows=off"))).count("by_rows=False") == 1
    assert parse_method_options("") == {}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method_options": "part"}, "method_options=part: 'part' is not NAME=VALUE"),
        ({"method_options": "part=1,part=1"}, "method_options=part=1,part=1: 'part=1' is named twice"),
        (
            {"method_options": "parts=1"},
            "parts is not a hyperparameter of method=some_methods:Part; did you mean part?",
        ),
        ({"method_options": "x=1"}, "of method=some_methods:Part; it has part, times, word, flag, odd"),
        ({"method_options": "part=much"}, "method_options=part=much: part=much is not a number"),
        ({"method_options": "times=0.5"}, "times=0.5 is not a whole number"),
        ({"method_options": "flag=2"}, "flag=2 is not on or off"),
        ({"method_options": "part=2"}, r"part=2.0 is out of range; allowed: [0, 1]"),
        ({"method_options": "mu=2"}, "mu is a setting of its own: mu=2"),
        ({"method_options": "odd=2"}, "odd is of type tuple, which a text cannot give; pass an object from Python"),
        ({"method": "fedavg", "method_options": "q=2"}, "q is not a hyperparameter of method=fedavg; it has none"),
        ({"method": "some_methods:Gone"}, "method=some_methods:Gone cannot be imported: "),
        ({"method": "gone_methods:Part"}, "method=gone_methods:Part cannot be imported: "),
        ({"method": "some_methods:Plain"}, "which is not a subclass of fedveca.algorithms.Algorithm"),
        ({"method": "some_methods:Unfinished"}, "method=some_methods:Unfinished does not define finish and update"),
        ({"method": "some_methods:Wrong"}, "method (Wrong) fails in a small trial round"),
        ({"method": "fedavgg"}, "method=fedavgg is not known (did you mean fedavg?); allowed: fedveca | "),
        ({"method": "a:b:c"}, "method=a:b:c is not known"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    settings: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{key}={value}" for key, value in ({"method": "some_methods:Part"} | SMALL | settings).items()]
    assert main(["run", *words, "--out", "out", "-q"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("out").exists()


def test_compare_takes_them_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"{key}={value}" for key, value in SMALL.items()]
    command = ["compare", *words, "method_options=part=0.25", "--seeds", "1", "--out", "out", "--json"]
    assert main([*command, "--methods", "some_methods:Part,fedavg"]) == 0
    table = json.loads(capsys.readouterr().out)["table"]
    assert [row["method"] for row in table] == ["some_methods:Part", "fedavg"]
    part, fedavg = (Run.open(f"out/{name}-seed0").experiment for name in ("some_methods-Part", "fedavg"))
    assert (part.method_options, fedavg.method_options) == ("part=0.25", "")
    assert main([*command[:-3], "--methods", "fedavg,fedprox", "--out", "other", "-q"]) == 2
    assert "none of the methods has a hyperparameter part" in capsys.readouterr().err


@pytest.mark.slow
def test_workers_of_a_comparison_know_them_too(tmp_path: Path) -> None:
    methods = ("some_methods:Steps", "fedavg")
    runs = compare(Experiment(**SMALL), 2, tmp_path / "out", methods=methods, workers=2, device="cpu")
    steps = [r.summary["tau_all"] for r in runs if r.experiment.method == methods[0]]
    assert [r.experiment.tau_all for r in runs if r.experiment.method == "fedavg"] == steps


def test_an_object_has_its_own_values() -> None:
    @dataclass(frozen=True)
    class Mine(FedAvg):
        part: float = 0.5

    with pytest.raises(ValueError, match="method_options=part=1 is for a method that is named; set the object's"):
        run(Experiment(method_options="part=1", **SMALL), method=Mine(0.05), device="cpu")


def test_a_run_folder_is_named_after_the_class(capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"{key}={value}" for key, value in SMALL.items()]
    assert main(["run", "method=some_methods:Part", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"].endswith("-some_methods-Part")
