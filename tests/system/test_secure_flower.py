"""Secure aggregation on real Flower: a SuperLink and four SuperNodes, one of which is killed in a round."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedveca.cohorts.secure.fixed_point import bound_error
from fedveca.deploy.launch import Federation
from fedveca.deploy.local import follow
from fedveca.deploy.provision import write_app
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run

pytestmark = pytest.mark.slow
NODES = 4
E = Experiment(model="svm", clients=NODES, rounds=2, batch=16, lr=0.05, keep="last", secure="on", round_timeout=35.0)
LOST = 3  # the client whose node is killed after it got the order of the last round
STUCK = """
import os, time


@client.train()
def train(message, context):
    if context.node_config["partition-id"] == 3 and message.content["order"]["round"] == 1:
        open({mark!r}, "w").close()
        time.sleep(600)
    return answer(message, context)
"""


def start(federation: Federation, e: Experiment, app: Path, more: str = "") -> Path:
    out = app.with_name(f"{app.name}-run")
    write_app(app, e)
    if more:
        before, _, after = (app / "app.py").read_text().partition("@client.train")
        (app / "app.py").write_text(before + after[after.index("@client.query") :] + more)
    federation.submit([f"out={json.dumps(str(out))}"], app)
    return out


def until(what: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def simulate(e: Experiment, present: dict[int, list[int]]) -> Tensor:
    """w after rounds in which only the clients `present[k]` take part, all where it names none."""
    built = build(e)
    state, method = built.state, built.algorithm
    for k in range(e.rounds):
        ids = torch.tensor(present.get(k, list(range(NODES))))
        who, report = built.cohort(k, method.order(state), ids, state.tau[ids])
        weight = built.cohort.weights[who].double()
        state, _ = method.update(state, who, weight / weight.sum(), report)
    return state.w


def read_model(folder: Path) -> Tensor:
    return torch.cat([v.flatten() for v in load_file(folder / "model.safetensors").values()])


def test_four_nodes_of_which_one_is_killed_in_a_round(tmp_path: Path) -> None:
    """The open run's weights to the stated error; then the simulation's bits, with the lost client's masks undone."""
    with Federation(tmp_path / "deployment", NODES) as federation:
        plain = replace(E, secure="off")
        out = start(federation, plain, tmp_path / "open")
        follow(federation, out, NODES)
        opened = read_model(out)
        federation.introduce(3)
        mark = tmp_path / "stuck"
        out = start(federation, E, tmp_path / "secure", STUCK.format(mark=str(mark)))
        until(mark.exists)
        os.kill(federation.nodes[LOST].pid, signal.SIGKILL)
        federation.processes.pop(f"node-{LOST}").wait(60)
        follow(federation, out, NODES)
    rounds = Run.open(out).rounds
    assert [record["ids"] for record in rounds] == [[0, 1, 2, 3], [0, 1, 2]]
    assert any(fault["client"] == LOST and "timed out" in fault["what"] for fault in rounds[1]["faults"])
    assert "faults" not in rounds[0]
    assert torch.equal(read_model(out), simulate(E, {1: [0, 1, 2]}))
    step = 2 * E.lr * 10  # the server's step is lr tau_k times the mean: the error of two rounds, and float32's
    allowed = step * bound_error(NODES, 1.0) + 8 * torch.finfo(torch.float32).eps * float(opened.abs().max())
    assert float((opened - simulate(E, {})).abs().max()) <= allowed
    for path in tmp_path.rglob("*.log"):  # a session's secrets are in no log
        assert "PRIVATE KEY" not in path.read_text(errors="replace")
