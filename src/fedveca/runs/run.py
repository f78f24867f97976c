"""One experiment from settings to result: builds it, iterates its rounds, evaluates, keeps, records."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from fedveca.algorithms.registry import is_adaptive
from fedveca.cohorts.client_store import RowsError
from fedveca.cohorts.faults import Inner
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.errors import UserError, show_value
from fedveca.runs.build import Built, build
from fedveca.runs.checkpoint import Progress, identify_run, load_checkpoint, rows_of, save_checkpoint, start_progress
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import Diverged, evaluate_loss, federate
from fedveca.runs.folder import (
    FORMER,
    LAST,
    ROWS,
    Run,
    RunFolder,
    guard_writing,
    require_files,
    require_new,
    summary_of,
    to_json,
)
from fedveca.runs.interrupt import RUN, Stopped, StopRequest, find_starter, how_to_resume, stop_or_signal
from fedveca.runs.lock import lock_folder
from fedveca.runs.overrides import CustomObjects, check_experiment, check_folder, check_functions, copy_record
from fedveca.tasks.datasets.dataset import prepare
from fedveca.tasks.datasets.download import do_nothing
from fedveca.tasks.partition import label_counts
from fedveca.tasks.problem import Problem
from fedveca.trackers.tracking import tracked

Watch = Callable[[dict[str, Any]], None]


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    device: str = "auto",
    watch: Watch | None = None,
    say: Callable[[str], None] | None = do_nothing,
    stop: StopRequest | None = None,
    cohort: Inner | None = None,
    started_by: str = RUN,
    **custom: Unpack[CustomObjects],
) -> Run:
    """Runs the experiment; `watch` sees each round's line, `out` names the run folder (none: in memory).

    With a folder, Ctrl-C, SIGTERM or a `stop()` that is true ends it after the round: all saved, then Stopped.
    `data`, `model`, `loss`, `metric`, `partition` and `method` may be custom objects: see `CustomObjects`. `cohort` is
    the clients, where they are not in this process, and `started_by` then says in the folder who can resume it.

    Examples:
        >>> run(Experiment(model="svm", rounds=2, batch=8)).summary["rounds"]
        2
    """
    check_experiment(experiment)
    check_functions(watch=watch, say=say, stop=stop)
    device = resolve_device(device)
    if out is not None:
        check_folder(out)
        require_new(out)
    built = build(experiment, device, say=say, cohort=cohort, **custom)
    experiment, course = built.experiment, start_progress(built)
    if out is None:
        return _go(experiment, built, device, course, [], None, watch)
    out, counts = (
        Path(out),
        count_labels(built) if len(built.shares.rows) else None,
    )  # rows of the clients' own are not known
    with (
        lock_folder(out, made=True),
        RunFolder.make(out, experiment, device, counts, started_by) as folder,
        stop_or_signal(stop) as ending,
    ):
        built.cohort.memory.home = folder.path / ROWS
        return _go(experiment, built, device, course, [], folder, watch, ending)


def resume(
    out: Path | str,
    *,
    rounds: int = 0,
    device: str = "auto",
    watch: Watch | None = None,
    tell: Callable[[str], None] | None = None,
    data_dir: str | None = None,
    stop: StopRequest | None = None,
    cohort: Inner | None = None,
    **custom: Unpack[CustomObjects],
) -> Run:
    """Goes on with the run in `out` from its last checkpoint, to `rounds` if more are wanted.

    A run that had objects of your own needs them again; others than those are refused.
    """
    check_folder(out)
    check_functions(watch=watch, tell=tell, stop=stop)
    out, device = Path(out), resolve_device(device)
    Run.open(out)
    with lock_folder(out):
        former = Run.open(out)
        require_files(out)
        if cohort is None and (by := find_starter(out)) != RUN:
            raise UserError(f"{out} was made by {by}, over Flower nodes; resume it with: {how_to_resume(out)}")
        e = replace(former.experiment, rounds=rounds or former.experiment.rounds)
        e = e if data_dir is None else replace(e, data_dir=data_dir)
        built = build(e, device, cohort=cohort, **custom)
        e = built.experiment
        course, said = _left(out, former, e, built, device)
        if said and tell:
            tell(said)
        lines = [_due(line, e) for line in former.rounds[: course.round]]
        with RunFolder.again(out, e, lines) as folder, stop_or_signal(stop) as ending:
            if said.endswith(FORMER):
                with guard_writing(out):
                    os.replace(out / FORMER, out / LAST)  # the next checkpoint would put the damaged one in its place
            return _go(e, built, device, course, lines, folder, watch, ending)


def _left(out: Path, former: Run, e: Experiment, built: Built, device: str) -> tuple[Progress, str]:
    """Where the run in a folder stopped; ValueError where it cannot go on to what is asked."""
    if not former.summary and not any((out / name).exists() for name in (LAST, FORMER)):
        built.cohort.memory.home = rows_of(out)
        return start_progress(built), f"{out} has no checkpoint yet: it begins again at round 1"
    course, said = load_checkpoint(out, built, identify_run(e, built), device)
    if course.round > len(former.rounds):
        raise UserError(f"{out} cannot be resumed: rounds.jsonl ends before its checkpoint")
    if course.round >= e.rounds and former.summary:
        raise UserError(f"{out} is finished: {course.round} rounds are done; name more, rounds=N")
    if course.round > e.rounds:
        raise UserError(f"rounds={e.rounds} is fewer than the {course.round} that are done in {out}")
    if e.tau_all and not is_adaptive(e.method) and not torch.equal(course.state.tau, built.state.tau):
        raise UserError(f"rounds={e.rounds} would change every round: tau_all={e.tau_all} is shared out over all")
    if not all("tau" in line for line in former.rounds):
        raise UserError(f"{out} cannot be resumed: a line of rounds.jsonl lacks tau")
    return course, said


def _due(line: dict[str, Any], e: Experiment) -> dict[str, Any]:
    """A line as a run of e.rounds writes it: what was its last round need not be any more."""
    k = line["round"] + 1
    due = k % e.test_every == 0 or k == e.rounds
    return line if due else {name: v for name, v in line.items() if not name.startswith("test_")}


@tracked
def _go(
    e: Experiment,
    built: Built,
    device: str,
    course: Progress,
    lines: list[dict[str, Any]],
    folder: RunFolder | None,
    watch: Watch | None,
    ending: StopRequest = lambda: False,
) -> Run:
    """The rounds that are left, then the closing summary."""
    began, stopped = time.perf_counter(), ""
    test, belongs = Test(built, device), identify_run(e, built) if folder else ""
    rounds = federate(
        built.algorithm,
        built.cohort,
        course.state,
        e.rounds,
        first=course.round,
        least=course.least,
        participation=e.participation,
        seed=e.seed,
        rollback=e.keep == "rollback",
    )
    remembering = partial(guard_writing, folder.path, RowsError) if folder else contextlib.nullcontext
    while True:
        start = time.perf_counter()
        try:
            with remembering():
                after = next(rounds, None)
        except Diverged as error:
            stopped = str(error)
            break
        if after is None:
            break
        state, trace = after
        line = {name: to_json(value) for name, value in trace.items() if name != "least"}
        course = judge_model(course, e.keep, line, float(trace.get("least", math.inf)))._replace(state=state)
        line["seconds"] = round(time.perf_counter() - start, 6)
        if course.round % e.test_every == 0 or course.round == e.rounds:
            line |= test(state.w)
        if built.account:
            line["epsilon"] = built.account.spent(course.round)
        lines.append(line)
        last = ending() or course.round == e.rounds
        if folder:
            folder.round(line)
            if last or course.round % e.checkpoint_every == 0:
                save_checkpoint(folder.path, course, built.cohort.memory, belongs)
        if watch:
            watch(copy_record(line))
        if last and folder and course.round < e.rounds:
            how = how_to_resume(folder.path)
            raise Stopped(f"stopped after round {course.round} of {e.rounds}, all saved; to go on: {how}")
    w, kept, kept_round = course.state.w, course.kept, course.kept_round
    if e.keep == "best":
        with remembering():
            F = evaluate_loss(built.algorithm, built.cohort, course.state, course.round, e.participation, e.seed)
    if e.keep != "best" or course.kept_loss >= F:
        kept, kept_round = w, course.round
    summary = summary_of(
        e,
        sum(sum(line["tau"]) for line in lines),
        time.perf_counter() - began,
        rounds=len(lines),
        last={"round": course.round} | test(w),
        kept={"round": kept_round} | test(kept),
        **({"epsilon": built.account.spent_in_all(course.round)} if built.account else {}),
        **({"stopped": stopped} if stopped else {}),
    )
    model = {name: v.detach().cpu() for name, v in built.problem.state(kept).items()}
    if folder:
        folder.close(summary, model)
    return Run(e, lines, summary, model, folder.path if folder else None)


def count_labels(built: Built) -> Tensor:
    """[N, C] rows of each label by client; [N, 1] rows where there are no labels."""
    y = built.data.y
    labelled = y.dim() == 1 and not y.is_floating_point()
    return label_counts(built.shares, y, built.data.classes) if labelled else built.shares.sizes[:, None]


def judge_model(course: Progress, keep: str, line: dict[str, Any], least: float) -> Progress:
    """One round more; F(w_k) comes with round k, so under keep=best w_k is judged one round late."""
    w_k, k = course.state.w, course.round
    if keep == "best" and "train_loss" in line:  # no one may have answered
        line["accepted"] = line["train_loss"] <= course.kept_loss
        if line["accepted"]:
            course = course._replace(kept=w_k, kept_round=k, kept_loss=line["train_loss"])
    line.setdefault("accepted", True)
    return course._replace(round=k + 1, least=least)


class Test:
    """The test set on the device; a call gives one model's loss and metric there."""

    def __init__(self, built: Built, device: str) -> None:
        self.problem: Problem = built.problem
        self.x, self.y = built.data.x_test.to(device), built.data.y_test.to(device)
        self.pixels = built.data.pixels
        if device == "cpu":
            self.x, self.pixels = prepare(self.x, self.pixels), "as-is"
        self.team = ThreadPool(0 if device == "cpu" else 1)
        self.block = len(self.y) if self.problem.whole else 1000 if device == "cpu" else 10000

    def __call__(self, w: Tensor) -> dict[str, float | None]:
        def part(at: int) -> Tensor:
            x, y = self.x[at : at + self.block], self.y[at : at + self.block]
            return len(y) * torch.stack(self.problem.losses(w, prepare(x, self.pixels), y)).double()

        sums = torch.stack(list(self.team.map(part, range(0, len(self.y), self.block)))).sum(0)
        loss, metric = (sums / len(self.y)).tolist()
        return {"test_loss": to_json(loss), f"test_{self.problem.measure}": to_json(metric)}


def resolve_device(device: Any) -> str:
    """auto is CUDA where there is one; a torch.device without an index is taken by its name."""
    device = str(device) if isinstance(device, torch.device) else device
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device={show_value(device)} is not known; it is 'auto', 'cpu' or 'cuda'")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: no CUDA device is at hand; use cpu or auto")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
