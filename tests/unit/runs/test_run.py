"""A run: the folder it leaves, the model it keeps, who takes part, and what happens when numbers run away."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import require_number
from round_observers import EachStart
from safetensors.torch import load_file
from same_runs import same
from torch import Tensor

from fedveca.algorithms.contract import Order, Report
from fedveca.algorithms.registry import methods, paper_methods
from fedveca.cohorts import random as draws
from fedveca.cohorts.contract import Cohort
from fedveca.runs.build import build
from fedveca.runs.compare import compare, make_table
from fedveca.runs.evaluate import Evaluator, GrowthCheck
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import evaluate_loss, federate
from fedveca.runs.folder import Run
from fedveca.runs.run import NO_ANSWERS, NOTHING_LEARNED, resume, run
from fedveca.runs.schema import is_number
from fedveca.runs.setting_fields import Keep
from fedveca.runs.statistics import Spread, mean_and_spread
from fedveca.tasks.datasets.dataset import Dataset, load
from fedveca.views.figures.curves import draw_curves
from fedveca.views.terminal.screen import Screen

SMALL = Experiment(model="svm", rounds=4, batch=8, lr=0.05, tau_0=3)
WAVY = replace(SMALL, lr=0.03, rounds=9, probe=0)  # its loss goes up and down
CONDITIONS = {"premise", "condition_alpha", "condition_step", "condition_drift"}
FEDVECAS = {"beta", "delta", "A", "L", *CONDITIONS}  # from round 1 on
EVERY_ROUND = {
    "round",
    "ids",
    "left_out",
    "tau",
    "tau_k",
    "rows",
    "accepted",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "seconds",
    "bytes_up",
    "bytes_down",
}


def untimed(run: Run) -> list[dict[str, Any]]:
    return [{name: v for name, v in line.items() if name != "seconds"} for line in run.rounds]


def lines(folder: Path) -> list[str]:
    """The bytes of rounds.jsonl, times aside."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [json.dumps(line | {"seconds": 0}) for line in rounds]


def spoiled(bad: float, *clients: int) -> Dataset:
    """Digits whose rows of these clients of five, under Case 1, hold a bad number."""
    data = load("digits")
    x = data.x.clone()
    for i in clients:
        x[i::5, 0, 3, 3] = bad
    return replace(data, x=x)


# the folder


def test_a_run_leaves_its_folder(tmp_path: Path) -> None:
    done = run(SMALL, tmp_path / "a" / "b", device="cpu")
    folder = tmp_path / "a" / "b"
    assert done.folder == folder
    files = {path.name for path in folder.iterdir()}
    assert files - {"checkpoint.former.safetensors"} == {
        ".lock",
        "checkpoint.safetensors",
        "experiment.toml",
        "environment.json",
        "partition.json",
        "rounds.jsonl",
        "model.safetensors",
        "summary.json",
    }

    text = (folder / "rounds.jsonl").read_text()
    assert text.endswith("\n")
    rounds = [json.loads(line) for line in text.splitlines()]
    assert rounds == done.rounds
    assert [line["round"] for line in rounds] == [0, 1, 2, 3]
    assert [set(line) for line in rounds] == [EVERY_ROUND, *[EVERY_ROUND | FEDVECAS] * 3]
    for line in rounds:
        assert {len(v) for name, v in line.items() if isinstance(v, list) and name != "left_out"} == {5}
        assert line["tau_k"] == pytest.approx(sum(p * t for p, t in zip(shares(SMALL), line["tau"], strict=True)))
        assert 0 <= line["test_accuracy"] <= 1
        assert (line["bytes_down"], line["bytes_up"]) == (5 * (4 * 64 + 8), 5 * (2 * 4 * 64 + 8 * 4))
    for line in rounds[1:]:
        assert line["premise"] == pytest.approx(SMALL.lr * line["tau_k"] * line["L"])
        A = [SMALL.lr * b**2 * d for b, d in zip(line["beta"], line["delta"], strict=True)]
        assert line["A"] == pytest.approx(A)

    summary = json.loads((folder / "summary.json").read_text())
    assert summary == done.summary
    assert set(summary) == {"experiment", "tau_all", "rows", "seconds", "rounds", "last", "kept"}
    assert summary["experiment"] == asdict(SMALL)
    assert summary["tau_all"] == sum(sum(line["tau"]) for line in rounds)
    assert set(summary["last"]) == set(summary["kept"]) == {"round", "test_loss", "test_accuracy"}
    assert summary["last"] == {"round": 4} | {name: rounds[-1][name] for name in ("test_loss", "test_accuracy")}

    environment = json.loads((folder / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["device"] == "cpu"
    opened = Run.open(folder)
    assert (opened.experiment, opened.rounds, opened.summary) == (SMALL, rounds, summary)
    assert untimed(run(opened.experiment, device="cpu")) == untimed(done)  # enough to run it again


def shares(e: Experiment) -> list[float]:
    sizes = build(e).shares.sizes.double()
    return (sizes / sizes.sum()).tolist()


def test_the_other_methods_record_what_they_have() -> None:
    for name in paper_methods()[1:]:
        done = run(replace(SMALL, method=name, rounds=2), device="cpu")
        assert [set(line) for line in done.rounds] == [EVERY_ROUND] * 2, name


def test_the_model_in_the_folder_is_the_kept_one(tmp_path: Path) -> None:
    e = replace(SMALL, model="mlp", hidden=8)
    done = run(e, tmp_path / "run", device="cpu")
    stored, built = load_file(tmp_path / "run" / "model.safetensors"), build(e)
    assert stored.keys() == done.model.keys() == built.problem.shapes.keys()  # type: ignore[attr-defined]
    assert all(torch.equal(stored[name], v) for name, v in done.model.items())
    w = built.problem.flat([stored[name] for name in done.model])  # type: ignore[attr-defined]
    assert {"round": done.summary["kept"]["round"]} | Evaluator(built.problem, built.data, "cpu")(w) == done.summary[
        "kept"
    ]


def test_tests_may_be_rarer_than_rounds() -> None:
    done = run(replace(SMALL, rounds=5, test_every=2), device="cpu")
    assert [line["round"] for line in done.rounds if "test_loss" in line] == [1, 3, 4]
    assert len(done.column("test_accuracy")) == 3
    assert done.rounds[3]["test_loss"] == run(SMALL, device="cpu").rounds[3]["test_loss"]


# chance


@pytest.mark.parametrize("model", ["svm", "mlp"])
def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, model: str) -> None:
    e = replace(SMALL, model=model, participation=0.6)
    for name, seed, noise in (("a", 3, 1), ("b", 3, 2), ("c", 4, 1)):
        torch.manual_seed(noise)
        run(replace(e, seed=seed), tmp_path / name, device="cpu")
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert lines(tmp_path / "a") != lines(tmp_path / "c")


def test_participation_draws_the_same_clients_for_every_method() -> None:
    e = replace(SMALL, partition="iid", clients=9, participation=0.4, rounds=6, seed=2)
    drawn = [line["ids"] for line in run(e, device="cpu").rounds]
    assert [len(ids) for ids in drawn] == [4] * 6  # 3.6 of 9
    assert all(ids == sorted(set(ids)) for ids in drawn)
    assert len({tuple(ids) for ids in drawn}) > 1
    assert drawn == [draws.sample_clients(2, k, 9, 4).tolist() for k in range(6)]
    assert drawn == [line["ids"] for line in run(replace(e, method="fedavg", lr=0.1), device="cpu").rounds]
    assert drawn != [line["ids"] for line in run(replace(e, seed=3), device="cpu").rounds]
    assert [len(line["ids"]) for line in run(replace(e, participation=0.01), device="cpu").rounds] == [1] * 6


def test_absent_clients_keep_their_tau() -> None:
    e = replace(SMALL, partition="dirichlet", clients=8, participation=0.5, rounds=10)
    built = build(e)
    before, kept, moved = built.state.tau, 0, 0
    for state, record in federate(built.algorithm, built.cohort, built.state, e.rounds, participation=0.5, seed=e.seed):
        absent = ~torch.isin(torch.arange(8), torch.tensor(record["ids"]))
        assert torch.equal(state.tau[absent], before[absent])
        assert record["tau"] == before[record["ids"]].tolist()
        kept += int((state.tau[absent] != e.tau_0).sum())
        moved += int((state.tau != before).sum())
        before = state.tau
    assert kept > 0
    assert moved > 0


def test_centralised_is_fedavg_with_one_client() -> None:
    central = run(replace(SMALL, method="centralised", tau_all=40), device="cpu")
    alone = run(replace(SMALL, method="fedavg", partition="case1", clients=1, tau_all=40), device="cpu")
    assert untimed(central) == untimed(alone)
    assert central.summary["tau_all"] == 40
    assert central.rounds[0]["ids"] == [0]


# the kept model


def test_best_keeps_the_round_of_least_training_loss() -> None:
    built = build(WAVY)
    models = [built.state.w] + [s.w for s, _ in federate(built.algorithm, built.cohort, built.state, WAVY.rounds)]
    x = built.data.x
    F = [float(built.problem.losses(w, x, built.data.y)[0]) for w in models]  # F(w_k), k = 0 .. K
    best = min(range(len(F)), key=F.__getitem__)
    assert 0 < best < WAVY.rounds  # neither the first nor the last, or this shows nothing

    done = run(WAVY, device="cpu")
    assert done.column("train_loss") == pytest.approx(F[:-1], rel=1e-4)
    assert done.column("accepted") == [f <= min(F[: k + 1]) for k, f in enumerate(F[:-1])]
    assert done.summary["kept"]["round"] == best
    torch.testing.assert_close(done.model["w"], models[best])
    assert done.summary["kept"]["test_loss"] == done.rounds[best - 1]["test_loss"]
    assert done.summary["last"] != done.summary["kept"]


def test_the_last_model_can_be_the_best() -> None:
    e = replace(SMALL, partition="case1", lr=0.01)
    done = run(e, device="cpu")
    assert done.column("accepted") == [True] * 4
    assert done.summary["kept"] == done.summary["last"]
    assert done.summary["kept"]["round"] == 4


def test_last_keeps_the_last() -> None:
    done = run(replace(WAVY, keep="last"), device="cpu")
    assert done.summary["kept"] == done.summary["last"]
    assert done.summary["kept"]["round"] == WAVY.rounds
    assert done.column("accepted") == [True] * WAVY.rounds
    assert done.column("test_loss") == run(WAVY, device="cpu").column("test_loss")  # keeping does not touch training


def test_rollback_undoes_what_it_does_not_accept() -> None:
    done = run(replace(WAVY, keep="rollback"), device="cpu")
    accepted, loss = done.column("accepted"), done.column("test_loss")
    assert accepted[0]
    assert not all(accepted)
    for k in range(1, WAVY.rounds):
        assert (loss[k] == loss[k - 1]) != accepted[k]
    assert done.summary["kept"] == done.summary["last"]


# numbers that run away


@pytest.mark.parametrize("model", ["svm", "mlp"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_client_with_bad_numbers_is_left_out(bad: float, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    e = replace(SMALL, model=model, hidden=8, partition="case1", lr=0.01)
    done = run(e, device="cpu", data=spoiled(bad, 1, 3), observers=[Screen(quiet=True)])
    assert [line["left_out"] for line in done.rounds] == [[1, 3]] * 4
    assert [line["ids"] for line in done.rounds] == [[0, 2, 4]] * 4
    assert [len(line["tau"]) for line in done.rounds] == [3] * 4
    assert require_number(done.rounds[-1], "test_loss") < require_number(done.rounds[0], "test_loss")
    assert "stopped" not in done.summary
    assert all(bool(torch.isfinite(v).all()) for v in done.model.values())
    said = capsys.readouterr().err
    assert said.count("left out, not finite: client 1, 3") == 3
    assert said.endswith("; later rounds are not reported here\n")


@pytest.mark.parametrize("method", [name for name, entry in methods().items() if not entry.algorithm.has_loss])
def test_a_run_of_bad_clients_only_stops_and_says_so(method: str, tmp_path: Path) -> None:
    e = replace(SMALL, method=method, partition="case1", guard="off")
    done = run(e, tmp_path / "run", device="cpu", data=spoiled(math.nan, *range(5)))
    assert done.summary["stopped"].startswith("round 1: no client gave a finite loss and gradient")
    assert done.summary["kept"]["round"] == done.summary["last"]["round"] == done.summary["tau_all"] == 0
    assert Run.open(tmp_path / "run").rounds == []
    assert torch.equal(load_file(tmp_path / "run" / "model.safetensors")["w"], torch.zeros(64))


@pytest.mark.parametrize("keep", ["best", "last", "rollback"])
def test_a_run_that_runs_away_keeps_its_last_good_model(keep: Keep, tmp_path: Path) -> None:
    e = replace(SMALL, lr=1e4, rounds=20, keep=keep)
    done = run(e, tmp_path / "run", device="cpu")
    k = done.summary["rounds"]
    assert 0 < k < 20
    assert done.summary["stopped"].startswith(f"round {k + 1}: ")
    assert len(Run.open(tmp_path / "run").rounds) == k
    kept = load_file(tmp_path / "run" / "model.safetensors")["w"]
    assert bool(torch.isfinite(kept).all())
    assert is_number(done.summary["kept"]["test_loss"])
    if keep == "best":
        assert done.summary["kept"]["round"] == 0  # every later one is worse
    else:
        assert done.summary["kept"] == done.summary["last"]


# reading


def test_a_torn_last_line_is_no_line(tmp_path: Path) -> None:
    done = run(SMALL, tmp_path, device="cpu")
    (tmp_path / "summary.json").unlink()
    path = tmp_path / "rounds.jsonl"
    whole = path.read_bytes()
    for cut in (1, 7, len(whole.splitlines()[-1])):
        path.write_bytes(whole[:-cut])
        torn = Run.open(tmp_path)
        assert torn.rounds == done.rounds[:3]
        assert torn.summary == {}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("experiment.toml", None),
        ("experiment.toml", b"\xff\xfe"),
        ("experiment.toml", b"rounds = 0"),
        ("experiment.toml", b"what = 1"),
        ("rounds.jsonl", None),
        ("rounds.jsonl", b"{]\n"),
        ("rounds.jsonl", b"3\n"),
        ("rounds.jsonl", b"[" * 100_000 + b"\n"),
        ("summary.json", b""),
        ("summary.json", b"[]"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, file: str, content: bytes | None) -> None:
    (tmp_path / "experiment.toml").write_text(SMALL.toml())
    (tmp_path / "rounds.jsonl").write_text('{"round": 0}\n')
    assert Run.open(str(tmp_path)).rounds == [{"round": 0}]
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"^{tmp_path} is not a run folder: ."):
        Run.open(tmp_path)


@pytest.mark.parametrize("left", ["experiment.toml", "rounds.jsonl"])
def test_a_folder_with_a_run_is_not_written(tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_text("mine")
    for start in (lambda: run(SMALL, tmp_path), lambda: compare(SMALL, 1, tmp_path)):
        with pytest.raises(ValueError, match="already holds a run; name another folder"):
            start()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(left, "mine")]


# comparing


def test_compare_is_fair_and_does_not_repeat_itself(tmp_path: Path) -> None:
    e = replace(SMALL, rounds=6, tau_0=5, seed=7)
    runs = compare(e, 2, tmp_path, device="cpu")
    assert [(r.experiment.method, r.experiment.seed) for r in runs] == [(m, s) for s in (7, 8) for m in paper_methods()]
    sizes = build(e).shares.sizes.tolist()
    for r in runs:
        total = next(v.summary["tau_all"] for v in runs if v.experiment.seed == r.experiment.seed)
        if r.experiment.method == "fedveca":
            assert r.experiment == replace(e, seed=r.experiment.seed)
            continue
        assert r.experiment.tau_all == total
        own = [sum(sizes)] if r.experiment.method == "centralised" else sizes
        fair = [max(1, int(total / 6 * d / sum(sizes))) for d in own]
        assert [line["tau"] for line in r.rounds] == [fair] * 6
        assert r.summary["tau_all"] == 6 * sum(fair) <= total

    rows = json.loads((tmp_path / "table.json").read_text())
    assert rows == make_table(runs)
    assert [row["method"] for row in rows] == list(paper_methods())
    for row in rows:
        mine = [r for r in runs if r.experiment.method == row["method"]]
        assert set(row) == {"method", "seeds", "tau_all", "rows", "last", "kept"}
        assert row["seeds"] == [7, 8]
        assert row["tau_all"] == sum(r.summary["tau_all"] for r in mine) / 2
        for which in ("last", "kept"):
            for name in ("test_loss", "test_accuracy"):
                values = [require_number(r.summary[which], name) for r in mine]
                a, b = values
                assert row[which][name]["values"] == values
                assert row[which][name]["mean"] == pytest.approx((a + b) / 2)
                assert row[which][name]["std"] == pytest.approx(abs(a - b) / 2**0.5)

    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.parent != tmp_path}

    def started(e: Experiment) -> None:
        pytest.fail(f"{e.method} seed {e.seed} ran again")

    again = compare(e, 2, tmp_path, device="cpu", observers=[EachStart(started)])
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert make_table(again) == rows

    with pytest.raises(ValueError, match="fedveca-seed7 holds a run with other settings; name another folder"):
        compare(replace(e, lr=0.1), 2, tmp_path, device="cpu")
    moved = compare(replace(e, data_dir="elsewhere"), 2, tmp_path, device="cpu", observers=[EachStart(started)])
    assert make_table(moved) == rows  # where the data lie decides nothing


@pytest.mark.parametrize("left", [("experiment.toml", "environment.json", "rounds.jsonl"), ("experiment.toml",), ()])
def test_half_a_run_is_made_again(tmp_path: Path, left: tuple[str, ...]) -> None:
    e = replace(SMALL, rounds=6, tau_0=5)
    whole = compare(e, 1, tmp_path, methods=("fedveca", "fedavg"), device="cpu")
    for path in (tmp_path / "fedavg-seed0").iterdir():
        if path.name not in left:
            path.unlink()
    ran: list[str] = []
    seen = EachStart(lambda e: ran.append(e.method))
    again = compare(e, 1, tmp_path, methods=("fedveca", "fedavg"), device="cpu", observers=[seen])
    assert ran == ["fedavg"]
    assert make_table(again) == make_table(whole)


def test_seeds_beyond_the_last_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seed=2147483648 is out of range"):
        compare(replace(SMALL, seed=2**31 - 1), 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_mean_and_spread_of_the_values_that_there_are() -> None:
    assert mean_and_spread([1.0, 2.0, 3.0]) == Spread(2.0, 1.0, 3)
    assert mean_and_spread([4.0]) == Spread(4.0, 0.0, 1)
    assert mean_and_spread([4.0, None]) == Spread(4.0, 0.0, 1)
    assert mean_and_spread([None]) == Spread(None, 0.0, 0)


@pytest.mark.slow
def test_a_figure_is_the_same_bytes_for_the_same_runs(tmp_path: Path) -> None:
    e = replace(SMALL, rounds=8, partition="case1")
    runs = [run(replace(e, method=m, seed=s), device="cpu") for m in ("fedveca", "centralised") for s in (0, 1)]
    stopped = run(replace(e, method="fedavg"), device="cpu", data=spoiled(math.nan, *range(5)))
    for name in ("a.svg", "b.svg", "a.png"):
        draw_curves([*runs, stopped], tmp_path / name, "two methods")
    draw_curves([stopped], tmp_path / "nothing.svg", "nothing to draw")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "a.svg").read_text()
    assert all(word in text for word in ("FedVeca", "centralised", "two methods", "test accuracy (%)"))


def test_the_closing_loss_counts_clients_by_their_rows() -> None:
    """F(w) = sum p_i F_i(w), with p_i = D_i / D: it decides whether the kept or the last model is handed out."""
    built = build(Experiment(model="svm", clients=4, partition="quantity", concentration=0.5, batch=8, lr=0.05))
    state = built.state._replace(w=torch.linspace(-1, 1, len(built.state.w)))
    ids = torch.arange(4)
    _, report = built.cohort(0, built.algorithm.order(state), ids, torch.zeros_like(ids))
    losses, sizes = report.each["loss"], built.cohort.sizes.double()
    assert float(losses.mean()) != pytest.approx(float(losses @ sizes / sizes.sum()), rel=1e-4)
    assert evaluate_loss(built.cohort, built.algorithm.order(state), 0, ids) == pytest.approx(
        float(losses @ sizes / sizes.sum())
    )


# runs that go wrong without an end


def test_a_loss_that_grows_is_reported_in_the_record_the_summary_and_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The SVM on digits with lr=1: the loss of round 2 is far above that of round 1, and so is that of round 3."""
    e = replace(SMALL, method="fedavg", partition="iid", lr=1.0, rounds=6)
    done = run(e, tmp_path / "run", device="cpu")
    losses = [require_number(record, "train_loss") for record in done.rounds]
    assert losses[1] > 10 * losses[0] < losses[2] / 10
    said = done.rounds[2].get("warning", "")
    assert said.startswith(f"round 3: the loss is {losses[2] / losses[0]:.3g} times that of the first round; ")
    assert said.endswith(("a smaller lr usually helps, or guard=on", "a smaller lr may help"))
    assert [record.get("warning") for record in done.rounds[:3]] == [None, None, said]
    assert "warning" not in {name for record in done.rounds[3:] for name in record}
    assert done.summary["warnings"] == [said, NOTHING_LEARNED]
    assert caplog.messages == [f"fedavg seed 0: {said}", f"fedavg seed 0: {NOTHING_LEARNED}"]
    run(replace(e, rounds=2), tmp_path / "part", device="cpu")
    resume(tmp_path / "part", rounds=6, device="cpu")
    same(tmp_path / "run", tmp_path / "part")


def test_a_loss_that_is_above_for_one_round_is_not_news() -> None:
    rounds: list[Any] = [{"round": k, "train_loss": v} for k, v in enumerate([1.0, 50.0, 1.0, None, 11.0])]
    check = GrowthCheck([])
    for record in rounds:
        check.judge(record)
    assert [record.get("warning") for record in rounds[:4]] == [None] * 4
    assert (
        rounds[4]["warning"]
        == "round 5: the loss is 11 times that of the first round; a smaller lr usually helps, or guard=on"
    )
    again: list[Any] = [{"round": 5, "train_loss": 90.0}]
    GrowthCheck(rounds).judge(again[0])  # resumed: it was said
    assert "warning" not in again[0]


def test_a_run_that_learned_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    done = run(replace(SMALL, lr=500.0, rounds=2), device="cpu")
    assert done.summary["kept"]["round"] == 0
    assert done.summary["warnings"] == [NOTHING_LEARNED]
    assert caplog.messages == [f"fedveca seed 0: {NOTHING_LEARNED}"]
    assert "warnings" not in run(SMALL, device="cpu").summary


def test_a_run_in_which_no_client_answered_says_so(caplog: pytest.LogCaptureFixture) -> None:
    done = run(replace(SMALL, faults="drop:1", rounds=2), device="cpu")
    assert done.summary["warnings"] == [NO_ANSWERS]
    assert caplog.messages[-1] == f"fedveca seed 0: {NO_ANSWERS}"


@pytest.mark.parametrize(("lr", "rounds", "kept"), [(1.0, 4, 4), (1.0, 3, 0), (500.0, 3, 3)])
def test_a_run_that_the_guard_returned_to_its_start_has_learned_nothing(lr: float, rounds: int, kept: int) -> None:
    """In the last round, at the end, or in every round, since nothing was finite."""
    e = Experiment(
        method="fedavg", model="svm", batch=8, clients=6, partition="dirichlet", guard="on", lr=lr, rounds=rounds
    )
    done, start = run(e, device="cpu"), build(e, "cpu").state.w
    assert torch.equal(torch.cat([v.flatten() for v in done.model.values()]), start)
    assert done.summary["kept"]["round"] == kept
    assert done.summary["warnings"][-1] == NOTHING_LEARNED


def test_a_run_that_diverged_says_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    done = run(replace(SMALL, method="fedavg", lr=1e30, rounds=3), device="cpu")
    assert caplog.messages[-1] == f"fedavg seed 0 stopped: {done.summary['stopped']}"


def test_seconds_add_up_over_the_parts_of_a_run(tmp_path: Path) -> None:
    first = run(replace(SMALL, rounds=2), tmp_path / "run", device="cpu").summary["seconds"]
    summary = tmp_path / "run" / "summary.json"
    summary.write_text(summary.read_text().replace(f'"seconds": {first}', '"seconds": 1000.5'))
    assert resume(tmp_path / "run", rounds=3, device="cpu").summary["seconds"] > 1000.5
    summary.unlink()  # as after a kill: the rounds are known
    lines = tmp_path / "run" / "rounds.jsonl"
    rounds = [json.loads(line) | {"seconds": 50.0} for line in lines.read_text().splitlines()]
    lines.write_text("".join(json.dumps(record) + "\n" for record in rounds))
    assert 150 < resume(tmp_path / "run", rounds=4, device="cpu").summary["seconds"] < 1000


def test_recorded_steps_are_those_that_were_taken() -> None:
    """A cohort that cuts a client short: the record, the total and the method see its own number."""

    class Cut:
        def __init__(self, cohort: Cohort) -> None:
            self.cohort, self.sizes, self.weights, self.memory = cohort, cohort.sizes, cohort.weights, cohort.memory
            self.weights, self.evaluate = cohort.weights, cohort.evaluate

        def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
            return self.cohort(k, order, ids, tau.clamp(max=11))

    e = Experiment(model="svm", method="fednova", rounds=2, batch=8, tau_0=20)
    parts, short = build(e), build(replace(e, tau_0=11))
    cut: Cohort = Cut(parts.cohort)
    done = run(e, data=parts.data, cohort=cut, device="cpu")
    assert [record["tau"] for record in done.rounds] == [[11] * 5] * 2
    assert [record["tau_k"] for record in done.rounds] == [11.0] * 2
    assert done.summary["tau_all"] == 2 * 5 * 11
    *_, (state, _) = federate(short.algorithm, short.cohort, short.state, 2)
    *_, (cut_state, _) = federate(parts.algorithm, cut, parts.state, 2)
    assert torch.equal(cut_state.w, state.w)
