"""Networks with dropout, running statistics and frozen parts over nodes: the simulator's result, or a rejection."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")
from flower_grid import Grid
from flwr.app import Array
from flwr.supercore.task_identity import TaskIdentity
from real_models import CALM
from torch import Tensor, nn

from fedveca.algorithms.contract import Order
from fedveca.cohorts.flower import roster
from fedveca.cohorts.flower.answers import NodeTask
from fedveca.cohorts.flower.cohort import FlowerCohort
from fedveca.cohorts.flower.wire import narrow, widen
from fedveca.cohorts.transfer import VectorTransfer
from fedveca.deploy.exchange import decode_answer, encode
from fedveca.deploy.node_process import make_node_cohort, work
from fedveca.deploy.server import load_test_data, make_cohort
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from fedveca.runs.task_data import load_data
from fedveca.tasks.datasets.dataset import Dataset
from fedveca.tasks.module_problem import ModuleProblem

E = Experiment(data="digits", clients=4, rounds=3, batch=8, lr=0.05, tau_0=3, probe=16, round_timeout=60.0)
RESNET = replace(E, model="real_models:resnet", **CALM)
LOADER = """
import numpy as np
from fedveca import from_arrays, pad_sequences
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.drop, self.fc = nn.Embedding(12, 4), nn.Dropout(0.1), nn.Linear(4, 5)

    def forward(self, input_ids, attention_mask):
        assert not input_ids.is_floating_point()
        return self.fc(self.drop(self.words(input_ids) * attention_mask[..., None]))


def tagger(shape, classes):
    return Tagger()


def load():
    draw = np.random.default_rng(3)
    rows = [draw.integers(1, 12, 2 + n % 4) for n in range(50)]
    tokens, mask = pad_sequences(rows)
    labels, _ = pad_sequences([row % 4 for row in rows], value=-100)
    return from_arrays({"input_ids": tokens, "attention_mask": mask}, labels, classes=5)
"""


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)


def over_nodes(e: Experiment, folder: Path, data: Dataset) -> Run:
    grid: Any = Grid(e, folder, {}, e.clients)
    return run(e, data=data, cohort=make_cohort(grid, e, data, say=lambda text: None))


def largest_difference(a: Run, b: Run) -> float:
    assert a.model.keys() == b.model.keys()
    return max(float((v - b.model[name]).abs().max()) for name, v in a.model.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "e",
    [
        replace(E, model="real_models:encoder", participation=0.5),
        replace(E, model="real_models:normed"),
        replace(E, model="real_models:normed", norm_stats="local", participation=0.5),
        replace(E, model="real_models:normed", norm_stats="fixed"),
        pytest.param(
            replace(E, model="real_models:encoder", augment="crop:2,flip,cutout:3", pixels="channels"),
            marks=pytest.mark.slow,
        ),
        replace(E, model="svm", method="fednova", epochs="1..2", sampling="shuffle", participation=0.5),
        replace(E, model="mlp", method="moon", participation=0.5),
        replace(E, model="mlp", method="fedvecam", participation=0.5),
        replace(E, model="mlp", method="fedlc", momentum=0.5),
        replace(E, model="svm", method="scaffnew"),
        replace(E, model="mlp", method="fednova", momentum=0.9, optimizer_state="keep", lr_schedule="cosine"),
        replace(E, model="mlp", optimizer="adamw", optimizer_state="keep", lr=0.003, weight_decay=0.01),
        replace(E, model="mlp", method="fedadam", participation=0.5, lr_warmup=1),
        pytest.param(RESNET, marks=pytest.mark.slow),
        pytest.param(replace(RESNET, norm_stats="local"), marks=pytest.mark.slow),
        pytest.param(replace(RESNET, norm_stats="fixed"), marks=pytest.mark.slow),
    ],
    ids=[
        "dropout",
        "average",
        "local",
        "fixed",
        "augmented",
        "random-epochs",
        "moon",
        "fedvecam",
        "fedlc-momentum",
        "scaffnew",
        "momentum",
        "adamw",
        "fedadam",
        "resnet-average",
        "resnet-local",
        "resnet-fixed",
    ],
)
def test_nodes_give_the_simulators_model(e: Experiment, tmp_path: Path) -> None:
    done, want = over_nodes(e, tmp_path, load_data(e)[0]), run(e, device="cpu")
    assert largest_difference(done, want) < 1e-6
    assert [r["tau"] for r in done.rounds] == [r["tau"] for r in want.rounds]
    assert [r["bytes_up"] for r in done.rounds] == [r["bytes_up"] for r in want.rounds]


def shift_statistics(name: str, by: float) -> Callable[[dict[str, Any]], None]:
    """A forged answer: the first number of one buffer is changed by so much."""
    e = replace(E, model="real_models:normed")
    problem = build(e).problem
    assert isinstance(problem, ModuleProblem)
    at = [n for n, v in problem.named_statistics(torch.arange(problem.statistics)).items() if n.endswith(name)]
    place = int(problem.named_statistics(torch.arange(problem.statistics))[at[0]].flatten()[0])

    def change(records: dict[str, Any]) -> None:
        forged = records["vectors"]["statistics"].numpy().copy()
        forged[place] += by
        records["vectors"]["statistics"] = Array(forged)

    return change


@pytest.mark.parametrize(("name", "by", "valid"), [("running_var", -5.0, False), ("running_mean", -5.0, True)])
def test_a_node_cannot_make_a_variance_negative(name: str, by: float, valid: bool, tmp_path: Path) -> None:
    e = replace(E, model="real_models:normed", rounds=1)
    data, said = load_data(e)[0], list[str]()
    grid: Any = Grid(e, tmp_path, {(1, 0): shift_statistics(name, by)}, e.clients)
    done = run(e, data=data, cohort=make_cohort(grid, e, data, say=said.append))
    faults = done.rounds[0].get("faults", [])
    assert done.rounds[0]["ids"] == ([0, 1, 2, 3] if valid else [0, 2, 3])
    if not valid:
        assert [fault["client"] for fault in faults] == [1]
        assert re.fullmatch(r"sent statistics with a running variance of -\d.*; it is 0 or more", faults[0]["what"])
    assert all(bool((v >= 0).all()) for key, v in done.model.items() if key.endswith("running_var"))


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16"])
def test_a_variance_that_is_rounded_on_the_wire_is_valid(wire: Any) -> None:
    """A node whose variance fell to 0 sends its rounded change; twice the rounding below 0 is a forgery."""
    cohort = FlowerCohort.__new__(FlowerCohort)
    cohort.transfer, cohort.task = VectorTransfer(wire), NodeTask({}, variances=torch.tensor([False, True]))

    def check(before: Tensor, change: Tensor) -> None:
        cohort._check_variances(Order(torch.empty(0), {"statistics": before}), {"statistics": change})

    for shared in (1e-9, 0.3, 1.7, 12345.6):
        before = torch.tensor([0.0, shared])
        arrived = torch.from_numpy(widen(narrow(before.numpy(), wire), wire))
        check(before, torch.from_numpy(widen(narrow((-arrived).numpy(), wire), wire)))
    with pytest.raises(UserError, match=r"running variance of -0\.1; it is 0 or more$"):
        check(torch.tensor([0.0, 0.1]), torch.tensor([-9.0, -0.2]))


def test_a_loader_may_give_tokens_a_mask_and_labels_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clinic.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path)
    for name in ("FEDVECA_NODE_DATA", "FEDVECA_TEST_DATA"):
        monkeypatch.setenv(name, "clinic:load")
    e = replace(E, model="clinic:tagger", clients=1)
    data = load_test_data(e)
    assert (data.classes, len(data.x), len(data.inputs)) == (5, 0, 2)
    make_node_cohort.cache_clear()
    done = over_nodes(e, tmp_path, data)
    import clinic  # type: ignore[import-not-found]

    want = run(e, data=clinic.load(), partition=[list(range(40))], model=clinic.tagger, device="cpu")
    assert largest_difference(done, want) < 1e-6


@pytest.mark.slow
def test_the_lora_example_over_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    for name in ("FEDVECA_NODE_DATA", "FEDVECA_TEST_DATA"):
        monkeypatch.setenv(name, "lora:load")
    e = replace(E, model="lora:make", clients=1, rounds=2, tau_0=2, method="fedavg")
    make_node_cohort.cache_clear()
    done = over_nodes(e, tmp_path, load_test_data(e))
    import lora  # type: ignore[import-not-found]

    data = lora.load()
    want = run(e, data=data, partition=[list(range(len(data.x)))], model=lora.make, device="cpu")
    assert largest_difference(done, want) < 1e-6
    assert {name for name, v in done.model.items() if not torch.equal(v, lora.make((), 0).state_dict()[name])} == {
        name for name in done.model if "lora_" in name
    }


@pytest.fixture
def frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Writes the frozen part that a node finds on its disk, shifted."""

    def write(shift: float) -> None:
        torch.manual_seed(0)
        body = nn.Linear(64, 16)
        with torch.no_grad():
            body.bias.add_(shift)
        torch.save(body.state_dict(), tmp_path / "body.pt")
        make_node_cohort.cache_clear()

    monkeypatch.setenv("FROZEN", str(tmp_path / "body.pt"))
    write(0.0)
    return write


def test_nodes_load_the_frozen_part_from_their_disk(frozen: Callable[[float], None], tmp_path: Path) -> None:
    e = replace(E, model="real_models:on_disk")
    done = over_nodes(e, tmp_path, load_data(e)[0])
    assert largest_difference(done, run(e, device="cpu")) < 1e-6
    assert done.rounds[0]["bytes_down"] == 4 * (4 * 170 + 8)  # the head alone


def test_a_node_with_another_frozen_part_is_rejected(frozen: Callable[[float], None], tmp_path: Path) -> None:
    e = replace(E, model="real_models:on_disk")
    grid: Any = Grid(e, tmp_path, {}, e.clients)
    cohort = make_cohort(grid, e, load_data(e)[0], say=lambda text: None)
    words: Any = {"classes": 10, "pixels": "unit", "fixed": cohort.task.note["fixed"]}
    request: Any = {"settings": asdict(e), "client": 1, "order": words}
    assert "error" not in decode_answer(work(encode(request, {}), tmp_path))[0]
    frozen(1e-6)
    said = decode_answer(work(encode(request, {}), tmp_path))[0]["error"]
    assert said.startswith(
        "the frozen part of model=real_models:on_disk (weights and buffers) is not the server's here"
    )
    assert said.endswith("; install the same files")
    request["order"] = {"classes": 10, "pixels": "unit"}
    assert "not none; install" in decode_answer(work(encode(request, {}), tmp_path))[0]["error"]


def test_hash_is_of_values_names_and_types() -> None:
    body = nn.Linear(3, 2).requires_grad_(False)
    net = nn.Sequential(body, nn.Linear(2, 2))
    first = ModuleProblem(net).hash_fixed()
    assert ModuleProblem(copy.deepcopy(net)).hash_fixed() == first
    assert ModuleProblem(nn.Sequential(nn.Linear(3, 2))).hash_fixed() == ""
    half = copy.deepcopy(net)
    half[0].bfloat16()
    assert ModuleProblem(half).hash_fixed() != first
    assert ModuleProblem(nn.Sequential(nn.Identity(), body, nn.Linear(2, 2))).hash_fixed() != first
