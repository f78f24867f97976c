"""Adversity by design: each fault happens, is named, repeats with the seed, and leaves the absent as they were."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedveca.algorithms import Scaffold
from fedveca.algorithms.registry import methods
from fedveca.cli import main
from fedveca.cohorts import random as draws
from fedveca.cohorts.client_memory import ClientMemory
from fedveca.cohorts.fault_settings import ATTACKS, FAULT_FORMS, parse_faults
from fedveca.cohorts.faults import Faults
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import federate
from fedveca.runs.folder import Run
from fedveca.runs.run import resume, run
from fedveca.runs.schema import Round

SMALL: dict[str, Any] = {"model": "svm", "rounds": 6, "batch": 8, "clients": 10, "partition": "case1", "lr": 0.05}


def rounds_of(**settings: Any) -> list[Round]:
    return run(Experiment(**(SMALL | settings)), device="cpu").rounds


def untimed(run: Run) -> list[dict[str, Any]]:
    return [{name: v for name, v in line.items() if name != "seconds"} for line in run.rounds]


@pytest.mark.parametrize("kind", ["drop", "late"])
def test_clients_are_away_with_the_given_chance(kind: str) -> None:
    faults, ids = Faults(f"{kind}:0.3", 50, 7), torch.arange(50)
    away = [set(faults.find_absent(k, ids)) for k in range(200)]
    assert 0.28 < sum(map(len, away)) / 10_000 < 0.32
    assert all(2 < sum(i in day for day in away) < 120 for i in range(50))  # by chance, not by person
    assert away == [set(Faults(f"{kind}:0.3", 50, 7).find_absent(k, ids)) for k in range(200)]
    assert away != [set(Faults(f"{kind}:0.3", 50, 8).find_absent(k, ids)) for k in range(200)]
    assert [i in away[3] for i in (4, 11, 40)] == [
        i in faults.find_absent(3, torch.tensor([4, 11, 40])) for i in (4, 11, 40)
    ]


@pytest.mark.slow
def test_a_crash_lasts_its_rounds() -> None:
    faults, ids = Faults("crash:0.05:4", 30, 1), torch.arange(30)
    away = [[i in faults.find_absent(k, ids) for i in range(30)] for k in range(100)]
    for i in range(30):
        days = "".join("x" if away[k][i] else "." for k in range(100)).strip("x")
        stays = [len(stay) for stay in re.findall("x+", days)]
        assert all(n >= 4 for n in stays)
    assert sum(map(sum, away)) > 300  # 1 - 0.95^4 = 18.5 % of 3000


def test_kinds_of_absence_do_not_move_together() -> None:
    ids = torch.arange(2000)
    a, b = (draws.draw_uniform(purpose, 0, 0, ids) for purpose in (1, 2))
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.06


def test_bad_clients_are_a_fixed_share_chosen_by_the_seed() -> None:
    bad = Faults("nan:0.1,scale:0.2:5,flip:0.2,lie:0.1", 20, 3).attackers
    assert sorted(bad.values()) == ["flip"] * 4 + ["lie"] * 2 + ["nan"] * 2 + ["scale"] * 4
    assert bad == Faults("nan:0.1,scale:0.2:5,flip:0.2,lie:0.1", 20, 3).attackers
    assert bad.keys() != Faults("nan:0.1,scale:0.2:5,flip:0.2,lie:0.1", 20, 4).attackers.keys()


def test_what_bad_clients_send() -> None:
    faults, ids = Faults("nan:0.25,scale:0.25:5,flip:0.25,lie:0.25", 4, 0), torch.arange(4)
    vectors, numbers = faults.send(0, ids, {"G": torch.ones(4, 3)}, {"beta": torch.full((4,), 2.0)})
    for i, kind in faults.attackers.items():
        factor = {"nan": torch.nan, "scale": 5.0, "flip": -1.0, "lie": 1.0}[kind]
        assert torch.equal(vectors["G"][i].nan_to_num(9), torch.full((3,), factor).nan_to_num(9))
        assert float(numbers["beta"][i]) == (0.0 if kind == "lie" else 2.0)


def takes(method: str) -> bool:
    """Whether a method goes with the closed-form SVM and with a part of the clients."""
    algorithm = methods()[method].algorithm
    return method != "centralised" and not algorithm.has_loss and not algorithm.needs_everyone


@pytest.mark.parametrize("method", [m for m in methods() if takes(m)])
def test_the_record_names_what_happened(method: str) -> None:
    lines = rounds_of(method=method, faults="drop:0.2,crash:0.1:2,late:0.2,nan:0.1,flip:0.2", participation=0.8)
    kinds = set()
    for line in lines:
        assert all(fault.keys() == {"client", "what"} for fault in line["faults"])
        what = {fault["client"]: fault["what"] for fault in line["faults"]}
        kinds |= set(what.values())
        assert set(line["left_out"]) == {i for i, kind in what.items() if kind != "flip"}
        assert set(line["ids"]) | set(line["left_out"]) >= set(what)
        assert len(line["ids"]) + len(line["left_out"]) == 8
    assert kinds == {"drop", "crash", "late", "nan", "flip"}
    assert all("faults" not in line for line in rounds_of(method=method))


def memory_of(cohort: Any, i: int) -> Tensor:
    return cohort.memory.recall(torch.tensor([i]))["c"][0].clone()


def test_the_absent_keep_their_memory() -> None:
    """SCAFFOLD's c_i moves only for those who answered, and c stays their weighted sum."""
    built = build(Experiment(**(SMALL | {"method": "scaffold", "faults": "drop:0.4"})))
    memory, state, away = built.cohort.memory, built.state, False
    assert isinstance(memory, ClientMemory)
    for k in range(5):
        before = {i: memory_of(built.cohort, i) for i in memory}
        who, report = built.cohort(k, built.algorithm.order(state), torch.arange(10), state.tau)
        p = built.cohort.sizes[who].double() / built.cohort.sizes[who].sum()
        state = built.algorithm.update(state, who, p, report)[0]
        for i in set(before):
            assert torch.equal(before[i], memory_of(built.cohort, i)) == (i not in who.tolist())
            away |= i not in who.tolist()
    assert away
    assert isinstance(built.algorithm, Scaffold)
    share = built.cohort.sizes.double() / built.cohort.sizes.sum()
    known = torch.stack([memory_of(built.cohort, i) * share[i] for i in memory]).sum(0)
    assert torch.allclose(state.c, known.float(), atol=1e-6)


def test_the_absent_keep_their_tau() -> None:
    built = build(Experiment(**(SMALL | {"partition": "shards", "faults": "drop:0.4"})))
    tau, kept = built.state.tau, 0
    for state, trace in federate(built.algorithm, built.cohort, built.state, 10):
        assert torch.equal(state.tau[trace["left_out"]], tau[trace["left_out"]])
        kept += int((tau[trace["left_out"]] != state.tau[trace["ids"]].max()).sum())
        tau = state.tau
    assert kept


def test_the_mean_is_over_those_who_answered() -> None:
    e = Experiment(**(SMALL | {"method": "fedavg", "faults": "drop:0.5,nan:0.2", "partition": "quantity"}))
    troubled, whole = build(e), build(Experiment(**(SMALL | {"method": "fedavg", "partition": "quantity"})))
    order, ids = whole.algorithm.order(whole.state), torch.arange(10)
    who, report = troubled.cohort(0, order, ids, whole.state.tau)
    want_who, want = whole.cohort(0, order, who, whole.state.tau[who])
    assert 0 < len(who) < 9
    assert who.tolist() == want_who.tolist()
    assert torch.allclose(report.mean["G"], want.mean["G"], atol=1e-6)
    assert report.mass == want.mass


def test_a_round_without_an_answer_changes_nothing() -> None:
    done = run(Experiment(**(SMALL | {"clients": 2, "faults": "drop:0.7", "rounds": 12})), device="cpu")
    empty = [k for k, line in enumerate(done.rounds) if not line["ids"]]
    assert empty
    assert len(done.rounds) == 12
    for k in (k for k in empty if k):
        assert done.rounds[k]["test_loss"] == done.rounds[k - 1]["test_loss"]
        assert not done.rounds[k]["accepted"]
        assert len(done.rounds[k]["faults"]) == 2
    for keep in ("last", "rollback"):
        assert len(rounds_of(clients=2, faults="drop:0.7", keep=keep)) == 6


def test_a_run_that_diverges_still_says_so() -> None:
    done = run(Experiment(**(SMALL | {"lr": 1e30, "faults": "drop:0.1"})), device="cpu")
    assert "lr" in done.summary["stopped"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedveca", "faults": "drop:0.3,crash:0.1:3,late:0.1,nan:0.1,flip:0.1,lie:0.1", "aggregate": "clip"},
        {"method": "scaffold", "participation": 0.5, "faults": "drop:0.3,scale:0.2:4", "aggregate": "median"},
        {"method": "fedveca", "keep": "rollback", "clients": 2, "faults": "drop:0.6"},
        {"method": "fedveca", "dp_noise": 0.5, "faults": "drop:0.2"},
        {"method": "scaffold", "dp_noise": 0.5, "participation": 0.5, "keep": "last"},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_resumed_equals_uninterrupted(settings: dict[str, Any], tmp_path: Path) -> None:
    e = Experiment(**(SMALL | settings))
    whole = run(e, device="cpu")
    run(Experiment(**(SMALL | settings | {"rounds": 3})), tmp_path / "half", device="cpu")
    again = resume(tmp_path / "half", rounds=6, device="cpu")
    assert untimed(again) == untimed(whole)
    assert all(torch.equal(v, whole.model[name]) for name, v in again.model.items())
    assert again.summary["kept"] == whole.summary["kept"]
    assert Run.open(tmp_path / "half").rounds == again.rounds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("crahs:0.1:2", "'crahs' is not known (did you mean crash?); allowed: drop:P | crash:P:ROUNDS | "),
        ("drop", "'drop' is not of the form drop:P"),
        ("drop:1.5", "'drop:1.5' is not drop:P with a share in [0, 1]"),
        ("drop:nan", "'drop:nan' is not drop:P with a share in [0, 1]"),
        ("drop:0.1:2", "'drop:0.1:2' is not of the form drop:P"),
        ("scale:0.1", "'scale:0.1' is not of the form scale:SHARE:FACTOR"),
        ("scale:0.1:inf", "a factor is a finite number, not inf"),
        ("crash:0.1:0", "a crash lasts a whole number of rounds, 1 or more, not 0"),
        ("crash:0.1:1.5", "a crash lasts a whole number of rounds, 1 or more, not 1.5"),
        ("drop:0.1,drop:0.2", "drop stands there twice"),
        ("flip:0.6,nan:0.6", "the shares of nan, scale, flip, lie add up to 1.2; at most 1"),
        (",", "'' is not known; allowed: "),
    ],
)
def test_refused(text: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", f"faults={text}", "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err.startswith(f"fedveca: faults={text}: {said}")
    assert not (tmp_path / "x").exists()


def test_too_few_clients_for_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "faults=nan:0.1,scale:0.1:2,flip:0.1,lie:0.1", "clients=3"]) == 2
    assert "3 clients are too few for so many kinds" in capsys.readouterr().err


def test_every_kind_has_a_form_and_spaces_do_not_matter() -> None:
    assert set(ATTACKS) < set(FAULT_FORMS)
    assert parse_faults("drop:0.1, flip:0.2") == parse_faults("drop:0.1,flip:0.2")
    assert parse_faults("") == {}


def test_the_screen_tells_faults_from_numbers_that_ran_away(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["model=svm", "batch=8", "clients=10", "partition=case1", "rounds=3", "faults=drop:0.3,flip:0.2"]
    assert main(["run", *words, "--device", "cpu", "--out", str(tmp_path / "x")]) == 0
    said = capsys.readouterr().err
    assert "not finite" not in said
    assert "faults " in said
