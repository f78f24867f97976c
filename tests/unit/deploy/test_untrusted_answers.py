"""What nodes may send to a server: every wrong answer is left out, named in one short line, and moves nothing.

The nodes are in this process: their messages are Flower's own, written to bytes and read back, only not sent.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
from flower_grid import Change, Grid
from flwr.app import Array, ConfigRecord, Error, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from fedveca.algorithms.contract import Report
from fedveca.algorithms.registry import methods
from fedveca.cohorts.flower import roster
from fedveca.cohorts.flower.answers import NodeTask
from fedveca.cohorts.flower.cohort import FlowerCohort
from fedveca.deploy.server import load_test_data, make_cohort
from fedveca.runs.build import Built, build
from fedveca.runs.build import make_method as method_of
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import Diverged, evaluate_loss, federate
from fedveca.runs.local_steps import initial_steps
from fedveca.runs.run import run
from fedveca.runs.task_data import load_data
from fedveca.tasks.custom import from_arrays

E = Experiment(model="svm", clients=3, rounds=3, batch=16, lr=0.05, round_timeout=5.0)
P = 64
BAD = 1  # the client that misbehaves


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)


def joined(e: Experiment, folder: Path, changes: dict[tuple[int, int], Change], nodes: int = 3) -> FlowerCohort:
    grid: Any = Grid(e, folder, changes, nodes)
    made: FlowerCohort = make_cohort(grid, e, load_data(e)[0], say=lambda text: None)
    return made


def built_of(e: Experiment, cohort: FlowerCohort) -> Built:
    return build(e, data=load_data(e)[0], cohort=cohort)


def asked(e: Experiment, cohort: FlowerCohort) -> tuple[Tensor, Report]:
    """One round."""
    built, ids = built_of(e, cohort), torch.arange(3)
    return cohort(0, built.algorithm.order(built.state), ids, built.state.tau[ids])


def put(record: str, name: str, value: Any) -> Change:
    return lambda records: records[record].__setitem__(name, value)


def drop(record: str, name: str) -> Change:
    return lambda records: records[record].pop(name) and None


def vector(value: Any) -> Change:
    return put("vectors", "G", Array(value) if isinstance(value, np.ndarray) else value)


def raw(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (P,)) -> Array:
    return Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)


def npy(value: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, value, allow_pickle=False)
    return content.getvalue()


def many(kind: Any, record: str, value: Any) -> Change:
    return lambda records: records.__setitem__(record, kind({f"name-{n}": value for n in range(2_000)}))


def instead(content: RecordDict | Error) -> Change:
    return lambda records: content


def one(size: float) -> np.ndarray[Any, Any]:
    """A vector with one number in it."""
    out = np.zeros(P, np.float32)
    out[5] = size
    return out


ONES = np.ones(P, np.float32)
PAINT = "\x1b[2J\x1b]0;owned\x07\r\n\u202e" + "x" * 10
FLOOD = "A" * 2_000_000
HUGE = npy(ONES).replace(b"(64,)", b"(1000000000000,)")
ANSWERS: dict[str, tuple[Change, str]] = {
    "another client": (put("answer", "client", 0), "answered with client 0, not 1"),
    "a bool for the client": (put("answer", "client", True), "answered with client True, not 1"),
    "a whole float for the client": (put("answer", "client", 1.0), "answered with client 1.0, not 1"),
    "text for the client": (put("answer", "client", "1"), "answered with client '1', not 1"),
    "2 MB for the client": (put("answer", "client", FLOOD), "answered with client 'AAAA"),
    "2 MB of bytes for the client": (put("answer", "client", FLOOD.encode()), "answered with client b'AAAA"),
    "a list of long texts for the client": (put("answer", "client", [FLOOD, "B"]), "answered with client ['AAAA"),
    "a long list for the client": (put("answer", "client", [7] * 100_000), "answered with client [7, 7"),
    "escape codes for the client": (put("answer", "client", PAINT), "answered with client '\\x1b[2J"),
    "another round": (put("answer", "round", 1), "answered with round 1, not 0"),
    "a whole float for the round": (put("answer", "round", 0.0), "answered with round 0.0, not 0"),
    "a bool for the round": (put("answer", "round", False), "answered with round False, not 0"),
    "another tau": (put("answer", "tau", 1), "answered with tau 1, not 10"),
    "a whole float for tau": (put("answer", "tau", 10.0), "answered with tau 10.0, not 10"),
    "no tau": (drop("answer", "tau"), "answered with tau None, not 10"),
    "a word too many": (put("answer", "extra", 1), "answered with ['extra'] besides client, round, tau"),
    "a word of escape codes": (put("answer", PAINT, 1), "answered with ['\\x1b[2J"),
    "2,000 words too many": (many(ConfigRecord, "answer", 1), "answered with client None"),
    "diverged as a number": (put("answer", "diverged", 1), "answered with diverged 1, not True"),
    "diverged and not": (put("answer", "diverged", False), "answered with diverged False, not True"),
    "diverged with vectors": (put("answer", "diverged", True), "sent ['G', 'beta', 'grad', 'loss', 'spread'], not []"),
    "a loss that is NaN": (put("numbers", "loss", float("nan")), "loss = nan, which is not a finite number"),
    "a loss without end": (put("numbers", "loss", float("inf")), "loss = inf, which is not a finite number"),
    "a loss far below zero": (put("numbers", "loss", -1e308), "loss = -1e+308, which"),
    "a loss just below zero": (put("numbers", "loss", -1e-9), "loss = -1e-09, which cannot be negative"),
    "a loss beyond float32": (put("numbers", "loss", 1e308), "loss = 1e+308, which is beyond float32"),
    "a beta below zero": (put("numbers", "beta", -0.5), "beta = -0.5, which cannot be negative"),
    "a spread below zero": (put("numbers", "spread", -1e38), "spread = -1e+38, which cannot be negative"),
    "a spread beyond float32": (put("numbers", "spread", 3.5e38), "spread = 3.5e+38, which is beyond float32"),
    "a whole number for a loss": (put("numbers", "loss", 1), "loss = 1, which is not a finite number"),
    "a list for a loss": (put("numbers", "loss", [0.5] * 99), "loss = [0.5, 0.5"),
    "no beta": (drop("numbers", "beta"), "sent ['G', 'grad', 'loss', 'spread'], not ['G', 'beta'"),
    "a number too many": (put("numbers", "zeta", 1.0), "'zeta'], not ["),
    "a number named with escape codes": (put("numbers", PAINT, 1.0), "sent ['\\x1b[2J"),
    "a number with a name of 2 MB": (put("numbers", FLOOD, 1.0), "sent ['AAAA"),
    "2,000 numbers": (many(MetricRecord, "numbers", 1.0), "1994 more], not ["),
    "a vector with NaN": (vector(one(float("nan"))), "sent G with a number that is not finite"),
    "a vector of one 3e38": (vector(one(3e38)), "sent G of norm 3e+38, whose square is beyond float32"),
    "a vector of many 1e19": (vector(1e19 * ONES), "sent G of norm 8e+19, whose square is beyond float32"),
    "a short vector": (vector(ONES[:-1]), "sent G of shape [63], not [64]"),
    "a vector in a matrix": (vector(ONES[None]), "sent G of shape [1, 64], not [64]"),
    "a vector of 30 dimensions": (vector(ONES.reshape(64, *[1] * 30)), "sent G of shape [64, 1, 1,"),
    "a vector in float64": (vector(ONES.astype(np.float64)), "sent G as float64, not as float32"),
    "a vector in the other byte order": (vector(ONES.astype(">f4")), "sent G as >f4, not as float32"),
    "a vector of ints": (vector(ONES.astype(np.int32)), "sent G as int32, not as float32"),
    "a vector of records": (vector(raw(npy(np.zeros(P, [("y" * 3000, "<f4")])))), "sent G as [('yyyy"),
    "a vector of garbage": (vector(raw(b"garbage")), "sent garbage for G"),
    "a pickle": (vector(raw(pickle.dumps(ONES))), "sent garbage for G"),
    "a header of a terabyte": (vector(raw(HUGE)), "sent garbage for G"),
    "a vector with an empty type": (vector(raw(npy(ONES)[:40])), "sent garbage for G"),
    "no grad": (drop("vectors", "grad"), "sent ['G', 'beta', 'loss', 'spread'], not ["),
    "a vector too many": (put("vectors", "H", Array(ONES)), "'H', 'beta'"),
    "a vector named with escape codes": (put("vectors", PAINT, Array(ONES)), "sent ['\\x1b[2J"),
    "nothing": (instead(RecordDict()), "sent garbage: no answer in its reply, but []"),
    "no answer": (lambda records: records.pop("answer") and None, "but ['numbers', 'times', 'vectors']"),
    "a record too many": (lambda records: records.update(x=ConfigRecord()), "'numbers', 'times', 'vectors', 'x']"),
    "words for vectors": (lambda records: records.update(vectors=ConfigRecord({"G": 1})), "of the wrong kind"),
    "numbers for words": (lambda records: records.update(answer=MetricRecord({"client": 1})), "of the wrong kind"),
    "an error": (instead(Error(3, "the disk is full\nat line 3")), "failed: the disk is full (Flower's error 3)"),
    "an error without a reason": (instead(Error(3)), "failed: no reason given (Flower's error 3)"),
    "an error of escape codes": (instead(Error(3, PAINT)), "failed: \\x1b[2J\\x1b]0;owned\\x07 (Flower's error 3)"),
    "an error of 2 MB": (instead(Error(3, FLOOD)), "failed: AAAA"),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A round in which the client only fails."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_task_id", "_run_id", "_node_id"):
            patch.setattr(TaskIdentity, name, 1)
        changes = {(BAD, 0): instead(Error(1, "fails"))}
        return asked(E, joined(E, tmp_path_factory.mktemp("nodes"), changes))[1]


def short(text: str) -> bool:
    return text.isprintable() and len(text) < 800  # eight names of 60 characters, and what is said of them


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_left_out_and_named(name: str, without: Report, tmp_path: Path) -> None:
    change, said = ANSWERS[name]
    who, report = asked(E, joined(E, tmp_path, {(BAD, 0): change}))
    assert who.tolist() == [0, 2]
    (fault,) = report.faults
    assert fault["client"] == BAD
    assert said in fault["what"]
    assert short(fault["what"])
    assert all(torch.equal(v, without.mean[name]) for name, v in report.mean.items())
    assert all(torch.equal(v, without.each[name]) for name, v in report.each.items())
    assert report.mass == without.mass


def who_it_is(**words: Any) -> Change:
    return instead(RecordDict({"answer": ConfigRecord(words)}))


STRANGERS: dict[str, tuple[Change, int, str]] = {
    "no client": (who_it_is(rows=5), -1, "says it is client None; there are clients 0 to 2"),
    "a client beyond": (who_it_is(client=3, rows=5), -1, "says it is client 3;"),
    "a client far beyond": (who_it_is(client=2**63 - 1, rows=5), -1, "says it is client 9223372036854775807;"),
    "a client below": (who_it_is(client=-1, rows=5), -1, "says it is client -1;"),
    "a bool": (who_it_is(client=True, rows=5), -1, "says it is client True;"),
    "a whole float": (who_it_is(client=1.0, rows=5), -1, "says it is client 1.0;"),
    "escape codes": (who_it_is(client=PAINT, rows=5), -1, "says it is client '\\x1b[2J"),
    "2 MB": (who_it_is(client=FLOOD, rows=5), -1, "says it is client 'AAAA"),
    "no rows": (who_it_is(client=1), 1, "says it has None rows; allowed: 1 to 1099511627776"),
    "0 rows": (who_it_is(client=1, rows=0), 1, "says it has 0 rows"),
    "rows below zero": (who_it_is(client=1, rows=-5), 1, "says it has -5 rows"),
    "rows beyond": (who_it_is(client=1, rows=2**40 + 1), 1, "says it has 1099511627777 rows"),
    "rows far beyond": (who_it_is(client=1, rows=2**63 - 1), 1, "says it has 9223372036854775807 rows"),
    "a bool of rows": (who_it_is(client=1, rows=True), 1, "says it has True rows"),
    "a float of rows": (who_it_is(client=1, rows=5.0), 1, "says it has 5.0 rows"),
    "2 MB of rows": (who_it_is(client=1, rows=FLOOD), 1, "says it has 'AAAA"),
    "an error of escape codes": (instead(Error(7, PAINT)), -1, "failed: \\x1b[2J"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_node_that_is_no_client_is_named_and_not_asked(name: str, tmp_path: Path) -> None:
    change, client, said = STRANGERS[name]
    heard: list[str] = []
    grid: Any = Grid(E, tmp_path, {(3, -1): change}, nodes=4)
    cohort: FlowerCohort = make_cohort(grid, E, load_data(E)[0], say=heard.append)
    who, report = asked(E, cohort)
    assert who.tolist() == [0, 1, 2]
    fault = report.faults[0]
    assert fault["client"] == client
    assert said in fault["what"]
    assert all(map(short, [fault["what"], *heard]))


def test_a_node_that_fails_while_others_join_does_not_flood_the_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again and again, and says something else every time."""
    monkeypatch.setattr(roster, "_RETRY_SECONDS", 0.0)
    count = 0

    def fails(records: dict[str, Any]) -> Error | None:
        nonlocal count
        count += 1
        return Error(3, f"for the {count}th time") if count <= 300 else None

    cohort = joined(E, tmp_path, {(BAD, -1): fails})
    assert count > 300
    assert len(asked(E, cohort)[1].faults) == 100


@pytest.mark.parametrize("failures", [1, 2])
def test_a_round_of_fewer_than_min_clients_is_void_and_repeated(failures: int, tmp_path: Path) -> None:
    """Each failure is marked with its own attempt, whatever its text; with min_clients=1 the round counts at once."""
    count = 0

    def fails(records: dict[str, Any]) -> Error | None:
        nonlocal count
        count += 1
        return Error(3, "null and void") if count <= failures else None

    e = replace(E, min_clients=3)
    who, report = asked(e, joined(e, tmp_path, {(BAD, 0): fails}))
    assert who.tolist() == [0, 1, 2]
    reasons = [f"failed: null and void (Flower's error 3) (attempt {n}, void)" for n in range(1, failures + 1)]
    assert list(report.faults) == [{"client": BAD, "what": reason} for reason in reasons]
    count = 0
    who, report = asked(E, joined(E, tmp_path, {(BAD, 0): fails}))
    assert who.tolist() == [0, 2]
    assert list(report.faults) == [{"client": BAD, "what": "failed: null and void (Flower's error 3)"}]


def say_client(client: int) -> Change:
    return put("answer", "client", client)


def bound(grid: Any, nodes: dict[int, int], said: list[str]) -> FlowerCohort:
    """A network that knows whose key is whose, node 100 + i being client i's."""
    classes: dict[str, Any] = {"classes": 10, "pixels": "as-is"}
    return FlowerCohort(grid, method_of(E), 3, NodeTask(classes), timeout=5.0, say=said.append, nodes=nodes)


def test_a_node_is_the_client_whose_key_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 102 claims to be client 0 at first, before and after the right one; asked again, it says what is true."""
    monkeypatch.setattr(roster, "_RETRY_SECONDS", 0.01)
    grid, said = Grid(E, tmp_path, {(2, -1): say_client(0)}), list[str]()
    lies = [say_client(0), say_client(0), say_client(1)]

    def change(records: dict[str, Any]) -> None:
        if lies:
            lies.pop()(records)

    grid.changes[2, -1] = change
    cohort = bound(grid, {0: 100, 1: 101, 2: 102}, said)
    assert cohort.roster.nodes == {0: 100, 1: 101, 2: 102}
    wrong = [line for line in said if "but its key is not client" in line]
    assert len(wrong) == 2  # the same text once only
    assert "node 102 says it is client 1, but its key is not client 1's" in wrong[0]
    faults = asked(E, cohort)[1].faults
    assert [(f["client"], "its key is not" in f["what"]) for f in faults] == [(1, True), (0, True)]


def test_a_node_that_was_offline_is_asked_again_who_it_is(tmp_path: Path) -> None:
    """Where keys are not bound to clients, two nodes that were mixed up can be restarted the other way round."""
    grid, said, away = Grid(E, tmp_path, {}), list[str](), set[int]()
    every = grid.get_node_ids
    grid.get_node_ids = lambda: [node for node in every() if node not in away]  # type: ignore[method-assign]
    cohort = joined_on(grid, said)
    before = dict(cohort.roster.nodes)
    away |= {100, 101}
    cohort._check_arrivals()
    grid.changes |= {(0, -1): swap(1, cohort), (1, -1): swap(0, cohort)}
    away.clear()
    cohort._check_arrivals()
    assert cohort.roster.nodes == {0: before[1], 1: before[0], 2: before[2]}


def swap(client: int, cohort: FlowerCohort) -> Change:
    def change(records: dict[str, Any]) -> None:
        records["answer"]["client"], records["answer"]["rows"] = client, cohort.roster.rows[client].train

    return change


def joined_on(grid: Any, said: list[str]) -> FlowerCohort:
    made: FlowerCohort = make_cohort(grid, E, load_data(E)[0], say=said.append)
    return made


@pytest.mark.parametrize("method", [m for m in methods() if m != "centralised"])
def test_right_answers_are_all_taken(method: str, tmp_path: Path) -> None:
    """And give what the simulator gives."""
    e = replace(E, method=method, model="logistic" if methods()[method].algorithm.has_loss else E.model)
    cohort = joined(e, tmp_path, {})
    built, alone = built_of(e, cohort), build(e)
    rounds = list(federate(built.algorithm, cohort, built.state, 3))
    expected = list(federate(alone.algorithm, alone.cohort, alone.state, 3))
    for (state, trace), (other, simulated) in zip(rounds, expected, strict=True):
        assert "faults" not in trace
        if built.algorithm.needs_timing and trace["round"]:
            continue  # its steps follow the time that was measured, of which a simulation without devices has none
        assert trace["tau"] == simulated["tau"]
        assert float((state.w - other.w).abs().max()) < 1e-6


def claim(rows: int) -> Change:
    return put("answer", "rows", rows)


def test_the_most_rows_that_all_clients_may_have_can_be_added(tmp_path: Path) -> None:
    cohort = joined(E, tmp_path, {(i, -1): claim(2**40) for i in range(3)})
    _, report = asked(E, cohort)
    assert cohort.sizes.tolist() == [2**40] * 3
    assert report.mass == 1.0
    built = built_of(E, cohort)
    order, ids = built.algorithm.order(built.state), torch.arange(3)
    alone = [cohort(0, order, ids[i : i + 1], built.state.tau[i : i + 1])[1].mean["G"] for i in range(3)]
    assert torch.allclose(report.mean["G"], torch.stack(alone).mean(0), atol=1e-7)
    assert 0 < evaluate_loss(cohort, order, 0, ids) < 1
    fair = replace(E, method="fedavg", tau_all=9 * 10**8)
    assert initial_steps(fair, cohort.sizes).tolist() == [10**8] * 3


@pytest.mark.parametrize("method", ["fedveca", "fedavg"])
def test_the_client_that_makes_a_deployment_diverge_is_named(method: str, tmp_path: Path) -> None:
    """Its vector is as long as one may be."""
    e = replace(E, method=method, lr=1.0)
    cohort = joined(e, tmp_path, {(BAD, 0): vector(one(1.8e19))})
    built = built_of(e, cohort)
    with pytest.raises(Diverged, match=r"^round 2: no .*; the update of client 1 in round 1 was \S+e\+1\d times"):
        list(federate(built.algorithm, cohort, built.state, 3))


@pytest.mark.parametrize("method", ["fedveca", "fedavg"])
def test_the_client_that_makes_a_simulation_diverge_is_named(method: str) -> None:
    e = replace(E, method=method, clients=10, partition="case1", lr=1.0, faults="scale:0.1:-1000", rounds=6, probe=0)
    (bad,) = build(e).cohort.faults.attackers  # type: ignore[attr-defined]
    stopped = run(e, device="cpu").summary["stopped"]
    assert f"; the update of client {bad} in round 1 was " in stopped
    assert stopped.endswith(" the others' median: check that client; aggregate=clip or a smaller lr may help")


@pytest.mark.parametrize("lr", [2.0, 1e4])
def test_a_run_that_diverges_by_itself_names_nobody(lr: float) -> None:
    e = replace(E, method="fedavg", clients=10, partition="case1", lr=lr, rounds=20)
    stopped = run(e, device="cpu").summary["stopped"]
    assert stopped.endswith("no client gave a finite loss and gradient; a smaller lr usually helps, or guard=on")


def test_private_clients_are_never_named() -> None:
    """How long a client's update was is not covered by the noise."""
    e = Experiment(model="svm", rounds=2, batch=16, dp_noise=1.0, dp_clip=1.0)
    built = build(e)
    ids = torch.arange(5)
    assert built.cohort(0, built.algorithm.order(built.state), ids, built.state.tau)[1].norms is None


def test_a_regression_over_nodes_equals_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's and the node's rows are files of numbers: loss and metric are those of numbers on both sides."""
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(60, 4)).astype(np.float32), draw.normal(size=60)
    for name, at in (("NODE", slice(0, 50)), ("TEST", slice(50, 60))):
        np.savez(tmp_path / f"{name}.npz", x=x[at], y=y[at])
        monkeypatch.setenv(f"FEDVECA_{name}_DATA", str(tmp_path / f"{name}.npz"))
    e = Experiment(model="mlp", hidden=5, clients=1, rounds=3, batch=8, lr=0.05, tau_0=2)
    data = load_test_data(e)
    grid: Any = Grid(e, tmp_path, {}, 1)
    nodes = make_cohort(grid, e, data, say=lambda text: None)
    done = run(e, data=data, cohort=nodes)
    rows = from_arrays(x[:50], y[:50], test=(x[50:], y[50:]))
    expected = run(e, data=rows, partition=[list(range(50))], device="cpu")
    assert [r["tau"] for r in done.rounds] == [r["tau"] for r in expected.rounds]
    for quantity in ("train_loss", "test_loss", "test_absolute_error"):
        want = pytest.approx([r[quantity] for r in expected.rounds], rel=1e-5)
        assert [r[quantity] for r in done.rounds] == want, quantity
    with pytest.raises(ValueError, match="model=svm has its own loss"):
        build(replace(e, model="svm"), data=data, cohort=nodes)
