"""Runs that end before their last round: target, patience, stop; and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from same_runs import SMALL, same

from fedveca import Experiment, Observer, Run, compare, metric, resume, run
from fedveca.errors import UserError
from fedveca.runs.compare import find_budget
from fedveca.runs.early_stopping import EarlyStopping
from fedveca.runs.schema import Round, get_number

E = Experiment(**(SMALL | {"rounds": 12}))


def record(k: int, **values: float | None) -> Round:
    return {"round": k, "ids": [], "left_out": [], "tau": [], **values}  # type: ignore[typeddict-item]


def untimed(rounds: list[Round]) -> list[dict[str, object]]:
    return [{name: v for name, v in line.items() if name != "seconds"} for line in rounds]


def find_end(e: Experiment, better: str | None, *values: Mapping[str, float | None]) -> tuple[int, str]:
    early = EarlyStopping(e, "accuracy" if better is None else "mine", better)  # type: ignore[arg-type]
    for k, each in enumerate(values):
        if early.judge(record(k, **each)):
            return k + 1, early.ended
    return 0, early.ended


def test_the_target_is_reached_by_the_direction_of_the_metric() -> None:
    values = [{"test_accuracy": v, "test_mine": v} for v in (0.5, 0.7, 0.9)]
    assert find_end(replace(E, target=0.7), None, *values) == (2, "target")
    assert find_end(replace(E, target=0.91), None, *values) == (0, "")
    assert find_end(replace(E, target=0.6), "lower", *values) == (1, "target")
    assert find_end(replace(E, target=0.7), None, {"test_accuracy": None}, {}) == (0, "")
    with pytest.raises(UserError, match=r"target=0\.7 needs a metric that states .* mine does not"):
        EarlyStopping(replace(E, target=0.7), "mine", None)
    EarlyStopping(replace(E, patience=2), "mine", None)


@pytest.mark.parametrize("target", [90.0, 1.01, -1.0])
def test_a_target_that_a_share_cannot_reach_is_rejected(target: float) -> None:
    e = replace(E, target=target)
    said = rf"target={target:g} is out of range; allowed for accuracy: \(0, 1\], where 0\.9 means 90 %"
    with pytest.raises(UserError, match=said):
        EarlyStopping(e, "accuracy", None)
    with pytest.raises(UserError, match="allowed for mine"):
        EarlyStopping(e, "mine", "higher", unit="share")
    EarlyStopping(e, "mine", "higher")  # a number that is not a share
    EarlyStopping(replace(E, target=1.0), "accuracy", None)
    resumed = EarlyStopping(e, "accuracy", None, [record(0, test_accuracy=0.5)])  # of an older version
    assert resumed.ended == ("target" if target < 0 else "")


def test_patience_counts_rounds_since_the_lowest_loss() -> None:
    losses = [{"train_loss": v} for v in (3.0, 2.0, 2.5, 2.0, 1.9, None, 2.0, 1.9)]
    assert find_end(replace(E, patience=3), None, *losses) == (8, "patience")
    assert find_end(replace(E, patience=2), None, *losses) == (4, "patience")
    assert find_end(replace(E, patience=4), None, *losses) == (0, "")
    assert find_end(replace(E, patience=2, target=0.5), None, *losses[:3], {"test_accuracy": 0.6}) == (4, "target")


def test_with_validation_rows_they_decide_and_never_test_rows() -> None:
    e = replace(E, val=0.2, target=0.8, patience=2)
    chosen = [
        {"val_loss": v, "val_accuracy": 0.5, "test_accuracy": 0.99, "train_loss": -k}
        for k, v in enumerate((3, 2, 2, 3))
    ]
    assert find_end(e, None, *chosen) == (4, "patience")
    assert find_end(e, None, {"val_loss": 1.0, "val_accuracy": 0.8}) == (1, "target")


def test_a_run_ends_at_its_target_with_everything_that_a_run_has(tmp_path: Path) -> None:
    whole = run(E, device="cpu")
    target = whole.rounds[4]["test_accuracy"]
    assert target is not None
    first = next(k for k, r in enumerate(whole.rounds) if (r["test_accuracy"] or 0) >= target)
    done = run(replace(E, target=target), tmp_path / "run", device="cpu")
    assert (done.ended, done.summary["ended"], done.summary["rounds"]) == ("target", "target", first + 1)
    assert untimed(done.rounds) == untimed(whole.rounds[: first + 1])
    assert done.summary["last"]["round"] == first + 1
    opened = Run.open(tmp_path / "run")
    assert opened.ended == "target"
    assert opened.model.keys() == whole.model.keys()
    for more in (0, 50):
        with pytest.raises(
            UserError, match=rf"is finished: it ended after round {first + 1} of 12, because its target"
        ):
            resume(tmp_path / "run", device="cpu", rounds=more)


def test_patience_ends_a_run_with_a_tested_round(tmp_path: Path) -> None:
    e = replace(E, rounds=40, lr=0.5, patience=2, test_every=7, keep="last", method="fedavg")
    done = run(e, tmp_path / "run", device="cpu")
    assert done.ended == "patience"
    assert len(done.rounds) < 40
    assert "test_loss" in done.rounds[-1]
    losses = [get_number(r, "train_loss") or 0.0 for r in done.rounds]
    assert min(losses[:-2]) <= min(losses[-2:])


@pytest.mark.parametrize("target", [0.0, 0.5])
def test_an_ended_run_that_was_killed_before_its_summary_is_completed(tmp_path: Path, target: float) -> None:
    e = replace(E, rounds=40, lr=0.5, patience=2, test_every=7, target=target)
    run(e, tmp_path / "whole", device="cpu")
    run(e, tmp_path / "killed", device="cpu")
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / "killed" / name).unlink()
    resume(tmp_path / "killed", device="cpu")
    same(tmp_path / "whole", tmp_path / "killed")


def test_a_stopped_run_ends_in_the_same_round_after_it_is_resumed(tmp_path: Path) -> None:
    e = replace(E, rounds=40, lr=0.5, patience=3)
    whole = run(e, tmp_path / "whole", device="cpu")
    asked = iter(range(40))
    with pytest.raises(KeyboardInterrupt):
        run(e, tmp_path / "run", device="cpu", stop=lambda: next(asked) == len(whole.rounds) - 3)
    resume(tmp_path / "run", device="cpu")
    same(tmp_path / "whole", tmp_path / "run")


def test_in_memory_a_run_that_is_asked_to_stop_is_returned() -> None:
    class Asks(Observer):
        def round(self, record: Round) -> None:
            seen.append(record["round"])

    seen: list[int] = []
    done = run(E, device="cpu", observers=[Asks()], stop=lambda: len(seen) == 3)
    assert seen == [0, 1, 2]
    assert (done.ended, done.summary["rounds"], len(done.rounds)) == ("stop", 3, 3)
    assert done.summary["last"]["round"] == 3
    assert done.model
    assert untimed(done.rounds) == untimed(run(replace(E, rounds=3), device="cpu").rounds)
    assert run(replace(E, rounds=2), device="cpu", stop=lambda: False).ended is None


def test_a_metric_without_a_direction_has_no_target(tmp_path: Path) -> None:
    def mine(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scores.argmax(-1).eq(y).float()

    e = replace(E, model="mlp", hidden=4, rounds=2)
    with pytest.raises(UserError, match=r"target=0\.5 needs a metric"):
        run(replace(e, target=0.5), tmp_path / "run", device="cpu", metric=mine)
    assert not (tmp_path / "run").exists()
    stated = metric("higher")(mine)
    assert run(replace(e, target=0.05), device="cpu", metric=stated).ended == "target"


def test_rivals_of_a_run_that_ended_early_get_the_steps_of_all_its_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    e = replace(E, target=0.3)
    caplog.set_level("INFO", "fedveca.runs.compare")
    runs = compare(e, 1, tmp_path / "all", methods=("fedveca", "fedavg"), device="cpu")
    first, second = runs
    assert first.ended == "target"
    pace = first.summary["tau_all"] / len(first.rounds)
    assert find_budget(first) == round(pace * e.rounds) == second.experiment.tau_all
    said = f"fedveca seed 0 ended after {len(first.rounds)} of {e.rounds} rounds; its rivals get "
    said += f"{second.experiment.tau_all} local steps in all, its pace times {e.rounds}"
    assert said in caplog.messages
    table = json.loads((tmp_path / "all" / "table.json").read_text("utf-8"))
    assert [row["tau_all"] for row in table] == [r.summary["tau_all"] for r in runs]
