"""One experiment from settings to result: builds it, iterates its rounds, evaluates, keeps, records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedveca.cohorts.team import Team
from fedveca.runs.experiment import Built, Experiment, build
from fedveca.runs.federate import Diverged, federate, loss_of
from fedveca.runs.record import Folder, Run, plain, refuse, summary_of
from fedveca.tasks.data import Dataset, prepare
from fedveca.tasks.problem import Problem

Watch = Callable[[dict[str, Any]], None]


class Kept(NamedTuple):
    w: Tensor  # [P] the model handed out so far
    round: int  # of w_round
    loss: float  # F(w_round)


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    device: str = "auto",
    watch: Watch | None = None,
    data: Dataset | None = None,
) -> Run:
    """Runs the experiment; `watch` sees each round's line, `out` names the run folder (none: in memory)."""
    began, e = time.perf_counter(), experiment
    device = resolve(device)
    if out is not None:
        refuse(Path(out))
    built = build(e, device, data)
    folder = None if out is None else Folder(Path(out), e, device)
    test = Test(built, device)
    lines: list[dict[str, Any]] = []
    w, kept, stopped, state = built.state.w, Kept(built.state.w, 0, math.inf), "", built.state
    rounds = federate(
        built.algorithm, built.cohort, built.state, e.rounds,
        participation=e.participation, seed=e.seed, rollback=e.keep == "rollback",
    )
    while True:
        mark = time.perf_counter()
        try:
            state, trace = next(rounds)
        except StopIteration:
            break
        except Diverged as error:
            stopped = str(error)
            break
        line = {name: plain(value) for name, value in trace.items() if name != "least"}
        k = line["round"]
        if e.keep == "best":  # F(w_k) comes with round k, so w_k is judged one round late
            line["accepted"] = line["train_loss"] <= kept.loss
            kept = Kept(w, k, line["train_loss"]) if line["accepted"] else kept
        line.setdefault("accepted", True)
        w = state.w
        line["seconds"] = round(time.perf_counter() - mark, 6)
        if (k + 1) % e.test_every == 0 or k + 1 == e.rounds:
            line |= test(w)
        lines.append(line)
        if folder:
            folder.round(line)
        if watch:
            watch(line)
    if e.keep == "best":
        F = loss_of(built.algorithm, built.cohort, state, len(lines), e.participation, e.seed)
        kept = Kept(w, len(lines), F) if kept.loss >= F else kept
    else:
        kept = Kept(w, len(lines), math.nan)
    summary = summary_of(
        e, sum(sum(line["tau"]) for line in lines), time.perf_counter() - began, rounds=len(lines),
        last={"round": len(lines)} | test(w), kept={"round": kept.round} | test(kept.w),
        **({"stopped": stopped} if stopped else {}),
    )
    model = {name: v.detach().cpu() for name, v in built.problem.named(kept.w).items()}
    if folder:
        folder.close(summary, model)
    return Run(e, lines, summary, model, None if out is None else Path(out))


class Test:
    """The test set on the device; a call gives one model's loss and accuracy there."""

    def __init__(self, built: Built, device: str) -> None:
        self.problem: Problem = built.problem
        self.x, self.y = built.data.x_test.to(device), built.data.y_test.to(device)
        self.pixels = built.data.pixels
        if device == "cpu":
            self.x, self.pixels = prepare(self.x, self.pixels), "as-is"
        self.team = Team(0 if device == "cpu" else 1)
        self.block = 1000 if device == "cpu" else 10000

    def __call__(self, w: Tensor) -> dict[str, float | None]:
        def part(at: int) -> Tensor:
            x, y = self.x[at : at + self.block], self.y[at : at + self.block]
            return len(y) * torch.stack(self.problem.losses(w, prepare(x, self.pixels), y)).double()

        sums = torch.stack(list(self.team.map(part, range(0, len(self.y), self.block)))).sum(0)
        loss, accuracy = (sums / len(self.y)).tolist()
        return {"test_loss": plain(loss), "test_accuracy": plain(accuracy)}


def resolve(device: str) -> str:
    """auto is CUDA where there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--device {device} is not known; it is auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is at hand; use cpu or auto")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
