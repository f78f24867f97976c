"""secure=on over Flower nodes: the integers of the simulation, whoever is lost, and nodes that do not trust a server.

The nodes are in this process: their messages are Flower's own, written to bytes and read back, only not sent.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from real_models import CALM
from scipy.stats import chisquare
from secure_grid import SecureGrid, Stage
from torch import Tensor

from fedveca.algorithms.contract import STATISTICS
from fedveca.cohorts.flower import cohort as flower_cohort
from fedveca.cohorts.flower import roster
from fedveca.cohorts.flower import secure_cohort as module
from fedveca.cohorts.flower.roster import TooFewClients
from fedveca.deploy.exchange import decode_answer, encode
from fedveca.deploy.node_process import make_node_cohort, work
from fedveca.deploy.peers import PEERS_FILE, read_peers
from fedveca.deploy.server import check_deployable, make_cohort
from fedveca.deploy.templates import write_deployment
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from fedveca.runs.task_data import load_data

E = Experiment(model="svm", clients=4, rounds=3, batch=16, lr=0.05, round_timeout=0.5, secure="on", keep="last")


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.1)
    make_node_cohort.cache_clear()


def deploy(e: Experiment, grid: SecureGrid) -> Run:
    data, found = load_data(e)[0], grid
    nodes: Any = found
    return run(e, data=data, cohort=make_cohort(nodes, e, data, say=lambda text: None), device="cpu")


def repeat(e: Experiment, present: dict[int, list[int]]) -> Tensor:
    """w after the rounds of a simulation in which round k has the clients `present[k]`, all where it names none."""
    built = build(e)
    state, method = built.state, built.algorithm
    for k in range(e.rounds):
        ids = torch.tensor(present.get(k, list(range(e.clients))))
        who, report = built.cohort(k, method.order(state), ids, state.tau[ids])
        weight = built.cohort.weights[who].double()
        state, _ = method.update(state, who, weight / weight.sum(), report)
    return state.w


def weights_of(done: Run) -> Tensor:
    return torch.cat([v.flatten() for v in done.model.values()])


@pytest.mark.parametrize("method", ["fedveca", "scaffold"])
def test_a_deployment_gives_the_simulations_bits(method: str, tmp_path: Path) -> None:
    e = dataclasses.replace(E, method=method)
    grid = SecureGrid(e, tmp_path)
    deployed, simulated = deploy(e, grid), run(e, device="cpu")
    assert torch.equal(weights_of(deployed), weights_of(simulated))
    assert not any(record.get("faults") for record in deployed.rounds)
    for mine, theirs in zip(deployed.rounds[1:], simulated.rounds[1:], strict=True):
        assert (mine["bytes_down"], mine["bytes_up"]) == (theirs["bytes_down"], theirs["bytes_up"])


def test_a_round_is_two_messages_per_client(tmp_path: Path) -> None:
    """The channel key is asked for once; the secrets of the next round come with the unmasking of this one."""
    grid = SecureGrid(E, tmp_path)
    deploy(E, grid)
    first = ["who", "advertise", "share"]
    assert [stage for client, stage in grid.sent if client == 1] == first + 3 * ["order", "unmask"]


def test_where_clients_are_drawn_their_secrets_are_shared_before_each_order(tmp_path: Path) -> None:
    e = dataclasses.replace(E, clients=6, participation=0.5, rounds=2)
    grid = SecureGrid(e, tmp_path)
    deployed, simulated = deploy(e, grid), run(e, device="cpu")
    assert [record["ids"] for record in deployed.rounds] == [record["ids"] for record in simulated.rounds]
    assert torch.equal(weights_of(deployed), weights_of(simulated))
    stages = [stage for _, stage in grid.sent if stage not in ("who", "advertise")]
    assert stages == 2 * (3 * ["share"] + 3 * ["order"] + 3 * ["unmask"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "present", "named"),
    [
        ([(3, "order", 1)], {1: [0, 1, 2]}, "timed out after 0.5 s"),
        ([(0, "unmask", 0)], {}, "did not help to unmask"),
        ([(2, "share", 0)], {0: [0, 1, 3]}, "shared no secrets"),
        ([(1, "advertise", 0)], {key: [0, 2, 3] for key in range(3)}, "has no key for this round"),
    ],
)
def test_a_client_lost_at_any_stage_costs_its_vector_at_most(
    lost: list[Stage], present: dict[int, list[int]], named: str, tmp_path: Path
) -> None:
    """Also one whose keys are known and whose vector never comes: its masks are taken off with the others' shares."""
    deployed = deploy(E, SecureGrid(E, tmp_path, lost))
    assert torch.equal(weights_of(deployed), repeat(E, present))
    faults = [fault for record in deployed.rounds for fault in record.get("faults", [])]
    assert {"client": lost[0][0], "what": named} in faults


def test_below_the_threshold_a_round_is_void_and_repeated(tmp_path: Path) -> None:
    lost = [(2, "order", 0), (3, "order", 0)]
    deployed = deploy(E, SecureGrid(E, tmp_path, lost))
    assert torch.equal(weights_of(deployed), repeat(E, {}))
    assert [fault["what"] for fault in deployed.rounds[0]["faults"]] == 2 * ["timed out after 0.5 s (attempt 1, void)"]


def test_too_few_helpers_make_a_round_void(tmp_path: Path) -> None:
    """Vectors of all arrived, but only 2 of 4 clients help to unmask, and 3 are needed."""
    deployed = deploy(E, SecureGrid(E, tmp_path, [(0, "unmask", 0), (1, "unmask", 0)]))
    assert torch.equal(weights_of(deployed), repeat(E, {}))
    first = [fault["what"] for fault in deployed.rounds[0]["faults"]]
    assert "the sum cannot be unmasked: 2 shares of a secret of client 0 are there; the threshold is 3 " in first[-1]


def test_void_again_and_again_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_cohort, "_ATTEMPTS", 2)
    lost = [(i, "order", n) for i in (2, 3) for n in range(2)]
    e = dataclasses.replace(E, round_timeout=0.1)
    with pytest.raises(TooFewClients, match="2 times in a row"):
        deploy(e, SecureGrid(e, tmp_path, lost))


def test_a_client_that_diverges_sends_masked_zeros(tmp_path: Path) -> None:
    """It is left out as in a simulation, and it is not a client that is lost: nobody reveals its key."""
    e = dataclasses.replace(E, lr=1e30, method="fedavg", rounds=1)
    grid = SecureGrid(e, tmp_path)
    nodes: Any = grid
    cohort = make_cohort(nodes, e, load_data(e)[0], say=lambda text: None)
    built = build(e, data=load_data(e)[0], cohort=cohort)
    ids = torch.arange(4)
    who, report = cohort(0, built.algorithm.order(built.state), ids, built.state.tau)
    assert len(who) == 0
    assert report.mean == {}
    seen = [arrays["G"] for _, stage, arrays in grid.seen if stage == "order"]
    assert len(seen) == 4
    with np.errstate(over="ignore"):
        assert all(v.any() for v in seen)


def test_what_the_server_is_sent_of_one_client_is_uniform(tmp_path: Path) -> None:
    grid = SecureGrid(E, tmp_path)
    deploy(E, grid)
    for client in range(4):
        seen = [arrays for i, stage, arrays in grid.seen if stage == "order" and i == client]
        assert [arrays.keys() for arrays in seen] == 3 * [{"G", "grad"}]
        words = np.concatenate([v for arrays in seen for v in arrays.values()])
        assert words.dtype == np.dtype("<u8")
        counts = np.bincount(words.view(np.uint8), minlength=256)
        assert chisquare(counts).pvalue > 1e-9  # masks are the operating system's: one run in 10^8 would fail


def test_running_statistics_are_masked_too_and_no_norm_is_known(tmp_path: Path) -> None:
    """A network with BatchNorm: its statistics reach the server in the sum, to the simulation's bits."""
    e = dataclasses.replace(E, model="real_models:resnet", **{"rounds": 1, "tau_0": 3, "probe": 16} | CALM)
    grid: Any = SecureGrid(e, tmp_path)
    data = load_data(e)[0]
    cohort, simulation = make_cohort(grid, e, data, say=lambda text: None), build(e)
    order = simulation.algorithm.order(simulation.state)
    order = order._replace(aux=order.aux | {STATISTICS: simulation.statistics})
    reports = [one(0, order, torch.arange(4), simulation.state.tau)[1] for one in (cohort, simulation.cohort)]
    assert STATISTICS in reports[0].mean
    assert all(torch.equal(reports[0].mean[name], v) for name, v in reports[1].mean.items())
    assert all(report.norms is None for report in reports)
    assert all(STATISTICS in arrays for _, stage, arrays in grid.seen if stage == "order")


def test_a_node_rejects_an_order_in_the_open(tmp_path: Path) -> None:
    """Whatever the settings of the server say: the file that came with the node's key decides."""
    grid = SecureGrid(E, tmp_path)
    nodes: Any = grid
    e = dataclasses.replace(E, secure="off", round_timeout=0.1)
    grid.e = e
    cohort = make_cohort(nodes, e, load_data(e)[0], say=lambda text: None)
    built = build(e, data=load_data(e)[0], cohort=cohort)
    order = built.algorithm.order(built.state)
    assert len(cohort(0, order, torch.arange(4), torch.zeros(4, dtype=torch.int64))[0]) == 4  # a loss is not a vector
    cohort.min_clients = 0
    who, report = cohort(0, order, torch.arange(4), built.state.tau)
    assert len(who) == 0
    why = "failed: the server asked for vectors in the open; peers.json of this node allows masked ones"
    assert {fault["what"].split(" (Flower")[0] for fault in report.faults or cohort.faults} == {why}


def test_a_node_without_peers_cannot_take_part(tmp_path: Path) -> None:
    grid = SecureGrid(E, tmp_path)
    (tmp_path / "node-2" / PEERS_FILE).unlink()
    deployed = deploy(E, grid)
    assert torch.equal(weights_of(deployed), repeat(E, {key: [0, 1, 3] for key in range(3)}))
    assert any("secure=on needs peers.json" in fault["what"] for fault in deployed.rounds[0]["faults"])


def test_a_node_whose_peers_hold_another_key_of_its_own_says_so(tmp_path: Path) -> None:
    SecureGrid(E, tmp_path)
    path = tmp_path / "node-0" / PEERS_FILE
    found = json.loads(path.read_text())
    found["keys"]["0"] = found["keys"]["1"]
    path.write_text(json.dumps(found))
    assert "the key of client 0 is not this node's" in ask(tmp_path / "node-0", {"stage": "advertise"})


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"least": 1, "keys": {}}', '{"least": "3", "keys": {"0": 1}}'])
def test_a_peers_file_that_is_not_one_lets_nothing_out(text: str, tmp_path: Path) -> None:
    (tmp_path / PEERS_FILE).write_text(text)
    with pytest.raises(UserError, match="no vector is sent"):
        read_peers(tmp_path)


def ask(folder: Path, order: dict[str, object], client: int = 0) -> str:
    request: Any = {"settings": dataclasses.asdict(E), "client": client, "order": order}
    answer, _ = decode_answer(work(encode(request, {}), folder))
    return answer.get("error", "")


@pytest.mark.parametrize(
    "order",
    [
        {"stage": "reveal"},
        {"stage": "share", "secure": "no base64!"},
        {"stage": "share", "secure": ""},
        {"stage": "unmask", "secure": "AAAA"},
        {"stage": "unmask", "secure": "A" * 64},
    ],
)
def test_a_message_that_is_not_of_the_protocol_is_answered_with_one_sentence(
    order: dict[str, object], tmp_path: Path
) -> None:
    SecureGrid(E, tmp_path)
    why = ask(tmp_path / "node-0", order)
    assert why
    assert "\n" not in why
    assert "Error" not in why


class LyingGrid(SecureGrid):
    """Client 1 answers one stage with something else."""

    def __init__(self, stage: str, field: str, value: object, folder: Path) -> None:
        super().__init__(E, folder)
        self.lie = stage, field, value

    def _answer(self, message: Any) -> Any:
        reply = super()._answer(message)
        stage, field, value = self.lie
        client = message.metadata.dst_node_id - 100
        if client == 1 and self.sent[-1][1] == stage and not reply.has_error():
            records: dict[str, Any] = dict(reply.content)
            if field == "G":
                records["vectors"] = type(records["vectors"])(
                    {name: type(v)(v.numpy()[:-1]) for name, v in records["vectors"].items()}
                )
            else:
                records["answer"] = ConfigRecord(dict(records["answer"]) | {field: value})  # type: ignore[dict-item]
            reply.content = RecordDict(records)
        return reply


@pytest.mark.parametrize(
    ("stage", "field", "value", "lives"),
    [
        ("advertise", "secure", "%%%", False),
        ("advertise", "secure", "AAAA", False),
        ("share", "secure", "AAAA", False),
        ("share", "secure", 7, False),
        ("order", "tau", 1, False),
        ("order", "G", None, False),
        ("unmask", "secure", "AAAA", True),
        ("unmask", "next", "AAAA", True),
    ],
)
def test_garbage_of_one_client_costs_its_vector_and_no_more(
    stage: str, field: str, value: object, lives: bool, tmp_path: Path
) -> None:
    deployed = deploy(dataclasses.replace(E, rounds=1), LyingGrid(stage, field, value, tmp_path))
    assert deployed.rounds[0]["ids"] == ([0, 1, 2, 3] if lives else [0, 2, 3])
    assert torch.equal(weights_of(deployed), repeat(dataclasses.replace(E, rounds=1), {} if lives else {0: [0, 2, 3]}))


def test_wrong_shares_make_a_round_void_and_no_model_of_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that gives false shares of self masks spoils the sum, which is then beyond what clients may send."""
    monkeypatch.setattr(flower_cohort, "_ATTEMPTS", 1)
    false = base64.b64encode(bytes(66 * 4)).decode()
    with pytest.raises(TooFewClients):
        deploy(dataclasses.replace(E, rounds=1, model="mlp"), LyingGrid("unmask", "secure", false, tmp_path))


def test_a_deployment_folder_holds_the_others_keys(tmp_path: Path) -> None:
    write_deployment(tmp_path / "made", E, "localhost", 9000)
    for i in range(4):
        peers = read_peers(tmp_path / "made" / f"node-{i}")
        assert peers is not None
        assert peers.least == 3
        assert peers.keys[2] == (tmp_path / "made" / "server" / "keys" / "node-2.pub").read_text().strip()
    write_deployment(tmp_path / "open", dataclasses.replace(E, secure="off"), "localhost", 9000)
    assert read_peers(tmp_path / "open" / "node-0") is None


def test_too_few_nodes_are_rejected_before_anything_starts() -> None:
    with pytest.raises(UserError, match="secure=on needs 3 clients or more per round; clients=2"):
        check_deployable(dataclasses.replace(E, clients=2))
