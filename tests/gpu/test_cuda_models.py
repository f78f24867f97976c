"""On a CUDA device: dropout, running statistics, the captured probe, fused models and too little memory."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedveca.algorithms import Algorithm, FedAvg, FedVeca, Scaffold
from fedveca.cohorts.local import cohort as engine
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.local.cuda_graphs import Lanes
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import RunningStatistics, federate
from fedveca.runs.run import run
from fedveca.runs.setting_fields import NormStatistics
from fedveca.tasks.models import model
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.partition import partition

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
NO_ADVICE = pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # these tests are exact on purpose
E = Experiment(method="fedveca", data="digits", rounds=3, batch=16, lr=0.01, clients=5, tau_0=5, participation=0.6)


class Net(nn.Module):
    def __init__(self, drop: float = 0.0, normed: bool = True) -> None:
        super().__init__()
        self.conv, self.drop, self.fc = nn.Conv2d(1, 8, 3, padding=1), nn.Dropout(drop), nn.Linear(128, 10)
        self.norm: nn.Module = nn.BatchNorm2d(8) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        out: Tensor = self.fc(self.drop(x.flatten(1)))
        return out


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 to the last bit."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(engine, "use_tensor_cores", lambda device: nullcontext())


def make_net(**options: float) -> Net:
    torch.manual_seed(0)
    return Net(**options)  # type: ignore[arg-type]


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((v.float() - b[name].float()).abs().max()) for name, v in a.items())


@pytest.mark.parametrize("norm_stats", ["average", "local", "fixed"])
def test_running_statistics_are_those_of_the_cpu(norm_stats: NormStatistics) -> None:
    e = replace(E, norm_stats=norm_stats)
    here, there = (dict(run(e, model=make_net(), device=device).model) for device in ("cpu", "cuda"))
    assert distance(here, there) < 1e-3


def test_the_same_seed_gives_the_same_dropout() -> None:
    first, again = (dict(run(E, model=make_net(drop=0.3), device="cuda").model) for _ in range(2))
    other = dict(run(replace(E, seed=1), model=make_net(drop=0.3), device="cuda").model)
    assert distance(first, again) < 1e-3
    assert distance(first, other) > 1e-2


def test_every_replay_draws_anew() -> None:
    """With ones as rows, the running mean counts how often each unit was kept."""

    class Count(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.fc = nn.Dropout(0.5), nn.Linear(1000, 10)
            self.kept: Tensor
            self.register_buffer("kept", torch.zeros(1000))

        def forward(self, x: Tensor) -> Tensor:
            x = self.drop(torch.ones_like(x))
            if self.training:
                self.kept.add_(x[0].detach() / 2)
            out: Tensor = self.fc(x)
            return out

    made = model("", (1000,), 10, custom=Count())
    assert made.random
    shares = partition("case1", torch.zeros(8, dtype=torch.int64), 10, 1)
    cohort = LocalCohort(FedAvg(0.1), made, torch.rand(8, 1000), torch.zeros(8).long(), shares, batch=4, device="cuda")
    statistics = RunningStatistics(made.initial_statistics().cuda())
    state = FedAvg(0.1).init(made.init().cuda(), torch.tensor([8]))
    list(federate(FedAvg(0.1), cohort, state, 1, statistics=statistics))
    kept = statistics.now
    assert abs(float(kept.mean()) - 4) < 0.2  # of 8 steps
    assert len(torch.unique(kept)) > 5  # the same mask in each step would leave 0 and 8


def augmented(text: str, seed: int = 0, compiled: bool = False, steps: int = 6) -> Tensor:
    """w after one round of local steps on augmented images, captured as a graph."""
    x, y = images()
    made = model("cnn", (3, 16, 16), 10, augment=text, compiled=compiled)
    cohort = LocalCohort(
        FedAvg(0.01), made, x, y, partition("case1", y, 10, 3), batch=20, seed=seed, pixels="unit", device="cuda"
    )
    state = FedAvg(0.01).init(made.init().cuda(), torch.tensor([steps, 2, 3]))
    return list(federate(FedAvg(0.01), cohort, state, 1))[-1][0].w.cpu()


@pytest.mark.parametrize("text", ["crop:4", "flip", "cutout:8", "crop:4,flip,cutout:8"])
def test_augmentation_is_captured_and_follows_the_seed(text: str) -> None:
    first, again, other = augmented(text), augmented(text), augmented(text, seed=1)
    assert float((first - again).abs().max()) < 1e-5
    assert float((first - other).abs().max()) > 1e-4
    assert float((first - augmented("")).abs().max()) > 1e-4


@NO_ADVICE
def test_a_fused_model_gets_the_same_augmented_rows() -> None:
    eager, fused = (augmented("crop:4,flip,cutout:8", compiled=compiled) for compiled in (False, True))
    assert float((eager - fused).abs().max()) < 1e-4


def test_every_replay_augments_anew() -> None:
    """Pixels 1 and -1, mirrored in half of the steps: a linear model's bias counts steps, its weights the surplus."""
    x, y = torch.tensor([1.0, -1.0]).view(1, 1, 1, 2).repeat(2, 1, 1, 1), torch.zeros(2, dtype=torch.int64)
    made = model("logistic", (1, 1, 2), 2, augment="flip")
    cohort = LocalCohort(FedAvg(1e-4), made, x, y, partition("case1", y, 2, 1), batch=1, device="cuda")
    state = FedAvg(1e-4).init(torch.zeros(made.size).cuda(), torch.tensor([60]))
    weight, bias = made.named(list(federate(FedAvg(1e-4), cohort, state, 1))[-1][0].w.cpu()).values()
    assert float(bias.abs().max()) == pytest.approx(60 * 0.5e-4, rel=0.01)
    assert float(weight.abs().max()) < 0.7 * 60 * 0.5e-4  # all steps alike would add up like the bias


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (600, 3, 16, 16), dtype=torch.uint8, generator=generator)
    return x, torch.randint(0, 10, (600,), generator=generator)


def train(algorithm: Algorithm, device: str, compiled: bool = False) -> tuple[Tensor, list[list[int]]]:
    x, y = images()
    made = model("cnn", (3, 16, 16), 10, compiled=compiled)
    tau = torch.tensor([4, 3, 2, 2, 5])
    cohort = LocalCohort(
        algorithm, made, x, y, partition("case3", y, 10, 5), batch=20, pixels="unit", device=device, probe=70
    )
    states = list(federate(algorithm, cohort, algorithm.init(made.init().to(device), tau), 3))
    return states[-1][0].w.cpu(), [record["tau"] for _, record in states]


def test_the_captured_probe_is_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_LANE_BYTES", 0)
    here = train(FedVeca(0.002), "cpu")
    for rows in (10**6, 32):  # in one pass, and in several of which the last is padded
        monkeypatch.setattr(engine, "_CUDA_PROBE_SHARE", rows * 16 * 10**5 / torch.cuda.mem_get_info()[0])
        there = train(FedVeca(0.002), "cuda")
        assert here[1] == there[1]
        assert float((here[0] - there[0]).abs().max()) < 1e-4


@NO_ADVICE
@pytest.mark.parametrize("algorithm", [FedAvg(0.002), FedVeca(0.002), Scaffold(0.002)], ids=lambda a: type(a).__name__)
def test_a_fused_model_gives_the_same(algorithm: Algorithm) -> None:
    eager, fused = train(algorithm, "cuda"), train(algorithm, "cuda", compiled=True)
    assert eager[1] == fused[1]
    assert float((eager[0] - fused[0]).abs().max()) < 1e-4


def test_a_model_that_draws_is_not_fused() -> None:
    made = model("", (1, 8, 8), 10, custom=make_net(drop=0.3), compiled=True)
    assert isinstance(made, ModuleProblem)
    assert not made.compiled


def test_too_little_memory_halves_the_clients_side_by_side(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    want = train(FedVeca(0.002), "cuda")
    take, failures = Lanes.take_local_steps, iter([True, True, False])

    def fail_twice(self: Lanes, *args: object) -> object:
        if next(failures, False):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return take(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Lanes, "take_local_steps", fail_twice)
    with caplog.at_level(logging.WARNING):
        got = train(FedVeca(0.002), "cuda")
    assert got[1] == want[1]
    assert float((got[0] - want[0]).abs().max()) < 1e-4
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"round 1: out of CUDA memory; continuing with {n} clients side by side" for n in (2, 1)]
