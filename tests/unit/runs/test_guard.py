"""The guard: what counts as trouble, what is taken back, and that a run without trouble is the run without a guard."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import require_number
from same_runs import lines, same
from torch import Tensor

from fedveca.algorithms import FedAvg, FedVecaM, Named, Report
from fedveca.algorithms.contract import ServerState
from fedveca.algorithms.contrib.fedacg import FedACG
from fedveca.algorithms.optimizers import ServerOptimizer
from fedveca.algorithms.recipe import Recipe
from fedveca.algorithms.registry import methods
from fedveca.cohorts.client_memory import NodeLedger
from fedveca.runs.build import build
from fedveca.runs.checkpoint import load_checkpoint, make_guard
from fedveca.runs.client_evaluation import ModelEvaluator
from fedveca.runs.evaluate import Keeper
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import evaluate_loss
from fedveca.runs.folder import Run
from fedveca.runs.folder_writer import LAST
from fedveca.runs.guard import CALM, IDLE, MOST_FAILURES, GuardNumbers, TrainingGuard, is_guarded, restore_numbers
from fedveca.runs.interrupt import Stopped
from fedveca.runs.run import resume, run
from fedveca.runs.schema import Round

# The SVM on digits: at this rate the loss of the second model is thousands of times that of the first.
WILD = Experiment(method="scaffold", model="svm", rounds=16, batch=8, lr=0.5, clients=6, partition="dirichlet", tau_0=8)
OVERSHOOTS = replace(WILD, method="corrected", lr=0.1)  # its loss falls, and rises only then
BUFFERED = {"devices": "phones", "schedule": "buffered", "buffer": 2, "keep": "last"}
ZERO = torch.zeros(2)


def play(guard: TrainingGuard, losses: list[float]) -> list[str]:
    return [guard.judge(k, torch.full((2,), float(k)), loss) for k, loss in enumerate(losses)]


def run_quietly(e: Experiment, **more: Any) -> Run:
    return run(e, device="cpu", **more)


def drop_seconds(record: Round) -> dict[str, object]:
    return {name: v for name, v in record.items() if name != "seconds"}


# the rules, by hand


def test_overshoot_is_left_alone() -> None:
    """Above the start for two rounds, or less than half of the gain lost for many: nothing happens."""
    guard = TrainingGuard(ZERO, torch.ones(1))
    assert play(guard, [2.0, 3.0, 4.0, 1.0, 1.4, 1.5, 1.5, 1.5, 0.9]) == [""] * 9
    assert (guard.numbers.lowest, guard.numbers.best_round, guard.best.tolist()) == (0.9, 8, [8, 8])


def test_three_rounds_in_a_row_are_trouble() -> None:
    guard = TrainingGuard(ZERO, torch.ones(1))
    said = play(guard, [2.0, 1.0, 1.6, 1.6, 1.7])
    assert said[:4] == [""] * 4
    assert said[4] == "the training loss was 1.7, for 3 rounds far above the lowest (1)"
    assert guard.shorten() == "back to the model after round 1, with server steps of 0.5 times their length"
    assert guard.best.tolist() == [1, 1]


@pytest.mark.parametrize("loss", [20.1, math.inf, math.nan])
def test_ten_times_the_start_is_trouble_at_once(loss: float) -> None:
    guard = TrainingGuard(ZERO, torch.ones(1))
    assert play(guard, [2.0, loss])[1].startswith(f"the training loss was {loss:.4g}, more than 10 times that of the")
    assert guard.shorten().startswith("back to the initial model, ")


def test_the_step_grows_again_after_a_time_that_doubles() -> None:
    guard = TrainingGuard(ZERO, torch.ones(1))
    play(guard, [2.0])
    guard.shorten()
    scales = []
    for _ in range(3 * CALM):
        guard.judge(1, ZERO, 1.0)
        scales.append(guard.scale)
    assert scales == pytest.approx([0.5] * (CALM - 1) + [0.5**0.5] * CALM + [1.0] * (CALM + 1))
    guard.shorten()
    for _ in range(2 * CALM - 1):
        guard.judge(1, ZERO, 1.0)
    assert guard.scale == 0.5
    guard.judge(1, ZERO, 1.0)
    assert guard.scale == pytest.approx(0.5**0.5)


GUESS = math.log(10)


def test_a_model_that_guesses_is_not_the_best_one_and_many_in_a_row_are_trouble() -> None:
    """The loss of the start was higher, so without the rule this looks like progress."""
    guard = TrainingGuard(ZERO, torch.ones(1), guess=GUESS)
    said = play(guard, [7.0, GUESS * 1.2, *[GUESS * 0.991, GUESS * 1.3] * 7, GUESS, GUESS])
    assert said[:-1] == [""] * 17  # the third line is lower than all before it, and those behind it are counted
    assert said[-1] == f"for {IDLE} rounds the training loss was that of a guess (2.303) or more"
    assert (guard.best.tolist(), guard.numbers.lowest) == ([0, 0], 7.0)
    assert guard.shorten().startswith("back to the initial model, ")
    assert (guard.numbers.idle, guard.numbers.floor) == (0, math.inf)


def test_a_model_that_learned_before_is_where_a_run_goes_back_to() -> None:
    guard = TrainingGuard(ZERO, torch.ones(1), guess=GUESS)
    said = play(guard, [17.0, 2.3, 2.0, *[2.4] * IDLE])
    assert said[-2:] == ["", f"for {IDLE} rounds the training loss was that of a guess (2.303) or more"]
    assert (guard.best.tolist(), guard.numbers.lowest) == ([2, 2], 2.0)


@pytest.mark.parametrize(
    "losses",
    [
        [7.0, 2.3, *[2.3] * (IDLE - 1), 2.2, *[2.3] * (IDLE - 1)],  # it learns in between
        [7.0, *[2.27] * 30],  # more than a hundredth below
        [17 * 0.98**k for k in range(60)],  # slowly, but it falls
        [2.35, *[2.3] * 30],  # it starts there: many models do
    ],
)
def test_runs_that_learn_are_left_alone(losses: list[float]) -> None:
    assert set(play(TrainingGuard(ZERO, torch.ones(1), guess=GUESS), losses)) == {""}


def test_where_no_guess_is_known_nothing_of_this_happens() -> None:
    assert set(play(TrainingGuard(ZERO, torch.ones(1)), [7.0, *[2.3] * 30])) == {""}


@pytest.mark.parametrize("loss", [70.1, math.inf, math.nan])
def test_divergence_before_anything_was_learned_is_trouble_at_once(loss: float) -> None:
    guard = TrainingGuard(ZERO, torch.ones(1), guess=GUESS)
    assert play(guard, [7.0, 2.3, loss])[-1].startswith(f"the training loss was {loss:.4g}, more than 10 times")
    assert guard.best.tolist() == [0, 0]


def test_a_network_that_has_died_is_brought_back() -> None:
    """A real one: with this rate all units of the first layers die in the first round, and it guesses ever after."""
    e = Experiment(model="cnn", method="fedvecam", lr=0.5, batch=32, tau_0=10, rounds=60, seed=401, test_every=60)
    done = run_quietly(e)
    assert sum("that of a guess" in record.get("guarded", "") for record in done.rounds) >= 1
    assert (require_number(done.summary["last"], "test_accuracy")) > 0.8


def test_the_loss_of_a_guess_is_that_of_cross_entropy() -> None:
    def smooth(scores: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(scores, y, label_smoothing=0.1, reduction="none")

    e = Experiment(model="mlp", clients=2, batch=8, guard="on")
    guards = [make_guard(build(e)), make_guard(build(e.replace(model="svm"))), make_guard(build(e, loss=smooth))]
    found = [guard.guess for guard in guards if guard]
    assert found == pytest.approx([math.log(10), math.nan, math.nan], nan_ok=True)


def test_numbers_come_back_from_a_checkpoint() -> None:
    numbers = GuardNumbers(2.0, 0.5, 3, 1, 2, 4, 0, 0.25, 7, 0.4)
    assert restore_numbers(torch.tensor(numbers, dtype=torch.float64)) == numbers
    for wrong in (numbers._replace(scale=0.0), numbers._replace(scale=1.5), numbers._replace(returns=-1)):
        assert restore_numbers(torch.tensor(wrong, dtype=torch.float64)) is None


def test_a_shorter_step_by_hand() -> None:
    state = ServerState(torch.tensor([1.0, 1.0]), torch.tensor([3]))
    after = state._replace(w=torch.tensor([3.0, -1.0]))
    assert FedAvg(0.1).shorten(state, after, 0.25).w.tolist() == [1.5, 0.5]
    acg = FedACG(0.1)
    before = acg.init(torch.zeros(2), torch.tensor([3]))
    short = acg.shorten(before, before._replace(w=torch.ones(2), m=torch.ones(2)), 0.5)
    assert (short.w.tolist(), short.m.tolist()) == ([0.5, 0.5], [0.5, 0.5])  # the next round starts ahead by as much
    recipe = Recipe(acg, server=ServerOptimizer("momentum"))
    first = recipe.init(torch.zeros(2), torch.tensor([3]))
    moved = first._replace(w=torch.ones(2), m=torch.ones(2), server_first=torch.ones(2))
    named = recipe.shorten(first, moved, 0.5)._asdict()
    halves = [0.5, 0.5]
    assert [named[name].tolist() for name in ("w", "m", "server_first")] == [halves, halves, [1, 1]]


# guard=auto


@pytest.mark.parametrize("name", [*methods(), "custom:FedVecaM(lr=0.1)", "custom:Mine(lr=0.1)"])
def test_auto_guards_the_methods_that_declare_it(name: str) -> None:
    e = replace(Experiment(), method=name)
    assert e.guard == "auto"
    assert is_guarded(e) == (name in ("fedvecam", "custom:FedVecaM(lr=0.1)"))
    assert [is_guarded(replace(e, guard=guard)) for guard in ("on", "off")] == [True, False]


@pytest.mark.parametrize(
    "settings", [pytest.param({"dp_noise": 1.0}, marks=pytest.mark.slow), {"keep": "rollback"}, BUFFERED]
)
def test_auto_is_off_where_on_would_be_rejected(settings: dict[str, Any]) -> None:
    e = Experiment(method="fedvecam", model="svm", clients=3, batch=8, rounds=2, lr=0.01, **settings)
    assert not is_guarded(e)
    done = run_quietly(e)
    assert (len(done.rounds), "guarded" in done.summary) == (2, False)
    assert make_guard(build(e)) is None


def test_auto_is_on_and_off_in_runs_as_the_settings_say() -> None:
    """Only the word in the settings differs."""
    wild = replace(WILD, method="fedvecam")
    runs = {guard: run_quietly(replace(wild, guard=guard)) for guard in ("auto", "on", "off")}
    rounds = {guard: [drop_seconds(record) for record in done.rounds] for guard, done in runs.items()}
    assert rounds["auto"] == rounds["on"] != rounds["off"]
    assert runs["auto"].summary["guarded"] > 0
    assert "guarded" not in runs["off"].summary
    scaffold = [drop_seconds(record) for record in run_quietly(WILD).rounds]
    assert scaffold == [drop_seconds(record) for record in run_quietly(replace(WILD, guard="off")).rounds]


def test_an_object_of_a_guarded_class_is_guarded() -> None:
    e = replace(WILD, rounds=2)
    done = run_quietly(e, method=FedVecaM(e.lr), data=build(e).data)
    assert done.experiment.method.startswith("custom:FedVecaM(")
    assert "guarded" in done.summary


@pytest.mark.parametrize("method", ["scaffold", "fedvecam"])
def test_a_folder_whose_settings_lack_the_guard_opens_and_continues(method: str, tmp_path: Path) -> None:
    """It was written before there was a guard, or by hand."""
    e = replace(WILD, method=method, lr=0.02)
    run(replace(e, rounds=4), tmp_path / "whole", device="cpu")
    run(replace(e, rounds=2), tmp_path / "old", device="cpu")
    written = tmp_path / "old" / "experiment.toml"
    lines_of_settings = written.read_text("utf-8").splitlines(keepends=True)
    assert [line for line in lines_of_settings if line.startswith("guard")] == ['guard = "auto"\n']
    written.write_text("".join(line for line in lines_of_settings if not line.startswith("guard")), "utf-8")
    assert Run.open(tmp_path / "old").experiment == replace(e, rounds=2)
    resume(tmp_path / "old", rounds=4, device="cpu")
    same(tmp_path / "whole", tmp_path / "old")


# runs


def test_until_the_first_trouble_a_guarded_run_is_the_run_without_it() -> None:
    off, on = run_quietly(OVERSHOOTS), run_quietly(replace(OVERSHOOTS, guard="on"))
    back = [k for k, record in enumerate(on.rounds) if "guarded" in record]
    assert back[0] > 3
    before = [[drop_seconds(record) for record in done.rounds[: back[0]]] for done in (off, on)]
    assert before[0] == before[1]
    calm = replace(WILD, lr=0.02, rounds=6)
    assert run_quietly(calm).model["w"].equal(run_quietly(replace(calm, guard="on")).model["w"])


def test_a_run_that_diverges_ends_at_its_best_model_with_the_guard() -> None:
    off, on = run_quietly(WILD), run_quietly(replace(WILD, guard="on"))
    assert require_number(off.rounds[-1], "train_loss") > 10 * require_number(off.rounds[0], "train_loss")
    losses = [require_number(record, "test_loss") for record in on.rounds]
    last = on.summary["last"]["test_loss"]
    assert last is not None
    assert last < losses[0]
    assert last <= 1.5 * min(losses)
    returns, ended = sum("guarded" in record for record in on.rounds), on.summary["last"]["round"] < 16
    assert on.summary["guarded"] == returns + ended > 0
    assert "guarded" not in off.summary
    first = next(record for record in on.rounds if "guarded" in record)
    assert first["accepted"] is False
    shorter = [record["step_scale"] for record in on.rounds if "step_scale" in record]
    assert shorter
    assert max(shorter) <= 1


def test_going_back_starts_the_method_anew_at_the_best_model() -> None:
    """SCAFFOLD's c and every client's c_i are zero again, so that c is still the mean of the c_i."""
    e = replace(WILD, guard="on")
    built = build(e)
    done = run_quietly(e, cohort=built.cohort, data=built.data)
    back = next(k for k, record in enumerate(done.rounds) if "guarded" in record)
    built = build(e)
    run_quietly(replace(e, rounds=back + 1), cohort=built.cohort, data=built.data)
    assert len(built.cohort.memory) == 0  # type: ignore[arg-type]
    run_quietly(replace(e, rounds=back), cohort=(before := build(e)).cohort, data=before.data)
    assert len(before.cohort.memory) == 6  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"keep": "last", "checkpoint_every": 2},
        {"participation": 0.5},
        pytest.param({"participation": 0.5, "keep": "last"}, marks=pytest.mark.slow),
        pytest.param({"method": "corrected", "lr": 0.1}, marks=pytest.mark.slow),
        pytest.param({"method": "fedveca"}, marks=pytest.mark.slow),
        pytest.param({"method": "fedacg"}, marks=pytest.mark.slow),
        {"method": "fedvecam", "guard": "auto"},
        pytest.param({"method": "fedvecam", "guard": "auto", "participation": 0.5}, marks=pytest.mark.slow),
        pytest.param({"method": "fedadam", "server_lr": 1.0}, marks=pytest.mark.slow),
        pytest.param({"memory_mb": 0}, marks=pytest.mark.slow),
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_a_guarded_run_resumes_with_the_same_bytes(settings: dict[str, Any], tmp_path: Path) -> None:
    e = replace(WILD, **({"guard": "on"} | settings))
    whole = run(e, tmp_path / "whole", device="cpu")
    back = [k for k, record in enumerate(whole.rounds) if "guarded" in record]
    assert back, "nothing went wrong"
    for stop_after in sorted({back[0], back[0] + 1, min(back[0] + 3, e.rounds - 1)}):
        folder = tmp_path / f"stopped{stop_after}"
        asked = iter(range(1, e.rounds))
        with pytest.raises(Stopped):
            run(e, folder, device="cpu", stop=lambda asked=asked, at=stop_after: next(asked) == at)  # type: ignore[misc]
        resume(folder, device="cpu")
        same(tmp_path / "whole", folder)
        assert Run.open(folder).summary["guarded"] == whole.summary["guarded"]


@pytest.mark.parametrize("settings", [{}, {"participation": 0.5}, {"method": "corrected", "lr": 0.1}])
def test_the_debug_engine_is_guarded_alike(settings: dict[str, Any], tmp_path: Path) -> None:
    e = replace(WILD, guard="on", probe=0, **settings)
    local, debug = run_quietly(e), run_quietly(replace(e, engine="debug"))
    told = [[record.get("guarded", "").split(",")[0] for record in done.rounds] for done in (local, debug)]
    assert told[0] == told[1]
    assert any(told[0])


def test_losses_of_different_clients_are_not_compared() -> None:
    """With few clients per round, all models are judged on the same ones, and each of them once."""
    e = Experiment(
        method="fedavg", model="svm", clients=20, partition="labels", labels_per_client=1, participation=0.1, lr=0.02,
        batch=8, rounds=15, tau_0=3, guard="on",
    )  # fmt: skip
    built = build(e)
    asked = list[list[int]]()
    call = type(built.cohort).__call__

    class Watched(type(built.cohort)):  # type: ignore[misc]
        def __call__(self, k: int, order: Any, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
            if int(tau.max()) == 0:
                asked.append(ids.tolist())
            return call(self, k, order, ids, tau)

    built.cohort.__class__ = Watched
    run_quietly(e, cohort=built.cohort, data=built.data)
    assert len(asked) == e.rounds + 1  # every model once, although keep=best and the guard both ask
    assert all(ids == asked[0] for ids in asked)


@dataclass(frozen=True)
class Explodes(FedAvg):
    """The averaged model is never finite."""

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        after, seen = super().update(state, ids, p, report)
        return after._replace(w=after.w * torch.nan), seen


def test_rounds_without_a_finite_model_are_counted_and_bounded() -> None:
    e = Experiment(model="svm", rounds=40, batch=8, clients=3, guard="on")
    data = build(e).data
    done = run_quietly(e, method=Explodes(0.05), data=data)
    assert len(done.rounds) == MOST_FAILURES
    assert all("the averaged model is not finite" in record["guarded"] for record in done.rounds)
    assert (
        done.summary["stopped"]
        == f"round {MOST_FAILURES + 1}: the averaged model is not finite; a smaller lr usually helps"
    )
    assert done.summary["guarded"] == MOST_FAILURES
    assert all(math.isfinite(float(v.sum())) for v in done.model.values())


def test_the_last_model_is_the_best_one_where_the_run_ends_in_trouble() -> None:
    e = replace(OVERSHOOTS, guard="on", keep="last")
    done = run_quietly(e)
    back = next(k for k, record in enumerate(done.rounds) if "guarded" in record)
    cut = run_quietly(replace(e, rounds=back - 1))  # the trouble has begun, and the guard still waits
    best = cut.summary["last"]["round"]
    assert best < back - 1
    assert cut.summary["guarded"] == 1
    assert cut.summary["warnings"][-1].endswith(f"so the model after round {best} takes its place")
    assert cut.summary["kept"] == cut.summary["last"]
    assert cut.summary["last"]["test_loss"] == cut.rounds[best - 1]["test_loss"]


def test_an_earlier_model_replaces_the_last_one_only_where_its_own_loss_is_lower() -> None:
    guard = TrainingGuard(torch.tensor([1.0, 2.0]), torch.ones(1))
    guard.numbers = GuardNumbers(start=2.0, lowest=0.5, best_round=3)  # as clients reported it
    keeper = Keeper("last", ServerState(ZERO, torch.ones(1)), round=9, guard=guard)
    for own in (1.0, 1.2):
        assert keeper.end_at_best(1.0, lambda own=own: own) == ""  # type: ignore[misc]
    assert (keeper.round, keeper.model.tolist()) == (9, [0, 0])
    assert keeper.end_at_best(1.0, lambda: 0.9).endswith("so the model after round 3 takes its place")
    assert (keeper.round, keeper.model.tolist()) == (3, [1, 2])


def test_at_the_end_models_are_evaluated_themselves_and_not_where_a_momentum_leads() -> None:
    built = build(Experiment(method="fedvecam", rounds=2, clients=3, batch=8))
    guard, evaluator = make_guard(built), ModelEvaluator(built, "cpu")
    assert guard
    guard.best = built.state.w + 0.1
    state = built.state._replace(k=torch.tensor(5), m=torch.ones_like(built.state.w), z=built.state.w + 0.3)
    keeper = Keeper("best", state, round=1, guard=guard)

    def find(model: Tensor) -> float:
        order = built.algorithm.order(built.state)._replace(w=model)
        return evaluate_loss(built.cohort, order, 1, torch.arange(3))

    assert evaluator.find_last_loss(keeper) == find(state.w)
    assert evaluator.find_best_loss(keeper) == find(guard.best)
    assert len({find(model) for model in (state.w, guard.best, state.z, built.algorithm.order(state).w)}) == 4


def test_running_statistics_go_back_with_the_model() -> None:
    from fedveca.runs.federate import RunningStatistics, _go_back

    algorithm, built = FedAvg(0.1), build(Experiment(model="svm", clients=2, batch=8))
    guard = TrainingGuard(torch.tensor([1.0, 2.0, 7.0]), torch.tensor([4, 4]))
    statistics = RunningStatistics(torch.tensor([9.0]))
    state = _go_back(algorithm, built.cohort, guard, ServerState(torch.zeros(2), torch.tensor([1, 1])), statistics)
    assert (state.w.tolist(), state.tau.tolist(), statistics.now.tolist()) == ([1, 2], [4, 4], [7])


def test_nodes_start_anew_after_going_back() -> None:
    ledger = NodeLedger(3)
    ledger.rounds[:] = torch.tensor([4, -1, 2])
    ledger.forget()
    assert ledger.rounds.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"keep": "rollback"}, "guard=on cannot go with keep=rollback: both undo rounds; take keep=best or last"),
        ({"dp_noise": 1.0}, "guard=on cannot go with dp_noise: the noise of the loss would look like trouble"),
        ({"guard": "yes"}, "guard=yes is not known"),
    ],
)
def test_what_cannot_be_guarded_is_rejected(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Experiment(**({"guard": "on"} | settings))


def test_a_method_whose_step_cannot_be_shortened_is_rejected() -> None:
    with pytest.raises(ValueError, match="guard=on cannot go with method=scaffnew, whose clients take the server's"):
        build(Experiment(method="scaffnew", guard="on"))


def test_a_checkpoint_with_wrong_numbers_is_rejected(tmp_path: Path) -> None:
    from safetensors.torch import load

    from fedveca.runs.checkpoint import identify_run, seal

    e = replace(WILD, guard="on", rounds=2)
    run(e, tmp_path / "run", device="cpu")
    built, path = build(e), tmp_path / "run" / LAST
    named = load(path.read_bytes())
    named["guard.numbers"][GuardNumbers._fields.index("scale")] = 7.0
    path.write_bytes(seal(named, identify_run(built)))
    with pytest.raises(ValueError, match=r"does not fit this run: guard\.numbers"):
        load_checkpoint(tmp_path / "run", built, "cpu")
    assert lines(tmp_path / "run")
