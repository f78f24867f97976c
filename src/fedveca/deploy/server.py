"""The server's half of a deployment: an experiment's rounds over the nodes of a Flower federation.

PyTorch is loaded when it is needed: a Flower app imports both halves, on the nodes too, for every message.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveca.errors import UserError

if TYPE_CHECKING:
    from fedveca.runs.experiment import Experiment
    from fedveca.runs.folder import Run
    from fedveca.tasks.datasets.dataset import Dataset

STATE = "FEDVECA_SERVER_STATE"  # a file that says which process serves, and why it ended
NODES = "FEDVECA_NODES"  # a file that says which Flower node is which client


def serve(grid: Any, context: Any, data: Dataset | None = None) -> Run:
    """Runs the experiment of Flower's run-config over the nodes: call it in your ServerApp's main.

    Beside the settings of an experiment the run-config may hold `out`, the run folder, and `resume`, a run folder
    to go on with. The test rows are those of `data`, of FEDVECA_TEST_DATA or of the experiment's data set.
    """
    with _told():
        from fedveca.deploy.log_observer import LogObserver
        from fedveca.runs.experiment import FIELDS, Experiment
        from fedveca.runs.folder import Run
        from fedveca.runs.interrupt import FLOWER, LOCAL
        from fedveca.runs.run import resume, run

        words = dict(context.run_config)
        settings = {key: value for key, value in words.items() if key in FIELDS}
        former = str(words.get("resume", ""))
        e = Run.open(former).experiment if former else Experiment(**settings)
        test = data or load_test_data(e)
        cohort = make_cohort(grid, e, test)
        observers = [LogObserver()]
        if former:
            rounds = max(settings.get("rounds", 0), e.rounds)
            return resume(former, rounds=rounds, observers=observers, data=test, cohort=cohort)
        out = Path(str(words.get("out", "")) or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{e.method}-flower")
        by = LOCAL if STATE in os.environ else FLOWER
        return run(e, out, observers=observers, data=test, cohort=cohort, started_by=by)


def make_cohort(grid: Any, e: Experiment, data: Dataset, say: Callable[[str], None] = print) -> Any:
    """The federation's clients as a cohort; returns when all are there."""
    from fedveca.cohorts.aggregate import aggregation_rule
    from fedveca.cohorts.flower.cohort import FlowerCohort
    from fedveca.runs.build import make_method

    check_deployable(e)
    return FlowerCohort(
        grid,
        make_method(e),
        e.clients,
        {"classes": data.classes, "pixels": data.pixels},
        loss=e.keep != "last",
        after=e.keep == "rollback",
        wire=e.wire,
        timeout=e.round_timeout,
        least=e.min_clients,
        aggregate=aggregation_rule(e.aggregate, e.aggregate_clip, e.aggregate_trim),
        say=say,
        nodes=_bound_nodes(),
    )


def _bound_nodes() -> dict[int, int] | None:
    """Which Flower node has which client's key, where whoever registered the keys wrote it down."""
    path = os.environ.get(NODES, "")
    return {int(client): int(node) for client, node in json.loads(Path(path).read_text()).items()} if path else None


def check_deployable(e: Experiment) -> None:
    """Raises ValueError for an experiment that real nodes cannot run."""
    from fedveca.errors import printable
    from fedveca.runs.experiment import METHODS
    from fedveca.tasks.custom import CUSTOM

    if e.method == "centralised":
        others = ", ".join(name for name in METHODS if name != e.method)
        raise UserError(f"method=centralised has no clients; the methods that can be deployed are {others}")
    for name in ("method", "data", "model", "loss", "metric", "partition"):
        if getattr(e, name).startswith(CUSTOM):
            value = printable(ascii(getattr(e, name)))
            raise UserError(f"{name}={value} is a Python object; nodes need a name that they know")
    if ":" in e.model and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", e.model, re.ASCII):
        raise UserError(f"model={printable(ascii(e.model))} is not of the form package.module:factory")
    if e.engine != "local":
        raise UserError(f"engine={e.engine} is for simulations; the clients of a deployment are its nodes")
    for name in ("faults", "dp_noise"):
        if getattr(e, name):
            raise UserError(f"{name}={getattr(e, name)} is for simulations; real nodes do not take it yet")
    if e.min_clients > e.clients:
        raise UserError(f"min_clients={e.min_clients} is more than clients={e.clients}")


def load_test_data(e: Experiment) -> Dataset:
    """What the server evaluates on."""
    from fedveca.runs.build import load_data
    from fedveca.tasks.datasets.dataset import Dataset

    if own := os.environ.get("FEDVECA_TEST_DATA", ""):
        import torch

        from fedveca.deploy.node_process import own_rows

        x, y = own_rows(own, "FEDVECA_TEST_DATA")
        pixels = e.pixels if e.pixels != "auto" else "unit" if x.dtype == torch.uint8 and x.dim() in (3, 4) else "as-is"
        return Dataset(e.data, x[:0], y[:0], x, y, int(y.max()) + 1, pixels, None)
    data = load_data(e)[0]
    return dataclasses.replace(data, writer=None)


@contextmanager
def _told() -> Iterator[None]:
    """Tells who started the federation how its server fares."""
    path = os.environ.get(STATE)
    if not path:
        yield
        return
    state = {"pid": os.getpid(), "ended": False, "error": "", "wrong": False}
    _put(Path(path), state)
    try:
        yield
    except BaseException as error:
        state |= {"error": str(error) or repr(error), "wrong": isinstance(error, ValueError)}
        raise
    finally:
        _put(Path(path), state | {"ended": True})


def _put(path: Path, state: dict[str, Any]) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(state))
    os.replace(draft, path)
