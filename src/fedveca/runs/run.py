"""One experiment from settings to result: build it, iterate over its rounds, evaluate, keep, record."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Literal, Unpack

import torch
from torch import Tensor

from fedveca.algorithms.registry import is_pooled
from fedveca.cohorts.client_store import RowsError
from fedveca.cohorts.clock.answer_buffer import AnswerBuffer
from fedveca.cohorts.contract import Cohort
from fedveca.errors import UserError, show_value
from fedveca.plugins import load_plugin
from fedveca.runs.build import Built, build
from fedveca.runs.checkpoint import Checkpointer, make_guard
from fedveca.runs.client_evaluation import ModelEvaluator
from fedveca.runs.clock import invite_share, sum_time, warn_untimed
from fedveca.runs.early_stopping import EarlyStopping, describe_ending
from fedveca.runs.epoch_settings import parse_epochs
from fedveca.runs.evaluate import GrowthCheck, Keeper
from fedveca.runs.experiment import Experiment, count_probe_rows
from fedveca.runs.federate import Diverged, federate
from fedveca.runs.folder import Run, describe_environment, require_files, require_new
from fedveca.runs.folder_types import EndReason, Environment, Summary
from fedveca.runs.folder_writer import FORMER, LAST, MEMORY_FILE, RunFolder, guard_writing
from fedveca.runs.interrupt import (
    PYTHON,
    REPLAY,
    RUN,
    Stopped,
    StopRequest,
    find_starter,
    how_to_resume,
    stop_or_signal,
)
from fedveca.runs.lock import lock_folder
from fedveca.runs.observers import Observer, check_observers, copy_record, observe
from fedveca.runs.overrides import CustomObjects, check_experiment, check_folder, check_functions
from fedveca.runs.resume_point import add_seconds, check_init, drop_test_values, find_progress
from fedveca.runs.schema import Round, get_number, state_units
from fedveca.runs.setting_checks import is_path
from fedveca.runs.task_data import describe_rows, holds_back
from fedveca.runs.work import count_rows_of
from fedveca.tasks.names import CUSTOM
from fedveca.tasks.partition import label_counts

_log = logging.getLogger(__name__)
log_of_results = logging.getLogger(f"{__name__}.results")  # what the summary says too
NO_ANSWERS = "no client answered in any round, so the kept model is untrained"
NOTHING_LEARNED = "no round was better than the start, so the kept model is untrained; try a smaller lr"


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    device: str = "auto",
    observers: Iterable[Observer] = (),
    progress: bool = False,
    stop: StopRequest | None = None,
    cohort: Cohort | None = None,
    started_by: str = "",
    **custom: Unpack[CustomObjects],
) -> Run:
    """Runs an experiment.

    Args:
        experiment: The settings.
        out: The run folder to write; None keeps the run in memory.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        observers: Objects that see each round as it ends.
        progress: Whether a line with the round, its values and the time left is shown, also in a notebook.
        stop: Asked after each round, once the observers have seen it. Where it returns True, a run with a folder is
            saved and `Stopped` is raised; without it, Ctrl-C and SIGTERM do the same. A run in memory ends there and is
            returned with its summary and model; `summary["ended"]` is "stop".
        cohort: The clients, where they are not in this process; a deployment gives them.
        started_by: Who can resume the run, as its folder says; a deployment gives it.
        **custom: `data`, `model`, `loss`, `metric`, `partition`, `method` and `augment` as objects: see
            `CustomObjects`.

    Returns:
        The run with its rounds, its summary and the kept model. Where `target` or `patience` ended it before its last
        round, `summary["ended"]` names the setting.

    Raises:
        UserError: With one sentence, where the settings or objects do not fit or the folder cannot be made.
        Stopped: Between two rounds, with everything saved in the folder.

    Examples:
        >>> run(Experiment(model="svm", rounds=2, batch=8)).summary["rounds"]
        2
    """
    check_experiment(experiment)
    check_functions(stop=stop)
    observers, device = check_observers(observers), resolve_device(device)
    if out is not None:
        check_folder(out)
        require_new(out)
    if progress:
        observers = (*observers, load_plugin("progress")(device))
    built = build(experiment, device, cohort=cohort, **custom)
    if cohort is None:
        warn_untimed(built.experiment, built.algorithm)
    _watch_end(built, [])
    keeper = Keeper(built.experiment.keep, built.state, statistics=built.statistics, guard=make_guard(built))
    environment = describe_environment(device)
    environment["probe"] = count_probe_rows(built.experiment)
    in_c = cohort is None and device == "cpu" and built.experiment.engine != "debug"
    if in_c and (kernels := built.problem.describe_kernels()):
        environment["kernels"] = kernels
    if cohort is not None:
        environment["sizes"] = cohort.sizes.tolist()
    if any(map(is_custom, asdict(built.experiment).values())):
        started_by = started_by or PYTHON
    if started_by:
        environment["started_by"] = started_by
    if built.directions:
        environment["better"] = built.directions
    if built.units:
        environment["units"] = built.units
        state_units(built.units)
    if epochs := parse_epochs(built.experiment.epochs):
        rows, batch = built.shares.sizes, built.experiment.batch
        fewest = epochs._replace(high=epochs.low).count_steps(int(rows.min()), batch)
        environment["steps"] = [fewest, epochs.count_steps(int(rows.max()), batch)]
    if built.init_sha256:
        environment["init_sha256"] = built.init_sha256
    if not built.data.inputs:
        environment["rows"] = describe_rows(built.data)
    if fixed := built.problem.hash_fixed():
        environment["fixed"] = fixed
    if out is None:
        stopping = stop or _never_stop
        return _run_rounds(built, device, keeper, [], None, observers, stopping, environment=environment)
    out = Path(out)
    counts = None  # of rows that only the clients have
    if len(built.shares.rows):
        counts = label_counts(built.shares, built.data.y, built.data.classes)
    with (
        lock_folder(out, make=True),
        RunFolder.make(out, built.experiment, environment, counts, _count_held(built)) as folder,
        stop_or_signal(stop) as stopping,
    ):
        built.cohort.memory.home = out / MEMORY_FILE
        return _run_rounds(built, device, keeper, [], folder, observers, stopping, environment=environment)


def resume(
    out: Path | str,
    *,
    rounds: int = 0,
    device: str = "auto",
    observers: Iterable[Observer] = (),
    progress: bool = False,
    data_dir: str | None = None,
    stop: StopRequest | None = None,
    cohort: Cohort | None = None,
    **custom: Unpack[CustomObjects],
) -> Run:
    """Resumes the run in a folder from its last checkpoint; the result is that of a run that was never interrupted.

    Args:
        out: The run folder.
        rounds: Rounds in all, where more are wanted than before; 0 leaves them as they are.
        device: As for `run`.
        observers: As for `run`.
        progress: As for `run`.
        data_dir: The folder of the data set, where it has moved.
        stop: As for `run`.
        cohort: As for `run`.
        **custom: The objects that the run was started with; others are rejected.

    Returns:
        The run, from its first round on.

    Raises:
        UserError: With one sentence, where the folder cannot be resumed.
        Stopped: As for `run`.
    """
    check_folder(out)
    check_functions(stop=stop)
    out, observers, device = Path(out), check_observers(observers), resolve_device(device)
    if progress:
        observers = (*observers, load_plugin("progress")(device))
    Run.open(out)
    with lock_folder(out):
        former = Run.open(out)
        require_files(out)
        by = find_starter(out)
        if by == REPLAY:
            raise UserError(f"{out} is a replay, which is not resumed; make it again with: {REPLAY} RUN")
        if cohort is None and by not in (RUN, PYTHON):
            raise UserError(f"{out} was made by {by}, over Flower nodes; resume it with: {how_to_resume(out)}")
        if by == PYTHON and not custom:
            objects = ", ".join(f"{key}={v}" for key, v in asdict(former.experiment).items() if is_custom(v))
            raise UserError(f"{out} was made with custom objects ({objects}); resume it with: {how_to_resume(out)}")
        e = replace(former.experiment, rounds=rounds or former.experiment.rounds)
        e = e if data_dir is None else replace(e, data_dir=data_dir)
        if is_path(e.init) and any((out / name).exists() for name in (LAST, FORMER)):
            built = build(replace(e, init="paper"), device, cohort=cohort, **custom)  # its file is not needed any more
            built = built._replace(experiment=replace(built.experiment, init=e.init))
        else:
            built = build(e, device, cohort=cohort, **custom)
            check_init(out, built)
        if cohort is None:
            warn_untimed(built.experiment, built.algorithm)
        keeper, note = find_progress(out, former, built, device)
        if note:
            _log.warning("%s", note)
        records = former.rounds[: keeper.round]
        if not _watch_end(built, records).ended:
            records = [drop_test_values(record, built.experiment) for record in records]
        with RunFolder.reopen(out, built.experiment, records) as folder, stop_or_signal(stop) as stopping:
            if note.endswith(FORMER):
                with guard_writing(out):
                    os.replace(out / FORMER, out / LAST)  # the next checkpoint would put the damaged one in its place
            spent = add_seconds(former, records)
            return _run_rounds(built, device, keeper, records, folder, observers, stopping, spent)


def _run_rounds(
    built: Built,
    device: str,
    keeper: Keeper,
    records: list[Round],
    folder: RunFolder | None,
    observers: tuple[Observer, ...],
    stopping: StopRequest,
    spent: float = 0.0,
    environment: Environment | None = None,
) -> Run:
    """The rounds that are left, then the closing summary; `spent` are the seconds of the run's former parts."""
    e, start, diverged = built.experiment, time.perf_counter(), ""
    path = folder.path if folder else None
    evaluator = ModelEvaluator(built, device)
    checkpointer, growth = Checkpointer(path, built), GrowthCheck(records, keeper.guard is not None)
    if keeper.guard and evaluator.needs_judges:
        keeper.guard.find_loss = evaluator.find_training_loss
    early = _watch_end(built, records)
    ended: EndReason | Literal[""] = early.ended
    rounds = federate(
        built.algorithm,
        built.cohort,
        keeper.state,
        keeper.round if ended else e.rounds,
        first=keeper.round,
        rollback=keeper.rollback,
        guard=keeper.guard,
        participation=invite_share(e),
        seed=e.seed,
        statistics=keeper.statistics,
        recent=growth.recent,
        steps=built.steps,
        count_rows=count_rows_of(e, built.algorithm),
        arrivals=built.cohort.find_arrivals if isinstance(built.cohort, AnswerBuffer) else None,
        clock=(get_number(records[-1], "clock") or 0.0) if records else 0.0,
    )
    observers = (*load_plugin("trackers")(e.track), *observers) if e.track else observers
    guard = guard_writing(path, RowsError) if path else contextlib.nullcontext()
    with observe(observers, e, path, records) as done, guard:
        try:
            if evaluator.judges_at_once and keeper.round == 0:
                keeper.kept_loss = evaluator.find_loss(0, keeper.state, keeper.kept, {})
            for state, record in rounds:
                keeper.judge(state, record, late=not evaluator.judges_at_once)
                tested, bare = keeper.round % e.test_every == 0 or keeper.round == e.rounds, record
                record = evaluator.evaluate_round(keeper.round, keeper.state, keeper.model, bare, tested)
                if early.judge(record) and not tested:  # the last round is always tested
                    record = evaluator.evaluate_round(keeper.round, keeper.state, keeper.model, bare, True)
                    early.judge(record)
                if evaluator.judges_at_once:
                    keeper.consider(evaluator.find_loss(keeper.round, keeper.state, keeper.model, record), record)
                if built.account:
                    record["epsilon"] = built.account.spent(keeper.round)
                growth.judge(record)
                if "guarded" in record:
                    log_of_results.warning(
                        "%s seed %d: round %d: %s", e.method, e.seed, keeper.round, record["guarded"]
                    )
                if "warning" in record:
                    log_of_results.warning("%s seed %d: %s", e.method, e.seed, record["warning"])
                records.append(record)
                last = keeper.round == e.rounds or bool(early.ended)
                if folder:
                    folder.write_round(record)
                if saved := last or keeper.round % e.checkpoint_every == 0:
                    checkpointer.save(keeper)
                for observer in observers:
                    observer.round(copy_record(record))
                asked = stopping() and not last
                if asked and folder:
                    if not saved:
                        checkpointer.save(keeper)
                    folder.write_stop(keeper.round, e.rounds)
                    raise Stopped(_describe_stop(keeper.round, e.rounds, folder.path))
                ended = "stop" if asked else early.ended
                if ended:
                    break
        except Diverged as error:
            diverged = str(error)
        last_loss, find_best = evaluator.find_last_loss(keeper), partial(evaluator.find_best_loss, keeper)
        replaced = keeper.end_at_best(last_loss, find_best) if ended != "target" else ""  # what reaches it is wanted
        if not evaluator.judges_at_once:
            keeper.choose(last_loss if e.keep == "best" and not replaced else -math.inf)
        summary: Summary = {
            "experiment": asdict(e),
            "tau_all": sum(sum(record["tau"]) for record in records),
            "seconds": round(spent + time.perf_counter() - start, 3),
            "rounds": len(records),
            "last": evaluator.describe(keeper.round, keeper.state, keeper.model),
            "kept": evaluator.describe(keeper.kept_round, keeper.state, keeper.kept),
        }
        if all("rows" in record for record in records):
            summary["rows"] = sum(record["rows"] for record in records)
        if records and "clock" in records[-1]:
            summary |= sum_time(records)
        if built.account:
            summary["epsilon"] = built.account.spent_in_all(keeper.round)
        if keeper.guard:
            summary["guarded"] = sum("guarded" in record for record in records) + bool(replaced)
        warned = [record["warning"] for record in records if "warning" in record]
        if replaced:
            warned.append(replaced)
            log_of_results.warning("%s seed %d: %s", e.method, e.seed, replaced)
        if not diverged and _learned_nothing(keeper, records):
            heard = any(record["ids"] or "guarded" in record for record in records)  # if only of what is not finite
            why = NOTHING_LEARNED if heard else NO_ANSWERS
            warned.append(why)
            log_of_results.warning("%s seed %d: %s", e.method, e.seed, why)
        if warned:
            summary["warnings"] = warned
        if diverged:
            summary["stopped"] = diverged
            log_of_results.warning("%s seed %d stopped: %s", e.method, e.seed, diverged)
        if ended:
            summary["ended"] = ended
            if ended != "stop":
                log_of_results.info("%s seed %d: %s", e.method, e.seed, describe_ending(e, ended, len(records)))
        model = {name: v.detach().cpu() for name, v in built.problem.state(keeper.kept).items()}
        if folder:
            folder.write_end(summary, model)
        done.append(Run(e, records, summary, model, path, built.directions, environment or {}))
        return done[0]


def _count_held(built: Built) -> dict[str, Tensor]:
    """[N] rows that clients hold back, by what for; of a pooled method, those of all clients together."""
    parts = {"val": built.held.val, "test": built.held.test} if built.held and holds_back(built.experiment) else {}
    sizes = {name: part.sizes for name, part in parts.items()}
    pooled = is_pooled(built.experiment.method)
    return {name: v.sum()[None] if pooled else v for name, v in sizes.items()}


def _watch_end(built: Built, records: list[Round]) -> EarlyStopping:
    """What ends this run before its last round; UserError where that cannot be judged."""
    first = built.problem.metrics[0]
    return EarlyStopping(built.experiment, first.name, first.better, records, first.unit)


def _never_stop() -> bool:
    return False


def _learned_nothing(keeper: Keeper, records: list[Round]) -> bool:
    """Whether the untrained model is what is handed out, because no round improved it."""
    guard = keeper.guard  # it may have gone back to the initial model in the last round
    returned = guard is not None and guard.numbers.best_round == 0 and torch.equal(keeper.kept, guard.best)
    untrained = returned or (keeper.keep == "best" and keeper.kept_round == 0)
    return bool(records) and (untrained or not any(record.get("accepted", True) for record in records))


def _describe_stop(done: int, rounds: int, folder: Path) -> str:
    return f"stopped after round {done} of {rounds}, all saved; resume it with: {how_to_resume(folder)}"


def is_custom(value: object) -> bool:
    """Whether a setting names an object that was given from Python."""
    return isinstance(value, str) and value.startswith(CUSTOM)


def resolve_device(device: object) -> str:
    """auto is CUDA where there is one; a torch.device without an index is taken by its name."""
    device = str(device) if isinstance(device, torch.device) else device
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device={show_value(device)} is not known; it is 'auto', 'cpu' or 'cuda'")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: there is no CUDA device; use cpu or auto")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
