"""Studies as TOML files: what is read, what is rejected, and the table of their runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.study import Study, read_study, tabulate_study

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return to


def test_one_study_with_every_key(write: Write) -> None:
    (study,) = read_study(
        write(
            'name = "half"\npreset = "svm-mnist-case2"\nmethods = ["fedveca", "fedavg"]\nseeds = 4\n[settings]\nlr = 1'
        )
    )
    assert study == Study("half", "svm-mnist-case2", {"lr": 1}, ("fedveca", "fedavg"), 4)
    experiment = study.experiment()
    assert (experiment.lr, experiment.partition, experiment.model) == (1.0, "case2", "svm")


def test_the_defaults_are_those_of_run_and_compare(write: Write) -> None:
    (study,) = read_study(write('methods = ["fedavg"]'))
    assert study == Study("digits-case3", "digits-case3", {}, ("fedavg",), 3)


def test_keys_at_the_top_are_every_studys_defaults(write: Write) -> None:
    text = """
        methods = ["fedveca"]
        seeds = 7
        settings = { lr = 0.5, seed = 300 }
        [[study]]
        name = "a"
        settings = { alpha = 0.5 }
        [[study]]
        name = "b"
        seeds = 2
        methods = ["fedavg"]
        settings = { lr = 0.1 }
    """
    a, b = read_study(write(text))
    assert a == Study("a", "digits-case3", {"lr": 0.5, "seed": 300, "alpha": 0.5}, ("fedveca",), 7)
    assert b == Study("b", "digits-case3", {"lr": 0.1, "seed": 300}, ("fedavg",), 2)
    assert (a.experiment().seed, a.experiment().alpha) == (300, 0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "methods is missing; it is a list such as ['fedveca', 'fedavg'], of fedveca, fedavg, "),
        ("[[study]]\nname = 'a'", "methods is missing; it is a list such as"),
        ("methods = []", "methods=[] is not a list of methods such as ['fedveca', 'fedavg']"),
        ("seeds = 0", "seeds=0 is out of range; it is a whole number from 1 to 10000"),
        ("preset = 'foo'", "preset foo is not known; it is one of "),
        ("lr = -1", "lr is not a key of a study"),
        ("[settings]\nlr = -1", "lr=-1.0 is out of range; allowed: > 0"),
        ("methods = 'fedavg'", "methods='fedavg' is not a list of methods such as"),
        ("methods = ['fedavgg']", "methods: 'fedavgg' is not known; it is one of fedveca, "),
        ("methods = ['fedavg', 'fedavg']", "methods names fedavg twice"),
        ("metods = ['fedavg']", "metods is not a key of a study (did you mean methods?); it is one of name, preset, "),
        ("methods = ['fedavg']\nseeds = 0", "seeds=0 is out of range; it is a whole number from 1 to 10000"),
        ("methods = ['fedavg']\nseeds = true", "seeds=True is out of range"),
        ("methods = ['fedavg']\npreset = 3", "preset=3 is not a text; it names a preset or a .toml file"),
        ("methods = ['fedavg']\npreset = 'digit'", "preset digit is not known"),
        ("methods = ['fedavg']\nsettings = 3", "settings=3 is not a table of settings"),
        ("methods = ['fedavg']\n[settings]\nlearning = 3", "learning is not a setting"),
        ("methods = ['fedavg']\n[settings]\nlr = -1", "lr=-1.0 is out of range; allowed: > 0"),
        (
            "methods = ['fedavg']\n[settings]\nmethod = 'fedavg'",
            "method='fedavg' is not a setting of a study; `methods`",
        ),
        ("methods = ['fedavg']\n[settings]\nmodel = 'custom:x'", "model=custom:x is an object that was given from"),
        ("methods = ['fedavg']\nname = '../x'", "name='../x' is not a name of letters, digits"),
        ("methods = ['fedavg']\nname = '.x'", "name='.x' is not a name"),
        ("methods = ['fedavg']\nname = ''", "name='' is not a name"),
        ("methods = ['fedavg']\nstudy = 3", "study=3 is not a list of tables; each begins with [[study]]"),
        ("methods = ['fedavg']\nstudy = []", "study=[] is not a list of tables"),
        (
            "methods = ['fedavg']\n[[study]]\n[[study]]",
            "two studies have the name digits-case3; each needs one of its own",
        ),
    ],
)
def test_what_is_not_a_study_is_rejected_in_one_sentence(write: Write, text: str, said: str) -> None:
    path = write(text)
    with pytest.raises(UserError) as caught:
        read_study(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read_is_rejected(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.toml does not exist$"):
        read_study(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"mine\.toml is not TOML: "):
        read_study(write("methods = ["))


# the table

STUDY = Study("s", "digits-case3", {}, ("fedveca", "fedavg"), 3)


def ended(method: str, seed: int, kept: float | None, diverged: bool = False) -> Run:
    last = None if kept is None else kept - 0.5
    summary: Any = {"tau_all": 100 + seed, "kept": {"test_loss": 1.0, "test_accuracy": kept}} | (
        {"stopped": "round 2: the model is not finite"} if diverged else {}
    )
    return Run(Experiment(method=method, seed=seed), [], summary | {"last": {"test_loss": 2.0, "test_accuracy": last}})


def test_a_row_has_mean_spread_and_the_paired_difference_from_the_first_method() -> None:
    first = [ended("fedveca", seed, value) for seed, value in enumerate((0.5, 0.7, 0.9))]
    second = [ended("fedavg", seed, value) for seed, value in enumerate((0.4, 0.7, 0.7))]
    table = tabulate_study(STUDY, [*second[::-1], *first])  # in any order
    ours, theirs = table["rows"]
    assert [row["method"] for row in table["rows"]] == ["fedveca", "fedavg"]
    assert (theirs["seeds"], theirs["diverged"], theirs["tau_all"]) == ([0, 1, 2], [], 101)
    kept = theirs["kept"]["test_accuracy"]
    assert kept["values"] == [0.4, 0.7, 0.7]
    assert kept["mean"] == pytest.approx(0.6)
    assert kept["std"] == pytest.approx(math.sqrt(0.03))
    gap = kept["minus_first"]
    assert gap is not None
    assert (gap["mean"], gap["n"]) == (pytest.approx(-0.1), 3)  # this method minus the first
    assert gap["interval"] == pytest.approx((-0.1 - 4.302653 * 0.1 / 3**0.5, -0.1 + 4.302653 * 0.1 / 3**0.5))
    assert theirs["last"]["test_accuracy"]["mean"] == pytest.approx(0.1)
    assert ours["kept"]["test_accuracy"]["minus_first"] is None


def test_runs_that_diverged_are_named_and_left_out() -> None:
    """Seed 0 of the first and seed 2 of the second method diverged: only seed 1 is a pair."""
    first = [ended("fedveca", seed, value, seed == 0) for seed, value in enumerate((0.0, 0.7, 0.9))]
    second = [ended("fedavg", seed, value, seed == 2) for seed, value in enumerate((0.4, 0.6, 0.0))]
    ours, theirs = tabulate_study(STUDY, [*first, *second])["rows"]
    assert (ours["seeds"], ours["diverged"], ours["tau_all"]) == ([1, 2], [0], 101.5)
    assert ours["kept"]["test_accuracy"]["mean"] == pytest.approx(0.8)
    assert (theirs["seeds"], theirs["diverged"]) == ([0, 1], [2])
    gap = theirs["kept"]["test_accuracy"]["minus_first"]
    assert gap == {"mean": pytest.approx(-0.1), "interval": None, "n": 1}


def test_a_method_whose_runs_all_diverged_has_no_values() -> None:
    runs = [ended("fedveca", 0, 0.0, diverged=True), ended("fedavg", 0, 0.5)]
    ours, theirs = tabulate_study(STUDY, runs)["rows"]
    assert (ours["seeds"], ours["tau_all"], ours["kept"]) == ([], None, {})
    assert theirs["kept"]["test_accuracy"]["minus_first"] is None


def test_a_value_that_is_not_finite_makes_no_pair() -> None:
    runs = [ended("fedveca", 0, 0.5), ended("fedavg", 0, None), ended("fedveca", 1, 0.5), ended("fedavg", 1, 0.4)]
    gap = tabulate_study(STUDY, runs)["rows"][1]["kept"]["test_accuracy"]["minus_first"]
    assert gap == {"mean": pytest.approx(-0.1), "interval": None, "n": 1}
    alone = tabulate_study(STUDY, [ended("fedveca", 0, 0.5), ended("fedavg", 0, None)])["rows"][1]["kept"]
    assert alone["test_accuracy"] == {"mean": None, "std": 0.0, "values": [None], "minus_first": None}
