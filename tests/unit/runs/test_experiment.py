"""Settings: one flat table, each value typed and in range, the same in Python, TOML and on the command line."""

from __future__ import annotations

import dataclasses
import inspect
import math
import pydoc
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveca.algorithms import (
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
)
from fedveca.algorithms.contrib.fedadagrad import FedAdagrad
from fedveca.algorithms.contrib.fedadam import FedAdam
from fedveca.algorithms.contrib.fedavgm import FedAvgM
from fedveca.algorithms.contrib.fedyogi import FedYogi
from fedveca.algorithms.hyper import LARGEST_FLOAT, hyperparameters
from fedveca.algorithms.recipe import Recipe
from fedveca.algorithms.registry import methods
from fedveca.cli.arguments import parse_experiment
from fedveca.errors import UserError
from fedveca.runs.build import build, make_method
from fedveca.runs.experiment import (
    Experiment,
    count_probe_rows,
    describe_default,
    find_default,
    parse_settings,
    parse_toml,
    preset,
    read_experiment,
)
from fedveca.runs.local_steps import MOST_STEPS, initial_steps
from fedveca.runs.presets import presets
from fedveca.runs.setting_checks import FIELDS, TYPES, choices, range_of
from fedveca.runs.setting_fields import TaskDefault
from fedveca.runs.settings import KNOWN_MODELS
from fedveca.tasks.datasets.dataset import DATASETS
from fedveca.tasks.metric_settings import TABLES
from fedveca.tasks.models import MODELS

NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")))


# what clients hold back leaves rows to train on, and steps before a test need one;
# momentum, Nesterov's form and what is kept do not go with every optimiser, nor a warm-up with every number of rounds
PLAIN = {"optimizer": "sgd", "momentum": 0.5, "lr_warmup": 0}


def in_range(key: str) -> st.SearchStrategy[Any]:
    """Any value that a setting may have, whatever the others are."""
    m = FIELDS[key].metadata
    fixed = {
        "model": "svm",
        "faults": "drop:0.2,scale:0.1:-3",
        "dp_noise": 0.0,
        "augment": "crop:4,flip",
        "epochs": "",
        "budget": "rows:1e5",
    }
    fixed |= PLAIN | {"test_by": "both", "test_share": 0.3, "val": 0.25, "method_options": "q=2,personal=fc1 fc2"}
    fixed |= {"guard": "off"}  # it does not go with every keep
    fixed |= {"secure": "off", "secure_threshold": 0, "wire": "int8"}  # nor these with every rule
    fixed |= {"devices": "phones", "schedule": "deadline", "deadline": 2.5, "over_selection": 0.0, "buffer": 0}
    if key in fixed:
        return st.just(fixed[key])
    if key == "init":
        return st.sampled_from(["paper", "torch"]) | NAMES.map(lambda name: f"./{name}.safetensors")
    if names := choices(FIELDS[key]):
        return st.sampled_from(names)
    if m["some"]:
        plain = [name for name in m["some"] if key != "metric" or name not in TABLES]
        first = st.sampled_from(plain)  # a metric is named once, and the first is a number
        more = st.lists(st.sampled_from(m["some"]), unique=True)
        return st.tuples(first, more).map(lambda found: ",".join(dict.fromkeys((found[0], *found[1]))))
    if TYPES[key] is int:
        numbers = st.integers(int(m["range"].low), int(min(m["range"].high, 2**31 - 1)))
        return st.sampled_from(m["words"]) | numbers if m["words"] else numbers
    if TYPES[key] is float:
        low, high, open_ends = m["range"]
        ends: dict[str, Any] = {"exclude_min": bool(open_ends), "exclude_max": open_ends is True and high < math.inf}
        return st.floats(low, min(high, LARGEST_FLOAT), allow_infinity=False, **ends)
    return st.text() if key == "data_dir" else NAMES


@given(st.fixed_dictionaries({key: in_range(key) for key in FIELDS}))
def test_toml_brings_back_every_setting(values: dict[str, Any]) -> None:
    experiment = Experiment(**values)
    assert Experiment(**parse_toml(experiment.toml(), "x")) == experiment
    assert tomllib.loads(experiment.toml()) == dataclasses.asdict(experiment)


@given(NAMES, NAMES, st.text())
def test_odd_strings_survive_toml(data: str, method: str, folder: str) -> None:
    experiment = Experiment(data=f"custom:{data}", method=f"custom:{method}", data_dir=folder)
    assert Experiment(**tomllib.loads(experiment.toml())) == experiment


@given(st.fixed_dictionaries({key: in_range(key) for key in ("clients", "lr", "alpha", "keep", "probe", "data_dir")}))
def test_words_say_what_python_says(values: dict[str, Any]) -> None:
    assert parse_settings([f"{key}={value}" for key, value in values.items()]) == values


def test_types_are_the_four_of_toml_and_defaults_are_valid() -> None:
    assert set(TYPES.values()) <= {str, int, float, bool}
    assert TYPES.keys() == FIELDS.keys()
    assert Experiment().toml().count("\n") == len(FIELDS)
    for field in FIELDS.values():
        assert field.metadata["text"]
        assert range_of(field)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rounds=ten", "rounds=ten is not a whole number; allowed: >= 1"),
        ("rounds=1.5", "rounds=1.5 is not a whole number; allowed: >= 1"),
        ("rounds=", "rounds= is not a whole number; allowed: >= 1"),
        ("lr=fast", "lr=fast is not a number; allowed: > 0"),
        ("probe=aut", "probe=aut is not a whole number (did you mean auto?); allowed: auto or >= 0"),
        ("probe=1.5", "probe=1.5 is not a whole number; allowed: auto or >= 0"),
        ("roundz=3", "roundz is not a setting; did you mean rounds?"),
        ("qqqqqq=3", "qqqqqq is not a setting; `fedveca list` shows all"),
        ("=3", "'' is not a setting; `fedveca list` shows all"),
        ("=", "'' is not a setting; `fedveca list` shows all"),
        (" =3", "' ' is not a setting; `fedveca list` shows all"),
        ("rounds =3", "'rounds ' is not a setting; did you mean rounds?"),
        ("\n=3", "'\\n' is not a setting; `fedveca list` shows all"),
        ("Rounds=3", "Rounds is not a setting; did you mean rounds?"),
        ("rounds", "'rounds' is not key=value"),
    ],
)
def test_words_refused(word: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        parse_settings([word])


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("alpha", 0.0, "alpha=0.0 is out of range; allowed: (0, 1)"),
        ("alpha", 1.0, "alpha=1.0 is out of range; allowed: (0, 1)"),
        ("alpha", float("nan"), "alpha=nan is out of range; allowed: (0, 1)"),
        ("lr", 0.0, "lr=0.0 is out of range; allowed: > 0"),
        ("lr", float("inf"), "lr=inf is out of range; allowed: > 0"),
        ("mu", float("inf"), "mu=inf is out of range; allowed: >= 0"),
        ("concentration", 0.0, "concentration=0.0 is out of range; allowed: > 0"),
        ("participation", 1.01, "participation=1.01 is out of range; allowed: (0, 1]"),
        ("participation", -0.5, "participation=-0.5 is out of range; allowed: (0, 1]"),
        ("participation", 0, "participation=0.0 is out of range; allowed: (0, 1]"),
        ("batch", 0, "batch=0 is out of range; allowed: >= 1"),
        ("clients", 0, "clients=0 is out of range; allowed: >= 1"),
        ("rounds", 0, "rounds=0 is out of range; allowed: >= 1"),
        ("tau_0", 0, "tau_0=0 is out of range; allowed: [1, 100000]"),
        ("tau_max", 1, "tau_max=1 is out of range; allowed: [2, 100000]"),
        ("probe", -1, "probe=-1 is out of range; allowed: auto or >= 0"),
        ("probe", "all", "probe='all' is not int; allowed: auto or >= 0"),
        ("probe", 1.5, "probe=1.5 is not int; allowed: auto or >= 0"),
        ("probe", 10**400, "probe is out of range: a number of more than 30 digits; allowed: auto or >= 0"),
        ("seed", 2**31, "seed=2147483648 is out of range; at most 2147483647"),
        ("batch", 10**400, "batch is out of range: a number of more than 30 digits; allowed: >= 1"),
        ("lr", 10**400, "lr is out of range: a number of more than 30 digits; allowed: > 0"),
        ("rounds", [1], "rounds=[1] is not int; allowed: >= 1"),
        ("rounds", 1.0, "rounds=1.0 is not int; allowed: >= 1"),
        ("rounds", True, "rounds=True is not int; allowed: >= 1"),
        ("rounds", "3", "rounds='3' is not int; allowed: >= 1"),
        ("lr", "3", "lr='3' is not float; allowed: > 0"),
        ("data", 3, f"data=3 is not str; allowed: {' | '.join(DATASETS)}"),
        ("data_dir", "a\udcffb", "data_dir='a\\udcffb' is not UTF-8 text"),
        ("keep", "bests", "keep=bests is not known (did you mean best?); allowed: best | last | rollback"),
        ("partition", "case7", "partition=case7 is not known (did you mean case3?); allowed: case1 | "),
        ("method", "", "method= is not known; allowed: fedveca | fedavg | fedprox | fednova | scaffold | centralised"),
        (
            "data",
            "custom:a\nb",
            "data='custom:a\\nb' holds a control character or the end of a line; allowed: cifar10 | ",
        ),
        ("method", "custom:\x1b[2J", "method='custom:\\x1b[2J' holds a control character"),
        ("partition", "custom:\u2028", "partition='custom:\\u2028' holds a control character"),
        ("metric", "custom:\r", "metric='custom:\\r' holds a control character"),
        ("loss", "custom:\0", "loss='custom:\\x00' holds a control character"),
        ("track", "wandb\n", "track='wandb\\n' holds a control character or the end of a line; allowed: some of "),
        ("faults", "drop:0.1\n", "faults='drop:0.1\\n' holds a control character or the end of a line"),
        ("ray_address", "a\tb", "ray_address='a\\tb' holds a control character or the end of a line"),
        ("model", "a\nb:f", "model='a\\nb:f' holds a control character or the end of a line"),
        ("model", 'a"b:f', f'model=a"b:f is not known; it is {KNOWN_MODELS}'),
        ("model", "a;b:f", f"model=a;b:f is not known; it is {KNOWN_MODELS}"),
        ("model", ":f", f"model=:f is not known; it is {KNOWN_MODELS}"),
        ("lr", 1e308, "lr=1e+308 is out of range; at most 1e+38"),
        ("concentration", 1e308, "concentration=1e+308 is out of range; at most 1e+38"),
        ("dp_noise", 1e308, "dp_noise=1e+308 is out of range; at most 1e+38"),
        ("dp_noise", 1e-300, "dp_noise=1e-300 is out of range; allowed: 0 or >= 1e-30"),
        ("faults", "scale:0.5:1e308", "faults=scale:0.5:1e308: a factor is a number in [-1e+38, 1e+38], not 1e308"),
        ("faults", "scale:0.5:nan", "faults=scale:0.5:nan: a factor is a finite number, not nan"),
        ("model", "nn", f"model=nn is not known (did you mean cnn?); it is {KNOWN_MODELS}"),
    ],
)
def test_values_refused(key: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        Experiment(**{key: value})


def test_whole_numbers_are_numbers_too() -> None:
    assert type(Experiment(lr=1, mu=0).lr) is float
    assert parse_settings(["lr=1"]) == {"lr": 1.0}


# presets


def test_presets_are_valid_and_as_the_paper_says() -> None:
    paper = [name for name in presets() if name.endswith(("case1", "case2", "case3"))]
    assert paper == [
        "cnn-cifar10-case3",
        "cnn-mnist-case3",
        "digits-case3",
        "svm-mnist-case1",
        "svm-mnist-case2",
        "svm-mnist-case3",
    ]
    for name in paper:
        e = Experiment(**preset(name))
        kind, *data, case = name.split("-")
        assert (e.clients, e.partition, e.alpha, e.tau_0, e.tau_max) == (5, case, 0.95, 10, 50)
        assert (e.method, e.keep, e.participation, e.mu, e.init, e.pixels) == (
            "fedveca",
            "best",
            1.0,
            0.1,
            "paper",
            "auto",
        )
        if kind == "digits":
            assert (e.data, e.model) == ("digits", "mlp")
        else:
            assert (e.model, e.data, e.batch, e.lr, e.probe, e.rounds) == (kind, *data, 100, 0.01, 0, 100)


def test_a_users_toml_file_is_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('rounds = 7\ndata = "synthetic"\n')
    assert preset(str(path)) == {"rounds": 7, "data": "synthetic"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("digits-case4", None, r"preset digits-case4 is not known \(did you mean digits-case3\?\); it is one of cnn-"),
        ("nothing", None, "preset nothing is not known; it is one of .*, or a .toml file"),
        ("a.toml", None, "^a.toml does not exist$"),
        ("a.toml", b"rounds 7", "a.toml is not TOML: "),
        ("a.toml", b"\xff = 1", "a.toml cannot be read: .*codec"),
        ("a.toml", b"roundz = 7", "roundz is not a setting; did you mean rounds?"),
        ("a.toml", b"[rounds.a]\nb = 1", "rounds={'a': {'b': 1}} is not int; allowed: >= 1"),
        ("a.toml", b"a = " + b"[" * 9999, "a.toml is not TOML: "),
    ],
)
def test_presets_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        Experiment(**preset(name))
    assert "\n" not in str(caught.value)


# what is built


def test_fair_share_by_hand() -> None:
    """floor(tau_all / K * D_i / D), at least 1: 1000 steps in 10 rounds for sizes 5, 30, 60, 6 of 101."""
    sizes = torch.tensor([5, 30, 60, 6])
    e = Experiment(method="fedavg", rounds=10, tau_all=1000)
    assert initial_steps(e, sizes).tolist() == [4, 29, 59, 5]
    assert initial_steps(dataclasses.replace(e, tau_all=100), sizes).tolist() == [1, 2, 5, 1]
    assert initial_steps(dataclasses.replace(e, tau_all=0, tau_0=7), sizes).tolist() == [7, 7, 7, 7]
    assert initial_steps(dataclasses.replace(e, method="fedveca", tau_0=3), sizes).tolist() == [3, 3, 3, 3]


def test_fair_share_with_participation_by_hand() -> None:
    """Where two of four clients take part, each takes twice the steps: floor(tau_all / K * D_i / D * 4 / 2)."""
    e = Experiment(method="fedavg", rounds=10, tau_all=1000, participation=0.5)
    assert initial_steps(e, torch.tensor([5, 30, 60, 6])).tolist() == [9, 59, 118, 11]


def test_a_share_that_is_too_large_is_rejected() -> None:
    sizes = torch.tensor([5, 30, 60, 6])
    e = Experiment(method="fedavg", rounds=10, tau_all=2**31 - 1)
    said = r"^tau_all=2147483647 gives a client 127573285 local steps per round; at most 100000000: "
    with pytest.raises(ValueError, match=said) as caught:
        initial_steps(e, sizes)
    most = int(str(caught.value).split()[-3])
    assert int(initial_steps(dataclasses.replace(e, tau_all=most), sizes).max()) <= MOST_STEPS


def test_a_method_whose_repr_has_lines_has_a_name_of_one() -> None:
    @dataclasses.dataclass(frozen=True)
    class Lines(FedAvg):
        more: Any = dataclasses.field(default_factory=lambda: torch.zeros(2, 2))

    assert "\n" in repr(Lines(0.1))
    name = build(Experiment(model="svm"), method=Lines(0.1)).experiment.method
    assert name.startswith("custom:")
    assert name.endswith("Lines(lr=0.1, more=tensor([[0., 0.],         [0., 0.]]))")


def test_fair_share_of_mnist_case_3() -> None:
    sizes = torch.tensor([10199, 10199, 10198, 11769, 17635])
    e = Experiment(method="fednova", rounds=100, tau_all=4000)
    assert initial_steps(e, sizes).tolist() == [6, 6, 6, 7, 11]


OFF = {"lr": 0.5, "mu": 0.25, "alpha": 0.75, "tau_max": 9, "smooth": 0.125, "probe_steps": 3.5}  # no default
OFF |= {"dyn": 0.25, "exp_eps": 0.5, "acg_lambda": 0.75, "acg_beta": 0.25, "mime_beta": 0.5}
OFF |= {"lookahead": 0.25, "share_alpha": 0.5, "lc_tau": 0.5, "moon_mu": 0.25, "moon_temperature": 0.75}
OFF |= {"wang_phi": 0.25, "wang_seconds": 3.5, "ada_interval": 2.5, "ada_gamma": 0.75}


def test_methods_get_their_hyperparameters() -> None:
    e = Experiment(aggregate="median", aggregate_trim=0.375, **OFF)  # type: ignore[arg-type]
    made = {name: make_method(dataclasses.replace(e, method=name)) for name in methods()}
    assert {name: m.algorithm if isinstance(m, Recipe) else m for name, m in made.items()} == {
        "fedveca": FedVeca(lr=0.5, alpha=0.75, tau_max=9, distrust=0.375),
        "fedavg": FedAvg(lr=0.5),
        "fedprox": FedProx(lr=0.5, mu=0.25),
        "fednova": FedNova(lr=0.5),
        "scaffold": Scaffold(lr=0.5),
        "centralised": FedAvg(lr=0.5),
        "corrected": Corrected(lr=0.5, alpha=0.75, tau_max=9, smooth=0.125, distrust=0.375, probe_steps=3.5),
        "adacomm": AdaComm(lr=0.5, ada_interval=2.5, ada_gamma=0.75),
        "adaptivetau": AdaptiveTau(lr=0.5, tau_max=9, wang_phi=0.25, wang_seconds=3.5),
        "equaltime": EqualTime(lr=0.5, tau_max=9),
        "fedacg": FedACG(lr=0.5, acg_lambda=0.75, acg_beta=0.25),
        "feddyn": FedDyn(lr=0.5, dyn=0.25),
        "fedexp": FedExP(lr=0.5, exp_eps=0.5),
        "fedlc": FedLC(lr=0.5, lc_tau=0.5),
        "fedveca_time": FedVecaTime(lr=0.5, alpha=0.75, tau_max=9, distrust=0.375),
        "fedvecam": FedVecaM(lr=0.5, share_alpha=0.5, tau_max=9, smooth=0.125, distrust=0.375, lookahead=0.25),
        "mimelite": MimeLite(lr=0.5, mime_beta=0.5),
        "moon": Moon(lr=0.5, moon_mu=0.25, moon_temperature=0.75),
        "scaffnew": Scaffnew(lr=0.5),
        "fedadagrad": FedAdagrad(lr=0.5),
        "fedadam": FedAdam(lr=0.5),
        "fedavgm": FedAvgM(lr=0.5),
        "fedyogi": FedYogi(lr=0.5),
    }
    assert all(value != FIELDS[name].default for name, value in OFF.items())


def test_without_robust_aggregation_nothing_is_distrusted() -> None:
    made = make_method(Experiment(aggregate_trim=0.375))
    assert made == FedVeca(lr=0.05, distrust=0.0)


def test_settings_of_methods_are_those_that_the_methods_declare() -> None:
    owned = {name: h for entry in methods().values() for name, h in hyperparameters(entry.algorithm).items()}
    assert owned.keys() - {"distrust"} == OFF.keys() - {"lr"}
    for name in owned.keys() - {"distrust"}:
        assert (FIELDS[name].default, FIELDS[name].metadata["range"]) == (owned[name].default, owned[name].range)
        assert FIELDS[name].metadata["text"].endswith(owned[name].text)
    assert FIELDS["alpha"].metadata["text"].startswith("fedveca, corrected, fedveca_time: ")


def test_build_puts_the_parts_together() -> None:
    built = build(Experiment(data="synthetic", partition="writer", clients=7, model="svm", tau_0=4))
    assert built.data.writer is not None
    assert built.shares.sizes.tolist() == torch.bincount(built.data.writer).tolist()
    assert built.state.tau.tolist() == [4] * 7
    assert torch.equal(built.state.w, built.problem.init())
    assert torch.equal(built.cohort.sizes, built.shares.sizes)


def test_pixels_are_the_datas_own_unless_named() -> None:
    assert [build(Experiment(pixels=pixels)).data.pixels for pixels in ("auto", "unit")] == ["as-is", "unit"]


def test_centralised_is_one_client_with_all_rows() -> None:
    built = build(Experiment(method="centralised", clients=5, rounds=100, tau_all=2000))
    assert built.shares.sizes.tolist() == [1438]
    assert built.state.tau.tolist() == [20]


# defaults


def test_a_stated_default_is_what_a_run_uses() -> None:
    e = Experiment()
    assert e == Experiment.preset("digits-case3") == parse_experiment([])[1]
    for key, field in FIELDS.items():
        assert find_default(key, e) == getattr(e, key)
        if not isinstance(field.default, TaskDefault):
            assert describe_default(key) == getattr(e, key)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("mlp", "case3", 80, 32, 0.05)),
        ({"data": "synthetic"}, ("mlp", "writer", 100, 32, 0.05)),
        ({"data": "synthetic", "model": "svm", "clients": 8}, ("svm", "writer", 100, 32, 0.01)),
        ({"data": "mnist"}, ("mlp", "case3", 100, 100, 0.05)),
        ({"data": "cifar10"}, ("cnn", "case3", 100, 100, 0.01)),
        ({"data": "fashion-mnist", "model": "cnn", "lr": 0.2}, ("cnn", "case3", 100, 100, 0.2)),
        ({"model": "package.module:factory"}, ("package.module:factory", "case3", 80, 32, 0.05)),
        ({"data": "custom:arrays"}, ("mlp", "case3", 100, 32, 0.05)),
    ],
)
def test_data_set_and_model_bring_their_defaults(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    e = Experiment(**given)
    assert (e.model, e.partition, e.rounds, e.batch, e.lr) == expected


def test_defaults_in_words() -> None:
    assert describe_default("lr") == "0.01 (gpt 0.3, logistic 0.05, lstm 0.8, mlp 0.05, resnet18 0.1, vgg11 0.02)"
    assert describe_default("rounds") == "100 (digits 80, heart 15)"
    assert describe_default("model") == "mlp (cifar10 cnn, heart logistic, shakespeare lstm)"
    assert describe_default("alpha") == 0.95


def test_a_folder_that_lacks_a_setting_has_the_default_of_its_version() -> None:
    e = read_experiment('data = "synthetic"\nclients = 3\n')
    assert (e.model, e.partition, e.rounds, e.batch, e.lr) == ("mlp", "case3", 100, 100, 0.01)


def test_presets_from_python() -> None:
    e = Experiment.preset("svm-mnist-case2", rounds=20)
    assert (e.model, e.partition, e.rounds, e.lr) == ("svm", "case2", 20, 0.01)
    assert e.replace(data="digits", seed=4) == dataclasses.replace(e, data="digits", seed=4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Experiment(alpa=3),  # type: ignore[call-arg]
        lambda: Experiment.preset("digits-case3", alpa=3),
        lambda: Experiment().replace(alpa=3),
    ],
)
def test_a_setting_that_is_not_known_is_named_with_the_nearest_one(make: Callable[[], Experiment]) -> None:
    with pytest.raises(UserError, match=r"^alpa is not a setting; did you mean alpha\?$"):
        make()


def test_python_is_shown_where_all_settings_are() -> None:
    with pytest.raises(UserError, match=r"^zzz is not a setting; help\(fedveca.Experiment\) shows all$"):
        Experiment(zzz=3)  # type: ignore[call-arg]


def test_editors_are_offered_what_is_accepted() -> None:
    """Every setting with named values has a Literal of them; a name beyond them is an object's or a user's."""
    for key, hint in get_type_hints(Experiment).items():
        literals = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
        offered = get_args(literals[0]) if literals else ()
        metrics = tuple(name for name in FIELDS["metric"].metadata["some"] if name not in TABLES)
        special = {"model": tuple(MODELS), "init": ("paper", "torch"), "metric": metrics}
        named = special.get(key) or choices(FIELDS[key])
        named = named or FIELDS[key].metadata["words"]
        assert set(offered) == set(named), key
        free = FIELDS[key].metadata["custom"] or key == "init"  # which may be a path
        assert (str in get_args(hint)) == bool(literals and free), key


def test_help_shows_every_setting() -> None:
    shown = pydoc.plain(pydoc.render_doc(Experiment))
    for key, field in FIELDS.items():
        assert f"{key}: {field.metadata['text']} (default {field.default!r}" in shown
    assert str(inspect.signature(Experiment)).count("=") == len(FIELDS)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "digits-case3"),
        (["rounds=4", "method=fedavg"], "digits-case3"),
        (["data=mnist", "model=cnn"], "cnn-mnist-case3"),
        (["data=synthetic"], "mlp-synthetic-writer"),
        (["digits-case3", "partition=iid"], "mlp-digits-iid"),
        (["svm-mnist-case1", "lr=1"], "svm-mnist-case1"),
        (["svm-mnist-case1", "model=my.nets:Small"], "my.nets-Small-mnist-case1"),
    ],
)
def test_a_run_is_named_by_what_runs(words: list[str], name: str) -> None:
    assert parse_experiment(words)[0] == name


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"tau_0": 10, "batch": 100}, 200),
        ({"tau_0": 10, "batch": 32}, 64),
        ({"tau_0": 2, "batch": 8}, 32),  # never fewer
        ({"tau_0": 195, "batch": 32}, 1024),  # never more
        ({"probe": 77}, 77),
        ({"probe": 0}, 0),  # all
    ],
)
def test_probe_auto_is_a_fifth_of_the_rows_of_the_first_steps(settings: dict[str, Any], rows: int) -> None:
    assert count_probe_rows(Experiment(**settings)) == rows


def test_the_papers_presets_probe_all_rows() -> None:
    stated = {name: preset(name)["probe"] for name in presets() if "probe" in preset(name)}
    papers = ("cnn-cifar10-case3", "cnn-mnist-case3", "svm-mnist-case1", "svm-mnist-case2", "svm-mnist-case3")
    assert stated == dict.fromkeys(papers, 0)
    assert Experiment().probe == "auto"


def test_a_folder_of_version_0_1_has_its_probe() -> None:
    assert read_experiment('data = "digits"\n').probe == 1024
    assert read_experiment(Experiment().toml()).probe == "auto"
