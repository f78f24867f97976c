"""Where the run in a folder stopped, and whether it can be resumed as asked."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

from fedveca.algorithms.registry import is_adaptive
from fedveca.errors import UserError
from fedveca.runs.build import Built
from fedveca.runs.checkpoint import load_checkpoint, make_guard, memory_file
from fedveca.runs.client_evaluation import drop_evaluation
from fedveca.runs.early_stopping import describe_ending
from fedveca.runs.evaluate import Keeper
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.folder_writer import FORMER, LAST
from fedveca.runs.schema import Round, get_number


def find_progress(out: Path, former: Run, built: Built, device: str) -> tuple[Keeper, str]:
    """Where the run in a folder stopped, and a note for the user; UserError where it cannot be resumed as asked."""
    e = built.experiment
    if not former.summary and not any((out / name).exists() for name in (LAST, FORMER)):
        built.cohort.memory.home = memory_file(out)
        keeper = Keeper(e.keep, built.state, statistics=built.statistics, guard=make_guard(built))
        return keeper, f"{out} has no checkpoint yet: it starts again at round 1"
    if former.ended:
        ending = describe_ending(former.experiment, former.ended, len(former.rounds))
        raise UserError(f"{out} is finished: {ending}; more rounds need a new run without this {former.ended}")
    keeper, note = load_checkpoint(out, built, device)
    if keeper.round > len(former.rounds):
        raise UserError(f"{out} cannot be resumed: rounds.jsonl ends before its checkpoint")
    if keeper.round >= e.rounds and former.summary:
        raise UserError(f"{out} is finished: {keeper.round} rounds are done; name more, rounds=N")
    if keeper.round > e.rounds:
        raise UserError(f"rounds={e.rounds} is fewer than the {keeper.round} that are done in {out}")
    shared = e.tau_all and not is_adaptive(e.method)
    changed = not torch.equal(keeper.state.tau, built.state.tau)
    if shared and (changed or (e.share == "exact" and e.rounds != former.experiment.rounds)):
        raise UserError(f"rounds={e.rounds} would change every round: tau_all={e.tau_all} is shared out over all")
    if e.rounds != former.experiment.rounds and e.lr_schedule == "cosine":
        raise UserError(f"rounds={e.rounds} would change the learning rate of every round: lr_schedule=cosine")
    if not all("tau" in record for record in former.rounds):
        raise UserError(f"{out} cannot be resumed: a line of rounds.jsonl lacks tau")
    return keeper, note


def check_init(out: Path, built: Built) -> None:
    """UserError where the file that `init` names is not the one that the run was started with."""
    with contextlib.suppress(OSError, ValueError):
        if read_object(out, "environment.json").get("init_sha256", "") == built.init_sha256:
            return
    if built.init_sha256:
        raise UserError(f"{out} cannot be resumed: init={built.experiment.init} is not the file that it started from")


def drop_test_values(record: Round, e: Experiment) -> Round:
    """A line as a run of e.rounds writes it: what was its last round need not be any more."""
    k = record["round"] + 1
    if k % e.test_every == 0 or k == e.rounds:
        return record
    return drop_evaluation(record, val=e.keep != "best")


def add_seconds(former: Run, records: list[Round]) -> float:
    """How long a run took up to here: what its summary says, or the sum of its rounds where it was interrupted."""
    rounds = sum(get_number(record, "seconds") or 0.0 for record in records)
    return max(rounds, get_number(former.summary, "seconds") or 0.0)
