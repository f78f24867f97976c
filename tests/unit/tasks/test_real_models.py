"""Networks as people bring them (BatchNorm, dropout, frozen and tied weights), held to plain PyTorch loops."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from real_models import Encoder, adapt, bert, encoder, encoder_without_dropout, gpt2, normed, resnet
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedveca import WeightedCrossEntropy, from_arrays, pad_sequences
from fedveca.algorithms.contract import STATISTICS, Named, Order, Report
from fedveca.algorithms.fedavg import FedAvg
from fedveca.cohorts.debug import DebugCohort
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.random import draw_rows, draw_seed
from fedveca.runs.build import Built, build, cohort_options
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import Rollback, RunningStatistics, choose_clients, federate
from fedveca.runs.observers import Observer
from fedveca.runs.run import resume, run
from fedveca.runs.schema import Round
from fedveca.runs.setting_fields import NormStatistics
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.losses import cross_entropy
from fedveca.tasks.metrics import accuracy
from fedveca.tasks.models import Model, model
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.randomness import DrawFrom, draw_from

E = Experiment(data="digits", method="fedavg", clients=4, rounds=3, batch=8, tau_0=3, lr=0.05, keep="last", probe=16)
SHAPE, CLASSES = (1, 8, 8), 10
NormStats = Literal["average", "local", "fixed"]
NORM_STATS = ("average", "local", "fixed")


def make(build_module: Model, seed: int = 0, **words: Any) -> ModuleProblem:
    made = model("", SHAPE, CLASSES, custom=build_module, seed=seed, **words)
    assert isinstance(made, ModuleProblem)
    return made


def factory(kind: Callable[[], nn.Module]) -> Model:
    return lambda shape, classes: kind()


def went(built: Built, cohort: Any = None) -> Tensor:
    """[P + S] after the rounds."""
    e, running = built.experiment, RunningStatistics(built.statistics) if len(built.statistics) else None
    last = built.state
    for last, _ in federate(  # noqa: B007
        built.algorithm,
        cohort or built.cohort,
        built.state,
        e.rounds,
        participation=e.participation,
        statistics=running,
    ):
        pass
    return torch.cat([last.w, running.now]) if running else last.w


def walk_by_hand(built: Built, module: nn.Module, norm_stats: str) -> dict[str, Tensor]:
    """FedAvg in plain PyTorch: train(), SGD, and a mean of the state_dicts by rows."""
    e, shares = built.experiment, built.shares
    module, own = copy.deepcopy(module), dict[int, dict[str, Tensor]]()
    norms = {n for n, m in module.named_modules() if isinstance(m, nn.BatchNorm2d)}
    names = [n for n, v in module.state_dict().items() if v.is_floating_point()]
    for k in range(e.rounds):
        ids, states = choose_clients(built.cohort, k, e.participation, e.seed), []
        for i in ids.tolist():
            client = copy.deepcopy(module).train()
            if norm_stats == "fixed":
                for n in norms:
                    client.get_submodule(n).eval()
            if norm_stats == "local" and i in own:
                client.load_state_dict(own[i], strict=False)
            descent = torch.optim.SGD(client.parameters(), e.lr)
            rows = draw_rows(e.seed, k, torch.tensor([i]), shares.sizes[[i]], e.tau_0, e.batch)[0]
            for index in rows:
                at = shares.rows[shares.start[i] + index]
                descent.zero_grad()
                nn.functional.cross_entropy(client(built.data.x[at] / 1.0), built.data.y[at]).backward()
                descent.step()
            states.append(client.state_dict())
            own[i] = {n: v.clone() for n, v in client.state_dict().items() if "running" in n}
        share = shares.sizes[ids].double() / shares.sizes[ids].sum()
        mean = {n: sum(p * state[n].double() for p, state in zip(share, states, strict=True)) for n in names}
        module.load_state_dict({n: v.float() for n, v in mean.items() if isinstance(v, Tensor)}, strict=False)
    return {n: v for n, v in module.state_dict().items() if n in names}


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return max(float((v - b[name]).abs().max()) for name, v in a.items())


# what is trained, held to plain PyTorch


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("norm_stats", NORM_STATS)
def test_running_statistics_are_those_of_a_plain_loop(norm_stats: NormStats, participation: float) -> None:
    e = replace(E, norm_stats=norm_stats, participation=participation)
    torch.manual_seed(3)
    module = normed(SHAPE, CLASSES)
    module.state_dict()["1.running_mean"].uniform_(-1, 1)
    built = build(e, model=module)
    assert built.problem.statistics == (0 if norm_stats == "fixed" else 6)
    done = built.problem.state(went(built))
    expected = walk_by_hand(built, module, norm_stats)
    assert distance(expected, done) < 1e-6
    moved = not torch.equal(done["1.running_mean"], module.state_dict()["1.running_mean"])
    assert moved == (norm_stats != "fixed")
    module.load_state_dict(done, strict=True)


def test_a_model_is_evaluated_with_its_running_statistics() -> None:
    """The values that a run records are those of plain PyTorch with the returned model, statistics and all."""
    done = run(replace(E, keep="last"), model=normed, device="cpu")
    data, module = load(E.data), normed(SHAPE, CLASSES).eval()
    module.load_state_dict(dict(done.model))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module(data.x_test), data.y_test)
        module.state_dict()["1.running_mean"].zero_()  # what the model started with
        module.state_dict()["1.running_var"].fill_(1)
        started = nn.functional.cross_entropy(module(data.x_test), data.y_test)
    assert done.summary["last"]["test_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert float(started) != pytest.approx(float(loss), rel=1e-2)


def test_dropout_of_nothing_changes_no_byte() -> None:
    with_it, without = (
        run(E, model=factory(lambda: Encoder(8, CLASSES, 0.0))),
        run(E, model=encoder_without_dropout),
    )
    assert all(torch.equal(v, without.model[name]) for name, v in with_it.model.items())

    def zero(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(64, classes))

    def plain(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(64, classes))

    a, b = run(E, model=zero).model, run(E, model=plain).model
    assert all(torch.equal(v, b[name]) for name, v in a.items())


def test_dropout_draws_from_the_seed_of_round_client_and_step() -> None:
    built = build(replace(E, clients=2, rounds=1, tau_0=2), model=encoder)
    e, shares, problem = built.experiment, built.shares, built.problem
    assert problem.random
    w = problem.init()[None].repeat(2, 1)
    for i in range(2):
        rows = draw_rows(e.seed, 0, torch.tensor([i]), shares.sizes[[i]], 2, e.batch)[0]
        for step in range(2):
            at = shares.rows[shares.start[i] + rows[step]]
            client = encoder(SHAPE, CLASSES).train()
            client.load_state_dict(problem.state(w[i]))
            with DrawFrom(torch.Generator().manual_seed(draw_seed(e.seed, 0, i, step))):
                scores = client(built.data.x[at])
            nn.functional.cross_entropy(scores, built.data.y[at]).backward()
            grads = problem.flat([p.grad for p in client.parameters() if p.grad is not None])  # type: ignore[attr-defined]
            w[i] -= e.lr * grads
    p = shares.sizes / shares.sizes.sum()
    assert float((went(built) - p @ w).abs().max()) < 1e-6


def test_seeds_differ_by_seed_round_client_and_step() -> None:
    seeds = {draw_seed(*at) for at in np.ndindex(3, 4, 5, 6)}
    assert len(seeds) == 3 * 4 * 5 * 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_draws_keep_the_share_of_dropout_and_leave_the_process_alone() -> None:
    before = torch.get_rng_state()
    ones = torch.ones(20_000)
    with draw_from(torch.Generator().manual_seed(1)):
        dropped = nn.functional.dropout(ones, 0.3)
        more = [torch.rand_like(ones), torch.bernoulli(ones, 0.25), torch.rand(20_000), torch.randn_like(ones)]
    with draw_from(torch.Generator().manual_seed(1)):
        again = nn.functional.dropout(ones, 0.3)
    assert torch.equal(dropped, again)
    assert torch.equal(before, torch.get_rng_state())
    assert abs(float((dropped > 0).float().mean()) - 0.7) < 0.02
    assert abs(float(dropped.mean()) - 1.0) < 0.02
    for v, mean in zip(more, (0.5, 0.25, 0.5, 0.0), strict=True):
        assert abs(float(v.mean()) - mean) < 0.03


@pytest.mark.parametrize("kind", [encoder, resnet])
def test_the_probe_and_the_test_are_in_evaluation_mode(kind: Model) -> None:
    torch.manual_seed(0)
    module = kind(SHAPE, CLASSES)  # type: ignore[operator]
    built = build(E, model=module)
    problem, x, y = built.problem, built.data.x_test[:32], built.data.y_test[:32]
    model_vector = torch.cat([problem.init(), problem.initial_statistics()])
    module.eval()
    want = nn.functional.cross_entropy(module(x), y)
    loss, _ = problem.losses(model_vector[: problem.size], x, y)
    assert float(loss) == pytest.approx(float(want.detach()), abs=1e-6)
    loss, g = problem.gradients(problem.init()[None], x[None], y[None])
    want.backward()
    expected = problem.flat([p.grad for p in module.parameters() if p.grad is not None])  # type: ignore[attr-defined]
    assert float(loss) == pytest.approx(float(want.detach()), abs=1e-6)
    assert float((g[0] - expected).abs().max()) < 1e-5


# the same result wherever clients run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (encoder, {"participation": 0.5}),
        (normed, {"norm_stats": "average"}),
        (normed, {"norm_stats": "local", "participation": 0.5}),
        (normed, {"norm_stats": "fixed"}),
    ],
    ids=["dropout", "average", "local", "fixed"],
)
def test_threads_lanes_and_the_debug_engine_change_nothing(kind: Model, words: dict[str, Any]) -> None:
    def built(batch: int = 8) -> Built:
        return build(replace(E, rounds=2, method="fedveca", keep="best", batch=batch, **words), model=kind)

    first = built()
    want, options, data = went(first), cohort_options(first.experiment), first.data
    for cohort in (
        LocalCohort(first.algorithm, first.problem, data.x, data.y, first.shares, threads=1, **options),
        LocalCohort(first.algorithm, first.problem, data.x, data.y, first.shares, threads=2, lanes=1, **options),
        LocalCohort(first.algorithm, first.problem, data.x, data.y, first.shares, threads=1, lanes=3, **options),
        DebugCohort(first.algorithm, first.problem, data.x, data.y, first.shares, **options),
    ):
        assert float((went(built(), cohort) - want).abs().max()) < 1e-6


class Stop(Observer):
    """Ends a run after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, record: Round) -> None:
        if record["round"] + 1 == self.after:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [(encoder, {}), (normed, {}), (normed, {"norm_stats": "local", "participation": 0.5})],
    ids=["dropout", "average", "local"],
)
def test_a_resumed_run_is_the_same_in_every_byte(kind: Model, words: dict[str, Any], tmp_path: Path) -> None:
    e = replace(E, rounds=4, keep="best", **words)
    whole = run(e, out=tmp_path / "whole", model=kind)
    with pytest.raises(KeyboardInterrupt):
        run(e, out=tmp_path / "cut", observers=[Stop(2)], model=kind)
    done = resume(tmp_path / "cut", model=kind)
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert done.summary["kept"] == whole.summary["kept"]
    assert [r["train_loss"] for r in done.rounds] == [r["train_loss"] for r in whole.rounds]


# running statistics of a run


class Spy:
    """A cohort that records the statistics that are sent."""

    def __init__(self, built: Built) -> None:
        self.cohort, self.sent, self.mean = built.cohort, list[Tensor](), list[Tensor]()
        self.sizes, self.weights, self.memory = built.cohort.sizes, built.cohort.weights, built.cohort.memory

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        self.sent.append(order.aux[STATISTICS].clone())
        who, report = self.cohort(k, order, ids, tau)
        self.mean.append(report.mean[STATISTICS].clone())
        return who, report


def test_each_round_adds_the_mean_change_once() -> None:
    built = build(E, model=normed)
    spy, running = Spy(built), RunningStatistics(built.statistics)
    list(federate(built.algorithm, spy, built.state, 3, statistics=running))  # type: ignore[arg-type]
    assert torch.equal(spy.sent[0], torch.tensor([0.0] * 3 + [1.0] * 3))
    for k in range(2):
        assert torch.equal(spy.sent[k + 1], spy.sent[k] + spy.mean[k])
    assert torch.equal(running.now, spy.sent[2] + spy.mean[2])


def test_statistics_of_a_rejected_round_are_rolled_back() -> None:
    e = replace(E, keep="rollback", lr=2.0, rounds=6, tau_0=6)
    built = build(e, model=normed)
    running = RunningStatistics(built.statistics)
    before, seen = running.now, set()
    for _, record in federate(
        built.algorithm, built.cohort, built.state, e.rounds, rollback=Rollback(), statistics=running
    ):
        assert torch.equal(before, running.now) == (not record["accepted"])
        before = running.now
        seen.add(record["accepted"])
    assert seen == {True, False}


def test_the_kept_model_has_the_statistics_of_its_round() -> None:
    best = run(replace(E, keep="best", lr=1.0, rounds=6), model=normed)
    assert best.summary["kept"]["round"] < 6
    until = run(replace(E, lr=1.0, rounds=best.summary["kept"]["round"]), model=normed)
    assert all(torch.equal(v, until.model[name]) for name, v in best.model.items())


class Watching(FedAvg):
    """A method that uses all vectors that it is given."""

    def start(self, order: Order, memory: Named, g0: Tensor) -> Any:
        assert not order.aux
        assert not memory
        return super().start(order, memory, g0)

    def update(self, state: Any, ids: Tensor, p: Tensor, report: Report) -> Any:
        assert {v.shape for v in report.mean.values()} == {state.w.shape}
        return super().update(state, ids, p, report)


@pytest.mark.parametrize("norm_stats", ["average", "local"])
def test_a_method_sees_no_statistics_and_a_custom_one_is_tried_with_them(norm_stats: NormStatistics) -> None:
    ours = run(replace(E, norm_stats=norm_stats), model=normed).model
    done = run(replace(E, norm_stats=norm_stats), model=normed, method=Watching(0.05)).model
    assert all(torch.equal(v, ours[name]) for name, v in done.items())


class Average(nn.Module):
    """Keeps a mean, in place or by putting another tensor in the buffer's place."""

    mean: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.fc = nn.Linear(64, CLASSES)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.training:
            now = 0.9 * self.mean + 0.1 * x.mean(0).detach()
            if self.in_place:
                self.mean.copy_(now)
            else:
                self.mean = now
        out: Tensor = self.fc(x - self.mean)
        return out


@pytest.mark.parametrize("norm_stats", ["average", "local"])
def test_a_buffer_that_is_replaced_counts_like_one_that_is_changed(norm_stats: NormStatistics) -> None:
    e = replace(E, norm_stats=norm_stats)
    replaced, changed = (run(e, model=factory(lambda v=v: Average(v))).model for v in (False, True))  # type: ignore[misc]
    assert float(changed["mean"].abs().max()) > 0.1
    assert distance(changed, replaced) == 0


# frozen parts


def frozen_body() -> nn.Module:
    body = nn.Linear(64, 16).requires_grad_(False).to(torch.float64)
    return nn.Sequential(nn.Flatten(), Double(body), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, CLASSES))


class Double(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.double()).float()
        return out


def test_frozen_parameters_stay_travel_not_and_are_hashed(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = frozen_body()
    before = {name: v.clone() for name, v in module.state_dict().items()}
    done = run(E, out=tmp_path / "out", model=module)
    assert torch.equal(done.model["1.body.weight"], before["1.body.weight"])
    assert not torch.equal(done.model["4.weight"], before["4.weight"])
    assert all(torch.equal(v, before[name]) for name, v in module.state_dict().items())
    module.load_state_dict(done.model, strict=True)
    assert done.rounds[0]["bytes_up"] == E.clients * (4 * (16 * 10 + 10) + 8)
    problem = make(module)
    assert problem.size == 170
    environment = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert environment["fixed"] == problem.hash_fixed()
    with torch.no_grad():
        next(p for p in module.parameters() if not p.requires_grad)[0, 0] += 1e-9
    assert make(module).hash_fixed() != problem.hash_fixed()


def test_replicas_of_all_forks_share_one_frozen_part() -> None:
    problem = make(frozen_body())
    cpu = torch.device("cpu")
    forks = [problem._replica(cpu), problem.fork()._replica(cpu), problem.fork().fork()._replica(cpu)]
    frozen = {next(p for p in replica.module.parameters() if not p.requires_grad).data_ptr() for replica in forks}
    assert len(frozen) == 1
    assert len({id(replica.parameters[0]) for replica in forks}) == 3


# whole networks


def digits_lines() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return rng.integers(1, 20, (60, 6)), rng.integers(0, 3, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [resnet, encoder])
def test_a_stock_network_trains_as_it_is(kind: Model) -> None:
    done = run(replace(E, method="fedveca", keep="best"), model=kind)
    assert len(done.rounds) == 3
    assert done.rounds[-1]["train_loss"] is not None
    kind(SHAPE, CLASSES).load_state_dict(done.model, strict=True)  # type: ignore[operator]


@pytest.mark.slow
def test_gpt2_learns_as_a_language_model_and_its_tied_weights_stay_tied() -> None:
    pytest.importorskip("transformers")
    rows, _ = digits_lines()
    rows[:, 1:] = (rows[:, :1] + np.arange(1, 6)) % 20
    y = np.concatenate([rows[:, 1:], np.full((60, 1), -100)], 1)
    data = from_arrays(rows, y, tokens=True, classes=20)
    torch.manual_seed(0)
    module = gpt2(20, 6)
    done = run(replace(E, lr=0.1, tau_0=10, partition="iid"), data=data, model=module)
    assert torch.equal(done.model["lm_head.weight"], done.model["transformer.wte.weight"])
    module.load_state_dict(done.model, strict=True)
    losses = [float(r["test_loss"] or 0.0) for r in done.rounds]
    assert losses[-1] < losses[0]
    module.eval()
    test, labels = data.x_test, data.y_test
    scores = module(test).logits.detach()
    want = torch.stack([nn.functional.cross_entropy(s, t) for s, t in zip(scores, labels, strict=True)]).mean()
    assert losses[-1] == pytest.approx(float(want), abs=1e-5)


@pytest.mark.slow
def test_bert_with_lora_trains_its_adapters_alone() -> None:
    pytest.importorskip("peft")
    ragged = [row[: 3 + n % 4] for n, row in enumerate(digits_lines()[0])]
    tokens, mask = pad_sequences(ragged)
    y = np.array([int(row[0]) % 3 for row in ragged])
    data = from_arrays({"input_ids": tokens, "attention_mask": mask}, y)
    torch.manual_seed(0)
    module = adapt(bert(20, 3), "query", "value", head="classifier")
    before = {name: v.clone() for name, v in module.state_dict().items()}
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    done = run(E, data=data, model=module)
    changed = {name for name, v in done.model.items() if not torch.equal(v, before[name])}
    assert changed <= trained
    assert any("lora_B" in name for name in changed)
    module.load_state_dict(done.model, strict=True)
    size = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert done.rounds[0]["bytes_up"] == E.clients * (4 * size + 8)
    module.eval()
    width = tokens.shape[1]
    with torch.no_grad():
        scores = module(input_ids=data.x_test[:, :width], attention_mask=data.x_test[:, width:]).logits
        other = module(input_ids=data.x_test[:, :width]).logits
    want = float(nn.functional.cross_entropy(scores, data.y_test))
    assert done.rounds[-1]["test_loss"] == pytest.approx(want, abs=1e-5)
    assert not torch.allclose(scores, other)  # so the mask counts


# several inputs, places that do not count, weights


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(7, 4), nn.Linear(6, 3)

    def forward(self, ids: Tensor, extra: Tensor) -> Tensor:
        assert ids.dtype == torch.int64
        out: Tensor = self.fc(torch.cat([self.words(ids).mean(1), extra], 1))
        return out


@pytest.mark.parametrize("clients", [2, 8])  # 8 go through the module at once
def test_inputs_by_name_and_by_place_are_the_same(clients: int) -> None:
    rng = np.random.default_rng(1)
    ids, extra, y = rng.integers(0, 7, (64, 5)), rng.normal(size=(64, 2)), rng.integers(0, 3, 64)
    torch.manual_seed(0)
    module, e = Two(), replace(E, clients=clients, partition="shards")
    by_name = run(e, data=from_arrays({"extra": extra, "ids": ids}, y), model=module)
    by_place = run(e, data=from_arrays((ids, extra), y), model=module)
    assert distance(by_name.model, by_place.model) < 1e-6
    assert not torch.equal(by_name.model["words.weight"], module.words.weight)


def test_places_labelled_minus_100_do_not_count() -> None:
    scores = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([[1, -100, 2], [3, -100, -100]])
    want = [float(nn.functional.cross_entropy(scores[i], y[i])) for i in range(2)]
    assert cross_entropy(scores, y).tolist() == pytest.approx(want)
    best = scores.argmax(-1)
    right = [float((best[0, [0, 2]] == y[0, [0, 2]]).float().mean()), float(best[1, 0] == y[1, 0])]
    assert accuracy(scores, y).tolist() == pytest.approx(right)
    weights = WeightedCrossEntropy([1, 2, 3, 4])
    plain = nn.functional.cross_entropy(scores[0], y[0], torch.tensor([1.0, 2, 3, 4]), reduction="none")
    assert float(weights(scores, y)[0]) == pytest.approx(float(plain.sum() / 2))


@pytest.mark.parametrize("weights", [[], [1, -1], [1, float("nan")], ["a"], [None]])
def test_weights_of_classes_that_are_none(weights: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"^weights=\[.*\] are not numbers of 0 or more, one per class$"):
        WeightedCrossEntropy(weights)


def test_rows_are_padded_and_cut() -> None:
    rows, mask = pad_sequences([[5, 6, 7], [], [8]], length=2, value=-100)
    assert rows.tolist() == [[5, 6], [-100, -100], [8, -100]]
    assert mask.tolist() == [[1, 1], [0, 0], [1, 0]]
    with pytest.raises(ValueError, match="length=-1 is not a length; it is a whole number of 0 or more"):
        pad_sequences([[1]], length=-1)
    with pytest.raises(ValueError, match="row 1 is not a sequence of whole numbers, but"):
        pad_sequences([[1], [0.5]])


def test_labels_that_do_not_count_are_not_all_labels() -> None:
    with pytest.raises(ValueError, match="y holds no label but -100, which does not count"):
        from_arrays(np.zeros((4, 2)), np.full((4, 2), -100))


# what cannot be trained


class Counter(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, CLASSES)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        out: Tensor = self.fc(x.flatten(1))
        return out


class Drawing(nn.Module):
    """Draws as `draw` does, in training mode."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.fc, self.draw = nn.Linear(64, CLASSES), draw

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x.flatten(1))
        return out * (1 + self.draw()) if self.training else out


class Checkpointed(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(64, 16), nn.Dropout(p)), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(checkpoint(self.body, x.flatten(1), use_reentrant=False))
        return out


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


class Growing:
    """Another number at each call."""

    def __init__(self) -> None:
        self.n = 0.0

    def __call__(self) -> float:
        self.n += 1
        return self.n


REJECTED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "sync": (lambda: flat(nn.SyncBatchNorm(64), nn.Linear(64, 10)), {}, "has SyncBatchNorm .*use nn.BatchNorm2d$"),
    "momentum": (
        lambda: flat(nn.BatchNorm1d(64, momentum=None), nn.Linear(64, 10)),
        {},
        "1 has momentum=None, .*; give it a momentum such as 0.1$",
    ),
    "untracked": (
        lambda: flat(nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10)),
        {},
        r"1 has no running statistics \(track_.*=False\), .*; leave that argument out, or .*models.to_group_norm$",
    ),
    "float64": (lambda: flat(nn.Linear(64, 10)).double(), {}, r"1.weight is torch.float64; what is trained is float32"),
    "counter": (
        Counter,
        {},
        "training changes the buffer calls, which is torch.int64; .*norm_stats=fixed leaves it as it is$",
    ),
    "noise in evaluation": (
        lambda: flat(nn.Linear(64, 10), Noise()),
        {},
        "gives other scores each time in evaluation mode: .*; draw only where self.training is true$",
    ),
    "a buffer that changes in evaluation": (
        lambda: Steady(),
        {},
        "changes the buffer mean in evaluation mode too; change it only where self.training is true$",
    ),
    "python's random": (
        lambda: Drawing(random.random),
        {},
        "gives other scores each time in training mode, with the same seed: .*; draw with torch, .* in buffers$",
    ),
    "numpy's random": (lambda: Drawing(np.random.rand), {}, "gives other scores each time in training mode"),
    "hidden state": (lambda: Drawing(Growing()), {}, "gives other scores each time in training mode"),
    "checkpointed dropout": (
        lambda: Checkpointed(0.5),
        {},
        r"in the backward pass \(gradient checkpointing\), .*; turn off the checkpointing or the dropout$",
    ),
    "frozen": (
        lambda: flat(nn.Linear(64, 10)).requires_grad_(False),
        {},
        "has no parameters to train, which are all frozen",
    ),
    "lazy": (lambda: flat(nn.LazyLinear(10)), {}, "has lazy parameters; build it with the sizes"),
    "no scores": (
        lambda: Hidden(),
        {},
        "it returns dict; a model gives a tensor of scores, or an object with `logits`$",
    ),
    "one row": (lambda: normed(SHAPE, CLASSES), {"batch": 1}, "^batch=1 is too few for BatchNorm, .*; take 2 or more$"),
    "private": (
        lambda: normed(SHAPE, CLASSES),
        {"dp_noise": 1.0},
        "^dp_noise=1.0 does not cover running statistics: take norm_stats=fixed, or a model with GroupNorm$",
    ),
}


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"hidden": self.fc(x.flatten(1))}


class Steady(nn.Module):
    """Its scores do not show that its buffer changes."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, CLASSES)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean += x.flatten(1).mean(0)
        out: Tensor = self.fc(x.flatten(1))
        return out


@pytest.mark.parametrize("name", REJECTED)
def test_what_cannot_be_trained_is_rejected_with_what_to_do(name: str) -> None:
    kind, words, said = REJECTED[name]
    with pytest.raises(ValueError, match=said) as caught:
        build(replace(E, **words), model=factory(kind))
    assert "\n" not in str(caught.value)


def test_what_helps_against_a_rejection_helps() -> None:
    for kind, words in (
        (Counter, {"norm_stats": "fixed"}),
        (lambda: normed(SHAPE, CLASSES), {"norm_stats": "fixed", "batch": 1}),
        (lambda: Checkpointed(0.0), {}),
        (lambda: Drawing(lambda: float(torch.rand(()))), {}),
    ):
        assert run(replace(E, rounds=1, **words), model=factory(kind)).rounds  # type: ignore[arg-type]


def test_fixed_leaves_dropout_in_the_same_layer_on() -> None:
    """Only the layer that owns the buffer is in evaluation mode, not those below it."""

    class Holder(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.drop(x))

    problem = make(Holder(), norm_stats="fixed")
    assert problem.random
    x = torch.rand(2, 4, *SHAPE)
    w, y = problem.init().repeat(2, 1), torch.zeros(2, 4, dtype=torch.int64)
    seeds: Iterator[int] = iter((1, 2))
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    x[1] = x[0]
    g = problem.slope(w, x, y, generators=generators)
    assert not torch.allclose(g[0], g[1])


@pytest.mark.parametrize("norm_stats", ["average", "local"])
def test_parameters_and_statistics_may_be_used_from_copies(
    norm_stats: NormStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CUDA device those that do not start at a multiple of 16 bytes are."""
    e = replace(E, norm_stats=norm_stats)
    want = run(e, model=normed).model
    monkeypatch.setattr("fedveca.tasks.replica.is_aligned", lambda part: False)
    assert distance(run(e, model=normed).model, want) == 0
