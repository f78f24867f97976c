"""The registry: one file adds a method everywhere, and ranges are checked on the class."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedveca import (
    AdaComm,
    AdaptiveTau,
    Corrected,
    EqualTime,
    FedACG,
    FedAvg,
    FedDyn,
    FedExP,
    FedLC,
    FedNova,
    FedProx,
    FedVeca,
    FedVecaM,
    FedVecaTime,
    MimeLite,
    Moon,
    Scaffnew,
    Scaffold,
    UserError,
    hyper,
    method,
)
from fedveca.algorithms import Algorithm, registry
from fedveca.algorithms.contrib.fedadagrad import FedAdagrad
from fedveca.algorithms.contrib.fedadam import FedAdam
from fedveca.algorithms.contrib.fedavgm import FedAvgM
from fedveca.algorithms.contrib.fedyogi import FedYogi
from fedveca.algorithms.registry import (
    concerns,
    deployable_methods,
    is_adaptive,
    is_guarded_by_default,
    is_pooled,
    methods,
    paper_methods,
)
from fedveca.deploy.server import check_deployable
from fedveca.runs.build import make_method
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.local_steps import initial_steps
from fedveca.views.report.commands import make_commands
from fedveca.views.series import COLOURS, OTHER_COLOURS, find_look, group_curves

PLUGIN = '''
from dataclasses import dataclass

from fedveca import Experiment, FedAvg, hyper, method


@method("mine", title="My method", colour="#123456", dash="--")
@dataclass(frozen=True)
class Mine(FedAvg):
    """FedAvg with a part of its step."""

    part: float = hyper(0.5, "of the step", low=0, high=1)
    mu: float = hyper(0.75, "as FedProx's", low=0)

    def update(self, state, ids, p, report):
        return state._replace(w=state.w - self.lr * self.part * report.mean["G"]), {}


Experiment(method="mine", rounds=1)  # a plugin may ask for methods while it is loaded
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A method in one file of the working folder; the environment of a command that knows it."""
    (tmp_path / "my_methods.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(registry.PLUGINS, "my_methods")
    before = dict(registry._entries)
    yield dict(os.environ)
    registry._entries.clear()
    registry._entries.update(before)
    registry._imported.discard("my_methods")
    sys.modules.pop("my_methods", None)


@pytest.fixture
def clean() -> Iterator[None]:
    before = dict(registry._entries)
    yield
    registry._entries.clear()
    registry._entries.update(before)


def command(env: dict[str, str], *words: str) -> Any:
    done = subprocess.run([sys.executable, "-m", "fedveca.cli", *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# what the package has


def test_methods_stand_in_the_papers_order() -> None:
    table = ("fedveca", "fedavg", "fedprox", "fednova", "scaffold", "centralised")
    assert paper_methods() == table
    rivals = {
        "adacomm": AdaComm,
        "adaptivetau": AdaptiveTau,
        "corrected": Corrected,
        "equaltime": EqualTime,
        "fedacg": FedACG,
        "fedadagrad": FedAdagrad,
        "fedadam": FedAdam,
        "fedavgm": FedAvgM,
        "feddyn": FedDyn,
        "fedexp": FedExP,
        "fedlc": FedLC,
        "fedveca_time": FedVecaTime,
        "fedvecam": FedVecaM,
        "fedyogi": FedYogi,
        "mimelite": MimeLite,
        "moon": Moon,
        "scaffnew": Scaffnew,
    }
    assert tuple(methods()) == (*table, *rivals)
    classes = [FedVeca, FedAvg, FedProx, FedNova, Scaffold, FedAvg, *rivals.values()]
    assert [entry.algorithm for entry in methods().values()] == classes
    adaptive = ["fedveca", "adacomm", "adaptivetau", "corrected", "equaltime", "fedveca_time", "fedvecam"]
    assert [name for name in methods() if is_adaptive(name)] == adaptive
    assert [name for name in methods() if is_guarded_by_default(name)] == ["fedvecam"]
    assert [name for name in methods() if is_pooled(name)] == ["centralised"]
    assert deployable_methods() == ("fedveca", "fedavg", "fedprox", "fednova", "scaffold", *rivals)
    assert is_adaptive("custom:FedVeca(lr=0.1)")
    assert not is_adaptive("custom:FedAvg(lr=0.1)")
    assert is_guarded_by_default("custom:FedVecaM(lr=0.1)")
    assert not is_guarded_by_default("custom:Mine(lr=0.1)")
    assert not is_adaptive("FedVeca")
    assert is_adaptive(FedVeca(0.1))
    assert not is_adaptive(FedAvg(0.1))
    assert not is_pooled("nothing")


def test_looks_are_those_of_the_figures() -> None:
    assert {name: find_look(name) for name in (*paper_methods(), "corrected")} == {
        "fedveca": ("FedVeca", "#D55E00", "-"),
        "scaffold": ("SCAFFOLD", "#0072B2", "__"),
        "fedavg": ("FedAvg", "#009E73", "--"),
        "fedprox": ("FedProx", "#BC5E94", ":"),
        "fednova": ("FedNova", "#2B93D1", "-."),
        "centralised": ("centralised", "#444444", "."),
        "corrected": ("FedVeca corrected", "#B77900", "-.."),
    }


def test_every_look_is_unique_and_readable_on_white() -> None:
    """Colours are, and the dashes of the paper's methods: readers cannot tell a dozen dashes apart."""
    looks = [find_look(name) for name in methods()]
    assert len({title for title, _, _ in looks}) == len({colour for _, colour, _ in looks}) == len(looks)
    assert not {colour for _, colour, _ in looks} & {*OTHER_COLOURS}
    paper = [find_look(name)[2] for name in (*paper_methods(), "corrected")]
    assert len({*paper}) == len(paper)
    for colour in (*(look[1] for look in looks), *COLOURS, *OTHER_COLOURS):
        red, green, blue = ((int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (red, green, blue)]
        bright = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (bright + 0.05) >= 3, colour  # the contrast that WCAG asks of graphical objects


@pytest.mark.parametrize(
    ("setting", "owners"),
    [
        ("alpha", {"fedveca", "corrected", "fedveca_time"}),
        ("share_alpha", {"fedvecam"}),
        ("tau_max", {"fedveca", "corrected", "adaptivetau", "equaltime", "fedveca_time", "fedvecam"}),
        ("smooth", {"corrected", "fedvecam"}),
        ("lookahead", {"fedvecam"}),
        ("probe_steps", {"corrected"}),
        ("mu", {"fedprox"}),
        ("dyn", {"feddyn"}),
        ("exp_eps", {"fedexp"}),
        ("acg_lambda", {"fedacg"}),
        ("acg_beta", {"fedacg"}),
        ("mime_beta", {"mimelite"}),
        ("lc_tau", {"fedlc"}),
        ("moon_mu", {"moon"}),
        ("moon_temperature", {"moon"}),
        ("wang_phi", {"adaptivetau"}),
        ("wang_seconds", {"adaptivetau"}),
        ("ada_interval", {"adacomm"}),
        ("ada_gamma", {"adacomm"}),
    ],
)
def test_a_setting_concerns_the_methods_that_declare_it(setting: str, owners: set[str]) -> None:
    assert {name for name in methods() if concerns(setting, name)} == owners
    assert not concerns(setting, "custom:Mine(lr=0.1)")
    assert concerns("lr", "custom:Mine(lr=0.1)")
    assert all(concerns(common, name) for common in ("lr", "rounds", "tau_0") for name in methods())


def test_a_report_names_the_methods_of_a_comparison_unless_they_are_the_papers() -> None:
    def said(names: tuple[str, ...]) -> list[str]:
        steps = {name: 0 if is_adaptive(name) else 50 for name in names}
        rounds: list[Any] = [{"round": 0, "tau": [20, 30]}]
        runs = [Run(Experiment(method=name, tau_all=steps[name]), rounds, {"tau_all": 50}) for name in names]
        return make_commands(group_curves(runs))

    (paper,), (every,) = said(paper_methods()), said(tuple(methods()))
    assert paper.split()[:2] == every.split()[:2] == ["fedveca", "compare"]
    assert "--methods" not in paper
    assert f"--methods {','.join(methods())} " in f"{every} "


# ranges on the class


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: FedVeca(lr=-1, alpha=2, tau_max=-3), "lr=-1.0 is out of range; allowed: > 0"),
        (lambda: FedVeca(lr=1, alpha=2, tau_max=-3), "alpha=2.0 is out of range; allowed: (0, 1)"),
        (lambda: FedVeca(lr=0.1, alpha=2.0), "alpha=2.0 is out of range; allowed: (0, 1)"),
        (lambda: FedVeca(lr=0.1, alpha=0.0), "alpha=0.0 is out of range; allowed: (0, 1)"),
        (lambda: FedVeca(lr=0.1, alpha=1.0), "alpha=1.0 is out of range; allowed: (0, 1)"),
        (lambda: FedVeca(lr=0.1, tau_max=-3), "tau_max=-3 is out of range; allowed: [2, 100000]"),
        (lambda: FedVeca(lr=0.1, tau_max=1), "tau_max=1 is out of range; allowed: [2, 100000]"),
        (lambda: FedVeca(lr=0.1, tau_max=100_001), "tau_max=100001 is out of range; allowed: [2, 100000]"),
        (lambda: FedVeca(lr=0.1, tau_max=2.0), "tau_max=2.0 is not int; allowed: [2, 100000]"),  # type: ignore[arg-type]
        (lambda: FedVeca(lr=0.1, distrust=0.51), "distrust=0.51 is out of range; allowed: [0, 0.5]"),
        (lambda: FedVeca(lr=0.1, distrust=-0.1), "distrust=-0.1 is out of range; allowed: [0, 0.5]"),
        (lambda: Corrected(lr=0.1, smooth=1.0), "smooth=1.0 is out of range; allowed: [0, 0.99]"),
        (lambda: Corrected(lr=0.1, smooth=-0.1), "smooth=-0.1 is out of range; allowed: [0, 0.99]"),
        (lambda: Corrected(lr=0.1, probe_steps=101.0), "probe_steps=101.0 is out of range; allowed: [0, 100]"),
        (lambda: Corrected(lr=0.1, probe_steps=-1.0), "probe_steps=-1.0 is out of range; allowed: [0, 100]"),
        (lambda: Corrected(lr=0.1, alpha=1.0), "alpha=1.0 is out of range; allowed: (0, 1)"),
        (lambda: FedProx(lr=0.1, mu=-1.0), "mu=-1.0 is out of range; allowed: >= 0"),
        (lambda: FedProx(lr=0.1, mu=float("nan")), "mu=nan is out of range; allowed: >= 0"),
        (lambda: FedProx(lr=0.1, mu=True), "mu=True is not float; allowed: >= 0"),
        (lambda: FedAvg(0.0), "lr=0.0 is out of range; allowed: > 0"),
        (lambda: FedNova(float("inf")), "lr=inf is out of range; allowed: > 0"),
        (lambda: Scaffold(1e39), "lr=1e+39 is out of range; at most 1e+38"),
        (lambda: FedAvg("0.1"), "lr='0.1' is not float; allowed: > 0"),  # type: ignore[arg-type]
        (lambda: FedAvg(torch.tensor([0.1, 0.2])), "lr=tensor([0.1000, 0.2000]) is not float; allowed: > 0"),  # type: ignore[arg-type]
    ],
)
def test_a_method_rejects_what_is_out_of_range(made: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        made()


@pytest.mark.parametrize("half", [np.float64(0.5), np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_single_numbers_of_numpy_and_pytorch_are_numbers(half: Any) -> None:
    made = FedVeca(lr=half, alpha=half, tau_max=np.int64(7))  # type: ignore[arg-type]
    assert made == FedVeca(0.5, 0.5, 7)
    assert [type(value) for value in vars(made).values()] == [float, float, int, float]
    assert repr(made) == "FedVeca(lr=0.5, alpha=0.5, tau_max=7, distrust=0.0)"


def test_ends_of_a_range_are_in_it() -> None:
    Corrected(lr=1e38, tau_max=2, smooth=0.0, probe_steps=100.0, distrust=0.5)
    assert type(FedProx(lr=1, mu=0).mu) is float


# one file adds a method


def test_one_file_adds_a_method(plugin: dict[str, str]) -> None:
    assert "mine" in methods()
    assert paper_methods() == tuple(methods())[:6]
    e = Experiment(method="mine", lr=0.5, mu=0.25)
    made = make_method(e)
    assert repr(made) == "Mine(lr=0.5, part=0.5, mu=0.25)"  # part is not a setting: it keeps its default
    assert initial_steps(Experiment(method="mine", tau_all=0, tau_0=3), torch.tensor([5, 5])).tolist() == [3, 3]
    assert find_look("mine") == ("My method", "#123456", "--")
    assert concerns("mu", "mine")
    assert not concerns("alpha", "mine")
    check_deployable(e)
    with pytest.raises(UserError, match=r"can be deployed are fedveca, fedavg, .*, corrected, .*, mine$"):
        check_deployable(Experiment(method="centralised"))
    with pytest.raises(UserError, match=r"part=2\.0 is out of range"):
        type(made)(lr=0.1, part=2.0)  # type: ignore[call-arg]


@pytest.mark.slow
def test_commands_know_the_method_of_one_file(plugin: dict[str, str], tmp_path: Path) -> None:
    assert command(plugin, "list", "--json")["methods"][-1] == "mine"
    small = ["digits-case3", "rounds=2", "clients=2", "model=svm", "--methods", "mine,fedavg", "--json"]
    rows = command(plugin, "compare", *small, "--seeds", "2", "--workers", "2", "--out", "out")["table"]
    assert [row["method"] for row in rows] == ["mine", "fedavg"]
    assert [row["seeds"] for row in rows] == [[0, 1]] * 2
    mine, fedavg = (row["last"]["test_loss"]["mean"] for row in rows)
    assert mine != fedavg
    page = (tmp_path / "out" / "report.html").read_text()
    assert "My method" in page
    assert "#123456" in page


def test_without_the_file_the_method_is_not_known() -> None:
    with pytest.raises(UserError, match=r"^method=mine is not known"):
        Experiment(method="mine")


@pytest.mark.parametrize("code", [None, "1 / 0", "import nothing_of_this_name"])
def test_a_plugin_that_fails_is_named(code: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if code:
        (tmp_path / "broken_methods.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(registry.PLUGINS, " broken_methods , ")
    path = list(sys.path)
    for _ in range(2):
        with pytest.raises(UserError, match=r"^FEDVECA_PLUGINS=broken_methods cannot be imported: \w"):
            methods()
    assert sys.path == path


# what cannot be registered


@dataclass(frozen=True)
class Plain(FedAvg):
    part: float = hyper(0.5, low=0, high=1)


def test_a_decorated_class_stays_itself_and_can_be_defined_again(clean: None) -> None:
    assert method("plain")(Plain) is Plain
    assert method("plain", title="again")(Plain) is Plain  # as a notebook's cell that is run again
    assert methods()["plain"].title == "again"
    title, colour, dash = find_look("plain")
    assert (title, dash) == ("again", "-")
    assert re.fullmatch("#[0-9A-F]{6}", colour)
    assert make_method(Experiment(method="plain", lr=0.01)) == Plain(0.01, 0.5)


@pytest.mark.parametrize(
    ("name", "more", "thing", "said"),
    [
        ("fedavg", {}, Plain, "method fedavg is registered already, by fedveca.algorithms.fedavg"),
        ("custom:x", {}, Plain, "method: 'custom:x' is not a name; allowed: lower-case letters, digits, - and _"),
        ("a,b", {}, Plain, "method: 'a,b' is not a name"),
        ("", {}, Plain, "method: '' is not a name"),
        (3, {}, Plain, "method: 3 is not a name"),
        ("x", {"colour": "red"}, Plain, "method x: colour='red' is not allowed; allowed: '#RRGGBB'"),
        ("x", {"title": "a\nb"}, Plain, "method x: title='a\\nb' is not allowed; allowed: printable text"),
        (
            "x",
            {"dash": "dotted"},
            Plain,
            "method x: dash='dotted' is not known; allowed: - | -- | -. | : | __ | -.. | .",
        ),
        ("x", {}, dict, "method x is <class 'dict'>, which is not a subclass of fedveca.algorithms.Algorithm"),
        ("x", {}, Plain(0.1), "method x is Plain(lr=0.1, part=0.5), which is not a subclass of"),
        (
            "x",
            {},
            type("Bare", (FedAvg,), {}),
            "method x: Bare is not a dataclass; write @dataclass",
        ),
    ],
)
def test_what_cannot_be_a_method_is_rejected(clean: None, name: Any, more: Any, thing: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(said)}"):
        method(name, **more)(thing)


def test_a_field_needs_a_default(clean: None) -> None:
    @dataclass(frozen=True)
    class Needs(Algorithm):
        lr: float
        much: float
        update, finish = FedAvg.update, FedAvg.finish

    with pytest.raises(UserError, match=r"^method x: the field much needs a default; only lr is always given$"):
        method("x")(Needs)


def test_a_class_that_chooses_clients_defines_how() -> None:
    """It is rejected where it is written, not in the first round."""
    with pytest.raises(UserError, match="Chooser has chooses = True, but does not define choose"):

        class Chooser(FedAvg):
            chooses = True
