"""The server's half of a deployment: an experiment's rounds over the nodes of a Flower federation.

PyTorch is loaded when it is needed: a Flower app imports both halves, on the nodes too, for every message.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from fedveca.errors import UserError
from fedveca.runs.files import write_atomic

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

    from fedveca.cohorts.flower.answers import NodeRows, NodeTask
    from fedveca.cohorts.flower.cohort import FlowerCohort
    from fedveca.cohorts.flower.forms import NodeForm
    from fedveca.runs.experiment import Experiment
    from fedveca.runs.folder import Run
    from fedveca.runs.observers import Observer
    from fedveca.tasks.datasets.dataset import Dataset

STATE = "FEDVECA_SERVER_STATE"  # names a file in which the server says which process it is, and how it ended
NODES = "FEDVECA_NODES"  # names a file that says which Flower node is which client
TEST_DATA = "FEDVECA_TEST_DATA"  # names the rows to test on


class ServerStatus(TypedDict):
    """What a server reports to the process that started its federation."""

    pid: int
    ended: bool
    error: str
    user_error: bool  # whether the error is a mistake in what the user gave


def serve(grid: Grid, context: Context, data: Dataset | None = None) -> Run:
    """Runs the experiment of Flower's run-config over the nodes: call it in your ServerApp's main.

    Args:
        grid: Flower's grid, which reaches the nodes.
        context: Flower's context. Its run-config holds settings of an `Experiment` under their own names, and may
            hold `out`, the run folder to write, or `resume`, a run folder to resume.
        data: the test rows; without it those that FEDVECA_TEST_DATA names, else those of the experiment's data set.
            With test_by=client the server needs none, and reads none.

    Returns:
        The run, as from `fedveca.run`.

    Raises:
        UserError: if a setting is invalid or the experiment cannot be deployed.
        RuntimeError: if too few clients answer, again and again; the run can be resumed.
    """
    with _report_status():
        from fedveca.deploy.client_rows import ClientRowsObserver, read_client_rows
        from fedveca.deploy.metered_grid import MeteredGrid
        from fedveca.deploy.monitoring import RUN_FILE
        from fedveca.deploy.node_process import make_experiment
        from fedveca.deploy.pace import describe_pace
        from fedveca.deploy.private_api import API_FOLDER
        from fedveca.monitor.log_observer import LogObserver
        from fedveca.monitor.settings import MonitorSettings, read_monitor
        from fedveca.runs.experiment import name_folder
        from fedveca.runs.folder import Run
        from fedveca.runs.interrupt import FLOWER, LOCAL
        from fedveca.runs.run import resume, run

        observers: list[Observer] = []
        settings = MonitorSettings()
        if API_FOLDER in os.environ:
            folder = Path(os.environ[API_FOLDER])
            settings, metered = read_monitor(folder), MeteredGrid(grid, folder)
            grid = cast("Grid", metered)
            if settings.port:
                from fedveca.monitor.run_metrics import RunMetrics

                observers.append(RunMetrics(folder / RUN_FILE, metered.read_parts, lambda: metered.connected))
        observers.insert(0, LogObserver(settings.log))
        if sentence := describe_pace():
            logging.getLogger(__name__).info("%s", sentence)
        config = dict(context.run_config)
        if config.get("check"):
            return _check(grid, make_experiment(config), str(config["check"]), data)
        former, out = (str(config.get(name, "")) for name in ("resume", "out"))
        e = Run.open(former).experiment if former else make_experiment(config)
        if former:
            e = dataclasses.replace(e, rounds=max(int(config.get("rounds", 0)), e.rounds))
        if e.test_by == "client" and data is None:
            cohort, test = join_without_data(grid, e)
        else:
            test = data or load_test_data(e)
            cohort = make_cohort(grid, e, test, known=read_client_rows(Path(former), e.clients) if former else None)
        observers.append(ClientRowsObserver(cohort))
        if former:
            return resume(former, rounds=e.rounds, observers=observers, data=test, cohort=cohort)
        out = out or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{name_folder(e.method)}-flower"
        by = LOCAL if STATE in os.environ else FLOWER
        return run(e, out, observers=observers, data=test, cohort=cohort, started_by=by)


def _check(grid: Grid, e: Experiment, words: str, data: Dataset | None) -> Run:
    """Asks the nodes whether they are ready, in place of training; `words` say how long, and where to write it."""
    from fedveca.deploy.check import check_nodes, write_check
    from fedveca.runs.folder import Run

    wait, timeout, place = words.split(" ", 2)
    out = Path(place)
    try:
        check_deployable(e)
        note: dict[str, bool | int | float | str] = {}
        if e.test_by != "client" or data is not None:
            task = _make_task(e, data or load_test_data(e))
            note = {**task.note, "size": task.layout.size}
        write_check(out, check_nodes(grid, e.clients, note, _read_nodes(), float(wait), float(timeout)))
    except Exception as error:
        write_check(out, [], f"the server cannot check its nodes: {error}")
        raise
    return Run(e, [], {})


def make_cohort(
    grid: Grid,
    e: Experiment,
    data: Dataset,
    say: Callable[[str], None] = print,
    known: Mapping[int, NodeRows] | None = None,
) -> FlowerCohort:
    """The federation's clients as a cohort; returns when all of them are connected.

    Where their rows are `known` from the run that is resumed, those that are away are waited for a minute.
    """
    return _connect(grid, e, _make_task(e, data), say, known)


def join_without_data(grid: Grid, e: Experiment, say: Callable[[str], None] = print) -> tuple[FlowerCohort, Dataset]:
    """The clients, and what stands for a data set at a server that has none: two rows of zeros, of the nodes' form."""
    found: list[Dataset] = []

    def make_task(form: NodeForm) -> NodeTask:
        found.append(_make_rows(e, form))
        return _make_task(e, found[0])

    return _connect(grid, e, make_task, say), found[0]


def _connect(
    grid: Grid,
    e: Experiment,
    task: NodeTask | Callable[[NodeForm], NodeTask],
    say: Callable[[str], None],
    known: Mapping[int, NodeRows] | None = None,
) -> FlowerCohort:
    from fedveca.cohorts.flower.buffered import BufferedFlowerCohort
    from fedveca.cohorts.flower.cohort import FlowerCohort
    from fedveca.cohorts.flower.secure_cohort import SecureFlowerCohort
    from fedveca.runs.build import cohort_options, make_method
    from fedveca.runs.clock import find_buffer
    from fedveca.runs.task_data import check_held

    check_deployable(e)
    options, method = cohort_options(e), make_method(e)
    size, at_once = find_buffer(e, method, e.clients) if e.schedule == "buffered" else (0, 0)
    kind: Callable[..., FlowerCohort] = BufferedFlowerCohort if e.schedule == "buffered" else FlowerCohort
    if e.secure == "on":
        kind = partial(SecureFlowerCohort, secure_threshold=e.secure_threshold)
    cohort = kind(
        grid,
        method,
        e.clients,
        task,
        want_loss=options["want_loss"],
        want_loss_after=options["want_loss_after"],
        transfer=options["transfer"],
        timeout=e.round_timeout,
        deadline=e.deadline or math.inf,
        min_clients=e.min_clients,
        aggregate=options["aggregate"],
        equal_weights=options["equal_weights"],
        say=say,
        nodes=_read_nodes(),
        known=known,
    )
    if isinstance(cohort, BufferedFlowerCohort):
        cohort.set_buffer(size=size, at_once=at_once, staleness=e.staleness, seed=e.seed)
    check_held(e, cohort.held["val"], cohort.held["test"])
    return cohort


def _make_task(e: Experiment, data: Dataset) -> NodeTask:
    """What nodes and their answers must agree with, by the rows at the server."""
    import torch

    from fedveca.cohorts.flower.answers import NodeTask
    from fedveca.cohorts.scores import LOSS
    from fedveca.runs.build import make_problem
    from fedveca.runs.task_data import choose_sample
    from fedveca.tasks.module_problem import ModuleProblem

    sample = choose_sample(data.x_test, data.y_test, data.classes, data.pixels, data.inputs)
    shape = tuple(data.x_test.shape[1:])
    problem = make_problem(e, shape, data.classes, sample=sample, inputs=data.inputs)
    note: dict[str, bool | int | float | str] = {"classes": data.classes, "pixels": data.pixels}
    note |= {"tokens": True} if data.x_test.dtype == torch.int64 else {}
    note |= {"fixed": fixed} if (fixed := problem.hash_fixed()) else {}
    scores = {LOSS: (0.0, math.inf)}
    for metric in problem.metrics:
        if not metric.table:
            scores[metric.name] = (0.0, 1.0) if metric.unit == "share" else (-math.inf, math.inf)
    variances = problem.find_variances() if isinstance(problem, ModuleProblem) else None
    return NodeTask(note, problem.statistics, scores, problem.layout, variances)


def _make_rows(e: Experiment, form: NodeForm) -> Dataset:
    """Rows that have the form of the nodes' and nothing else: a model is built and tried on them, never tested."""
    import torch

    from fedveca.tasks.datasets.dataset import Dataset

    x = torch.zeros(2, *form.shape, dtype=torch.int64 if form.tokens else torch.float32)
    y = torch.zeros(2, *form.targets, dtype=torch.int64 if form.classes else torch.float32)
    return Dataset(e.data, x[:0], y[:0], x, y, form.classes, form.pixels, None)


def _read_nodes() -> Mapping[int, int] | None:
    """Which Flower node has which client's key, where whoever registered the keys wrote it down."""
    from fedveca.deploy.nodes_file import NodeTable

    path = os.environ.get(NODES, "")
    return NodeTable(Path(path)) if path else None


def check_deployable(e: Experiment) -> None:
    """Raises UserError for an experiment that real nodes cannot run."""
    from fedveca.algorithms.registry import deployable_methods, is_pooled
    from fedveca.errors import printable
    from fedveca.tasks.names import CUSTOM

    if is_pooled(e.method):
        others = ", ".join(deployable_methods())
        raise UserError(f"method={e.method} has no clients; the methods that can be deployed are {others}")
    for name in ("method", "data", "model", "loss", "metric", "partition", "augment"):
        if getattr(e, name).startswith(CUSTOM):
            value = printable(ascii(getattr(e, name)))
            raise UserError(f"{name}={value} is a Python object; nodes need a name that they know")
    for name, form in (("model", "package.module:factory"), ("method", "package.module:Class")):
        value = getattr(e, name)
        if ":" in value and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", value, re.ASCII):
            raise UserError(f"{name}={printable(ascii(value))} is not of the form {form}")
    if e.engine != "local":
        raise UserError(f"engine={e.engine} is for simulations; the clients of a deployment are its nodes")
    for name in ("faults", "dp_noise"):
        if getattr(e, name):
            raise UserError(f"{name}={getattr(e, name)} is for simulations; real nodes do not support it yet")
    if e.secure == "on":
        from fedveca.runs.secure import find_quorum

        find_quorum(e, e.clients)
    if e.min_clients > e.clients:
        raise UserError(f"min_clients={e.min_clients} is more than clients={e.clients}")
    if e.devices:
        raise UserError(f"devices={printable(e.devices)} is for simulations; the nodes of a deployment have their own")
    if e.deadline > e.round_timeout:
        raise UserError(f"deadline={e.deadline} is more than round_timeout={e.round_timeout}, after which no one waits")
    if e.buffer and e.min_clients > e.buffer:
        raise UserError(f"min_clients={e.min_clients} is more than buffer={e.buffer}, the answers of a round")


def load_test_data(e: Experiment) -> Dataset:
    """What the server tests on: what FEDVECA_TEST_DATA names, else the test rows of the experiment's data set."""
    from fedveca.runs.task_data import load_data

    name = os.environ.get(TEST_DATA, "")
    if not name:
        return dataclasses.replace(load_data(e)[0], writer=None)
    from fedveca.deploy.node_process import interpret_rows, load_node_rows

    if e.pixels == "channels":
        raise UserError(
            f"pixels=channels needs the means of the training rows, which a server with {TEST_DATA} does not have; "
            "take unit or standardised"
        )
    found = interpret_rows(load_node_rows(name, TEST_DATA), e)
    return dataclasses.replace(found, x=found.x[:0], y=found.y[:0], writer=None)


@contextmanager
def _report_status() -> Iterator[None]:
    """Reports how the server fares, where the process that started the federation named a file for it."""
    path = os.environ.get(STATE)
    if not path:
        yield
        return
    status: ServerStatus = {"pid": os.getpid(), "ended": False, "error": "", "user_error": False}
    _write_status(Path(path), status)
    try:
        yield
    except BaseException as error:
        status["error"], status["user_error"] = str(error) or repr(error), isinstance(error, UserError)
        raise
    finally:
        status["ended"] = True
        _write_status(Path(path), status)


def _write_status(path: Path, status: ServerStatus) -> None:
    write_atomic(path, json.dumps(status).encode())
