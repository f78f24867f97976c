"""epochs: local steps counted from each client's rows, fixed or drawn per client and round, and what compare does."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedveca import Experiment
from fedveca.algorithms import FedNova
from fedveca.cohorts.random import draw_epochs
from fedveca.runs.build import build
from fedveca.runs.compare import compare
from fedveca.runs.epoch_settings import EpochSetting, parse_epochs
from fedveca.runs.federate import federate
from fedveca.runs.folder import Run
from fedveca.runs.local_steps import MOST_STEPS, initial_steps, make_step_rule
from fedveca.runs.observers import Observer
from fedveca.runs.run import resume, run
from fedveca.runs.schema import Round
from fedveca.views.terminal.lines import describe_start

SIZES = torch.tensor([1, 30, 64, 65, 1000])
E = Experiment(method="fedavg", partition="quantity", clients=4, rounds=3, batch=32, model="svm", lr=0.01)


# the text


def test_the_three_forms() -> None:
    assert parse_epochs("") is None
    assert parse_epochs("2") == EpochSetting(Fraction(2), Fraction(2))
    assert parse_epochs("0.5") == (Fraction(1, 2), Fraction(1, 2))
    assert parse_epochs("2..5") == (2, 5)
    assert [bool(parse_epochs(text).random) for text in ("2", "0.5", "3..3", "2..5")] == [False, False, False, True]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("two", "epochs=two is not a number such as 2 or 0.5, or a range such as 2..5"),
        ("-1", "epochs=-1 is not a number"),
        ("1e3", "epochs=1e3 is not a number"),
        ("2..", r"epochs=2.. is not a number"),
        ("²", "epochs=² is not a number"),
        ("0", "epochs=0 is out of range; allowed: more than 0, at most 10000$"),
        ("0..3", "epochs=0..3 is out of range"),
        ("10001", "epochs=10001 is out of range"),
        ("5..2", "epochs=5..2 is not a range of whole numbers, the smaller one first, such as 2..5$"),
        ("0.5..2", "epochs=0.5..2 is not a range of whole numbers"),
    ],
)
def test_other_text_is_rejected(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        Experiment(epochs=text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"epochs": "2", "tau_all": 400}, "epochs=2 cannot go with tau_all=400: both set the local steps$"),
        ({"epochs": "2..5", "dp_noise": 1.0}, "epochs=2..5 cannot go with dp_noise: random numbers of steps show who"),
        (
            {"epochs": "2..5", "method": "fedveca"},
            r"epochs=2\.\.5 cannot go with method=fedveca, which chooses its local steps itself",
        ),
        ({"epochs": "10000", "batch": 1, "method": "centralised"}, ""),
    ],
)
def test_what_epochs_cannot_go_with(settings: dict[str, Any], why: str) -> None:
    if not why:
        build(replace(E, **settings))
        return
    with pytest.raises(ValueError, match=why):
        build(replace(E, **settings))


# the numbers of steps


@pytest.mark.parametrize(
    ("epochs", "steps"),
    [
        ("1", [1, 1, 2, 3, 32]),  # ceil(D_i / 32), at least 1
        ("2", [1, 2, 4, 5, 63]),
        ("0.5", [1, 1, 1, 2, 16]),
        ("0.01", [1, 1, 1, 1, 1]),
        ("2..5", [1, 5, 10, 11, 157]),  # of the most epochs
    ],
)
def test_steps_by_hand(epochs: str, steps: list[int]) -> None:
    """max(1, ceil(E D_i / B)) with B = 32."""
    assert initial_steps(replace(E, epochs=epochs), SIZES).tolist() == steps
    assert initial_steps(replace(E, epochs=epochs), torch.tensor([0])).tolist() == [1]


def test_a_decimal_is_exact() -> None:
    """0.7 * 10 is more than 7 in binary; ten rows in batches of one are seven steps all the same."""
    assert 0.7 * 10 == 7.0
    assert 0.07 * 100 > 7
    assert initial_steps(replace(E, epochs="0.07", batch=1), torch.tensor([100])).tolist() == [7]


def test_too_many_steps_are_rejected() -> None:
    e = replace(E, epochs="10000", batch=1)
    assert initial_steps(e, torch.tensor([10**4])).tolist() == [MOST_STEPS]
    with pytest.raises(
        ValueError, match="epochs=10000 gives a client 100010000 local steps per round; at most 1000000"
    ):
        initial_steps(e, torch.tensor([10**4 + 1]))


def test_an_adaptive_method_starts_from_epochs_and_goes_its_own_way() -> None:
    e = replace(E, method="fedveca", epochs="1", rounds=4)
    done = run(e, device="cpu")
    sizes = build(e).shares.sizes
    assert done.rounds[0]["tau"] == done.rounds[1]["tau"] == (-(-sizes // 32)).tolist()  # A is known after two rounds
    assert done.rounds[-1]["tau"] != done.rounds[0]["tau"]


def test_fixed_methods_take_their_epochs_in_every_round() -> None:
    for method in ("fedavg", "centralised"):
        e = replace(E, method=method, epochs="2")
        done, sizes = run(e, device="cpu"), build(e).shares.sizes
        steps = (-(-2 * sizes // 32)).tolist()
        assert [line["tau"] for line in done.rounds] == [steps] * 3
        assert done.summary["tau_all"] == 3 * sum(steps)


# random numbers of epochs


def test_random_epochs_are_uniform_and_a_pure_function_of_seed_round_and_client() -> None:
    ids = torch.arange(4000)
    drawn = draw_epochs(3, 7, ids, 2, 5)
    counts = torch.bincount(drawn)
    assert len(counts) == 6
    assert counts[:2].tolist() == [0, 0]
    assert float(((counts[2:].double() - 1000) ** 2 / 1000).sum()) < 18  # chi-squared, 3 degrees: 1 in 2,000
    assert torch.equal(draw_epochs(3, 7, ids[40:41], 2, 5), drawn[40:41])
    for other in (draw_epochs(4, 7, ids, 2, 5), draw_epochs(3, 8, ids, 2, 5)):
        assert 0.7 < float((other != drawn).double().mean()) < 0.8


def test_the_rule_gives_the_steps_of_the_drawn_epochs() -> None:
    rule = make_step_rule(replace(E, epochs="2..5", seed=3), SIZES)
    assert rule is not None
    ids = torch.tensor([0, 2, 4])
    for k in range(5):
        drawn = draw_epochs(3, k, ids, 2, 5)
        want = [max(1, -(-int(n) * size // 32)) for n, size in zip(drawn, SIZES[ids].tolist(), strict=True)]
        assert rule(k, ids).tolist() == want
    assert make_step_rule(replace(E, epochs="2"), SIZES) is None
    assert make_step_rule(E, SIZES) is None


class Spy:
    """A cohort that records the steps that it is asked for."""

    def __init__(self, cohort: Any) -> None:
        self.cohort, self.sizes, self.memory, self.asked = cohort, cohort.sizes, cohort.memory, list[list[int]]()
        self.weights = cohort.weights

    def __call__(self, k: int, order: Any, ids: Tensor, tau: Tensor) -> Any:
        self.asked.append(tau.tolist())
        return self.cohort(k, order, ids, tau)

    def evaluate(self, *words: Any) -> Any:
        return self.cohort.evaluate(*words)


def test_what_is_recorded_is_what_was_taken() -> None:
    built = build(replace(E, method="fednova", epochs="2..5", participation=0.75, seed=1))
    spy, e = Spy(built.cohort), built.experiment
    assert isinstance(built.algorithm, FedNova)
    words: Any = {"participation": 0.75, "seed": 1, "steps": built.steps}
    records = [record for _, record in federate(built.algorithm, spy, built.state, 3, **words)]
    assert [record["tau"] for record in records] == spy.asked
    assert len({tuple(tau) for tau in spy.asked}) > 1
    assert built.steps is not None
    for k, record in enumerate(records):
        ids = torch.tensor(record["ids"])
        assert record["tau"] == built.steps(k, ids).tolist()
        p = built.shares.sizes[ids].double() / built.shares.sizes[ids].sum()
        assert record["tau_k"] == pytest.approx(float(p @ torch.tensor(record["tau"]).double()))
    done = run(e, device="cpu")
    assert [record["tau"] for record in done.rounds] == spy.asked
    assert done.summary["tau_all"] == sum(map(sum, spy.asked))


def test_faults_leave_the_steps_of_the_others() -> None:
    done = run(replace(E, epochs="2..5", faults="drop:0.5", rounds=6), device="cpu")
    rule = build(replace(E, epochs="2..5")).steps
    assert rule is not None
    assert any(record["left_out"] for record in done.rounds)
    for record in done.rounds:
        assert record["tau"] == rule(record["round"], torch.tensor(record["ids"], dtype=torch.int64)).tolist()


class Stop(Observer):
    """Ends a run after its second round."""

    def round(self, record: Round) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("words", [{"epochs": "2..5"}, {"epochs": "1.5"}, {"epochs": "1", "method": "fedveca"}])
def test_a_resumed_run_is_the_same_in_every_byte(words: dict[str, str], tmp_path: Path) -> None:
    e = replace(E, rounds=4, sampling="shuffle", **words)  # type: ignore[arg-type]
    run(e, tmp_path / "whole", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        run(e, tmp_path / "cut", observers=[Stop()], device="cpu")
    resume(tmp_path / "cut", device="cpu")
    for name in ("model.safetensors", "rounds.jsonl"):
        whole, cut = ((tmp_path / folder / name).read_bytes() for folder in ("whole", "cut"))
        if name == "rounds.jsonl":
            whole, cut = (json.dumps(strip(text)).encode() for text in (whole, cut))
        assert whole == cut


def strip(lines: bytes) -> list[dict[str, Any]]:
    """Records without the time that they took."""
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines.splitlines()]


# what is shown, and what compare does


def test_the_opening_lines_say_how_many_steps_it_is(tmp_path: Path) -> None:
    sizes = build(E).shares.sizes
    low, high = int(sizes.min()), int(sizes.max())
    for epochs, method, said in (
        ("2..5", "fedavg", f"epochs 2..5 ({-(-2 * low // 32)} to {-(-5 * high // 32)} local steps per client)"),
        ("1", "fedveca", f"epochs 1 at the start ({-(-low // 32)} to {-(-high // 32)} local steps per client)"),
    ):
        e = replace(E, epochs=epochs, method=method, rounds=1)
        done = run(e, tmp_path / method, device="cpu")
        assert said in describe_start(e, "CPU", folder=done.folder)[0]
        assert done.environment["steps"] == [int(n) for n in said.split("(")[1].split(" local")[0].split(" to ")]
    assert "epochs 2," in describe_start(replace(E, epochs="2"), "CPU")[0]
    assert "epochs" not in describe_start(E, "CPU")[0]


def test_compare_leaves_epochs_to_the_methods_with_fixed_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fedveca")
    e = replace(E, method="fedveca", epochs="1")
    fedveca, fedavg = compare(e, 1, tmp_path, methods=("fedveca", "fedavg"), device="cpu")
    steps = (-(-build(e).shares.sizes // 32)).tolist()
    assert (fedavg.experiment.tau_all, fedavg.experiment.epochs) == (0, "1")
    assert [line["tau"] for line in fedavg.rounds] == [steps] * 3
    assert fedveca.rounds[0]["tau"] == steps
    said = "epochs=1 sets the local steps of the methods with fixed steps; the total of fedveca is not theirs"
    assert said in caplog.messages
    again = compare(e, 1, tmp_path, methods=("fedveca", "fedavg"), device="cpu")
    assert [r.summary["seconds"] for r in again] == [fedveca.summary["seconds"], fedavg.summary["seconds"]]
    with pytest.raises(ValueError, match=r"epochs=2\.\.5 cannot go with method=fedveca"):
        compare(replace(e, method="fedavg", epochs="2..5"), 1, tmp_path / "no", methods=("fedavg", "fedveca"))
    assert not (tmp_path / "no").exists()
    rivals = compare(replace(E, epochs="2..3"), 1, tmp_path / "both", methods=("fedavg", "fednova"), device="cpu")
    assert [line["tau"] for line in rivals[0].rounds] == [line["tau"] for line in rivals[1].rounds]


def test_a_folder_without_epochs_opens(tmp_path: Path) -> None:
    run(replace(E, rounds=1), tmp_path / "old", device="cpu")
    path = tmp_path / "old" / "experiment.toml"
    new = ("epochs", "sampling", "augment")
    lines = [line for line in path.read_text().splitlines(keepends=True) if line.split(" = ")[0] not in new]
    path.write_text("".join(lines))
    found = Run.open(tmp_path / "old").experiment
    assert (found.epochs, found.sampling, found.augment) == ("", "random", "")
