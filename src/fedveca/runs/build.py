"""An experiment's parts: data, partition, problem, method and cohort, made to fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms import Algorithm
from fedveca.algorithms.registry import is_pooled, load_method
from fedveca.cohorts.aggregate import aggregation_rule
from fedveca.cohorts.contract import Cohort, CohortOptions
from fedveca.cohorts.debug import DebugCohort
from fedveca.cohorts.faults import Faults, FaultyCohort
from fedveca.cohorts.holdout import Holdout
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.local_loss import check_loss
from fedveca.cohorts.privacy import Account, Privacy, PrivateCohort, compose_sending, make_privacy
from fedveca.cohorts.transfer import PLAIN, VectorTransfer
from fedveca.errors import UserError, printable, show_value
from fedveca.runs.clock import time_cohort
from fedveca.runs.clock_settings import check_simulated
from fedveca.runs.experiment import Experiment, count_probe_rows, describe_task
from fedveca.runs.federate import StepRule
from fedveca.runs.guard import is_guarded
from fedveca.runs.local_steps import initial_steps, make_step_rule
from fedveca.runs.method_options import read_method_options
from fedveca.runs.overrides import Partition, name_objects, try_method
from fedveca.runs.recipes import apply_recipe
from fedveca.runs.resources import check_memory, check_model, check_rows
from fedveca.runs.schema import SCHEMA, Direction
from fedveca.runs.secure import make_secure_rule, secure_cohort
from fedveca.runs.setting_checks import is_path
from fedveca.runs.task_data import check_held, choose_sample, hold_back, holds_back, load_data
from fedveca.runs.weights import pack_model, read_weights
from fedveca.tasks import models
from fedveca.tasks.augment import Augmentation
from fedveca.tasks.datasets.dataset import Dataset, Inputs, prepare
from fedveca.tasks.datasets.lazy import take_first
from fedveca.tasks.goal import Metrics, display_name
from fedveca.tasks.losses import Rows
from fedveca.tasks.models import Model, Sample, Shape
from fedveca.tasks.names import CUSTOM
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem
from fedveca.tasks.validate import check_ids


class Built(NamedTuple):
    """An experiment's parts, ready for `federate`."""

    data: Dataset
    shares: Shares  # the rows that each client trains on
    problem: Problem
    algorithm: Algorithm
    cohort: Cohort
    state: Any
    experiment: Experiment  # with the names of the objects that were given
    account: Account | None = None  # of differential privacy
    statistics: Tensor = torch.empty(0)  # [S] the model's running statistics at the start
    init_sha256: str = ""  # of the file that init names
    steps: StepRule | None = None  # of each round, where they are drawn anew
    held: Holdout | None = None  # each client's rows in parts, where it holds some back

    def __repr__(self) -> str:
        """One line: what is to run, and how large it is."""
        rows, size = len(self.data.y), self.problem.size
        return f"Built({describe_task(self.experiment)}, {rows} training rows, {size} parameters)"

    @property
    def directions(self) -> dict[str, Direction]:
        """What custom metrics stated about themselves."""
        stated = {f"test_{metric.name}": metric.better for metric in self.problem.metrics}
        return {name: better for name, better in stated.items() if better and name not in SCHEMA}

    @property
    def units(self) -> dict[str, str]:
        """What custom metrics are measured in, as they stated."""
        stated = {f"test_{metric.name}": metric.unit for metric in self.problem.metrics}
        return {name: unit for name, unit in stated.items() if unit and name not in SCHEMA}


def build(
    experiment: Experiment,
    device: str = "cpu",
    data: Dataset | None = None,
    *,
    model: Model | None = None,
    loss: Rows | None = None,
    metric: Metrics | None = None,
    partition: Partition | None = None,
    method: Algorithm | None = None,
    augment: Augmentation | None = None,
    cohort: Cohort | None = None,
) -> Built:
    """Data, partition, problem, method and cohort; ValueError with one sentence where they do not fit.

    Where the clients are elsewhere `cohort` is given; their rows are then theirs, and need not be here.
    """
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"device={show_value(device)} is not known; it is 'cpu' or 'cuda'") from error
    given = {"data": data, "model": model, "loss": loss, "metric": metric, "partition": partition}
    e = name_objects(experiment, **given, method=method, augment=augment)
    if cohort is None:
        check_simulated(e)
        if data is None:
            check_rows(e)
        data, owned = load_data(e, data, partition, pool=not holds_back(e))
        held = hold_back(e, owned)
        check_held(e, held.val.sizes, held.test.sizes)
        shares = held.train
    else:
        counted = all(isinstance(getattr(cohort, name, None), Tensor) for name in ("sizes", "weights"))
        if data is None or not callable(cohort) or not counted:
            raise UserError(
                f"cohort={show_value(cohort)} needs sizes and weights, tensors, to be called for a round, and data=..."
            )
        if holds_back(e) and not callable(getattr(cohort, "evaluate", None)):
            raise UserError(f"cohort={show_value(cohort)} cannot evaluate its clients, as test_by={e.test_by} asks")
        shares = Shares(torch.empty(0, dtype=torch.int64), torch.cat([torch.zeros(1).long(), cohort.sizes.cumsum(0)]))
        held = None
    if partition is not None and not is_pooled(e.method):
        e = dataclasses.replace(e, clients=len(shares.sizes))
    check_model(e, data.x_test[0].numel(), data.classes or data.y_test[0].numel())
    sample = choose_sample(data.x_test, data.y_test, data.classes, data.pixels, data.inputs)
    if e.data.startswith(CUSTOM) or loss is not None or metric is not None:
        some = take_first(data.x_test)
        sample = prepare(some, data.pixels), data.y_test[: len(some)]
    shape = tuple(data.x_test.shape[1:])
    remake = partial(
        make_problem,
        e,
        shape,
        data.classes,
        model=model,
        loss=loss,
        metric=metric,
        augment=augment,
        sample=sample,
        inputs=data.inputs,
    )
    problem = remake()
    algorithm = _algorithm(e, method).with_layout(problem.layout)
    check_participation(e, algorithm, e.method)
    check_loss(algorithm, problem, data.y_test, f"method={e.method}")
    for rows, of in ((data.x, "the training data"), (data.x_test, "the test data")):
        said = f"the model ({display_name(model)})" if model is not None else f"model={e.model}"
        check_ids(problem, said, take_first(rows), of)
    tried = _make_plain_method(e) if method is None and ":" in e.method else method
    if tried is not None and cohort is None and e.engine != "debug":  # which names the round, client and step itself
        try_method(tried, problem, data, shares, e, device)
    w, running, found = make_start(e, problem)
    state = algorithm.init(w.to(device), initial_steps(e, shares.sizes))
    running = running.to(device)
    steps = make_step_rule(e, shares.sizes)
    check_statistics(e, problem)
    check_memory(e, algorithm, state, problem.statistics)
    if cohort is not None:
        if e.devices:
            raise UserError(f"devices={printable(e.devices)} is for simulations: these clients have devices already")
        return Built(data, shares, problem, algorithm, cohort, state, e, None, running, found, steps)
    faults = Faults(e.faults, len(shares.sizes), e.seed) if e.faults else None
    privacy, account = _make_privacy(e, algorithm, state) if e.dp_noise else (None, None)
    options = cohort_options(e)
    if e.secure == "on":
        options["aggregate"] = make_secure_rule(
            e, torch.ones_like(shares.sizes) if options["equal_weights"] else shares.sizes
        )
    options |= {
        "pixels": data.pixels,
        "send": compose_sending(privacy, faults),
        "held": held if holds_back(e) else None,
    }
    if e.engine == "ray":
        cohort = _on_ray(e, algorithm, remake, data, shares, options)
    elif e.engine == "debug":
        cohort = DebugCohort(algorithm, problem, data.x, data.y, shares, device=device, **options)
    else:
        cohort = LocalCohort(algorithm, problem, data.x, data.y, shares, device=device, **options)
    cohort = secure_cohort(e, cohort) if e.secure == "on" else cohort
    cohort = FaultyCohort(cohort, faults) if faults else cohort
    cohort = time_cohort(e, cohort, algorithm, options, faults) if e.devices else cohort
    cohort = PrivateCohort(cohort, privacy) if privacy else cohort
    return Built(data, shares, problem, algorithm, cohort, state, e, account, running, found, steps, held)


def make_start(e: Experiment, problem: Problem) -> tuple[Tensor, Tensor, str]:
    """w_0 [P], the running statistics [S], and the hash of the file that they come from, where `init` names one."""
    if not is_path(e.init):
        return problem.init(), problem.initial_statistics(), ""
    said = f"init={printable(e.init)}"
    found = read_weights(Path(e.init).expanduser(), said)
    return *pack_model(problem, found.tensors, said), found.sha256


def check_participation(e: Experiment, algorithm: Algorithm | type[Algorithm], name: str) -> None:
    """UserError where a method needs all clients, or whole steps of the server, and the settings give it less."""
    if algorithm.needs_whole_step and e.guard == "on":
        raise UserError(
            f"guard=on cannot go with method={name}, whose clients take the server's model for the mean of theirs; a "
            "shorter step would lead it to another point"
        )
    if algorithm.needs_whole_step and e.wire in ("int8", "topk"):
        raise UserError(
            f"wire={e.wire} cannot go with method={name}, whose clients take the server's model for the mean of "
            "theirs; take float32, float16 or bfloat16"
        )
    if algorithm.needs_everyone and e.participation < 1:
        raise UserError(
            f"participation={e.participation} cannot go with method={name}, which converges to another point where "
            "clients are absent; take participation=1"
        )
    if algorithm.chooses and e.dp_noise:
        raise UserError(
            f"dp_noise={e.dp_noise} cannot go with method={name}, which chooses clients by their losses: "
            "epsilon is counted for clients that are drawn"
        )


def check_statistics(e: Experiment, problem: Problem) -> None:
    """UserError where running statistics (BatchNorm's) do not go with the other settings."""
    if not problem.statistics:
        return
    if e.batch == 1:
        raise UserError("batch=1 is too few for BatchNorm, which needs the statistics of a batch; take 2 or more")
    if e.dp_noise:
        raise UserError(
            f"dp_noise={e.dp_noise} does not cover running statistics: take norm_stats=fixed, or a model with GroupNorm"
        )


def _make_privacy(e: Experiment, algorithm: Algorithm, state: Any) -> tuple[Privacy, Account]:
    return make_privacy(
        algorithm,
        algorithm.order(state),
        state.tau,
        clip=e.dp_clip,
        noise=e.dp_noise,
        bound=e.dp_bound,
        delta=e.dp_delta,
        noise_seed=e.dp_seed,
        wanted={"best": ("loss",), "rollback": ("after",), "last": ()}[e.keep],
        closing=e.keep == "best",
        participation=e.participation,
        seed=e.seed,
        faults=bool(e.faults or e.devices),
    )


def cohort_options(e: Experiment) -> CohortOptions:
    """The one place where settings become options of a cohort: the simulator, a server and its nodes ask here."""
    return {
        "batch": e.batch,
        "seed": e.seed,
        "probe": count_probe_rows(e),
        "sampling": e.sampling,
        "want_loss": e.keep != "last" or is_guarded(e) or (e.patience > 0 and not e.val),
        "want_loss_after": e.keep == "rollback",
        "memory_bytes": e.memory_mb * 2**20,
        "local_statistics": e.norm_stats == "local",
        "aggregate": aggregation_rule(e.aggregate, e.aggregate_clip, e.aggregate_trim),
        "equal_weights": e.weights == "uniform" or e.dp_noise > 0,
        "transfer": PLAIN if is_pooled(e.method) else VectorTransfer(e.wire, e.wire_share, e.seed),
    }


def make_problem(
    e: Experiment,
    shape: Shape,
    classes: int,
    *,
    model: Model | None = None,
    loss: Rows | None = None,
    metric: Metrics | None = None,
    augment: Augmentation | None = None,
    sample: Sample | None = None,
    inputs: Inputs = (),
) -> Problem:
    """The problem of an experiment on rows of `shape`, the same in a simulation, on a server and on its nodes.

    A custom `model`, `loss`, `metric` or `augment` replaces what the settings name; `sample` is prepared rows and their
    targets to try them on.
    """
    return models.model(
        e.model,
        shape,
        classes,
        init="paper" if is_path(e.init) else e.init,
        hidden=e.hidden,
        layers=e.layers,
        norm=e.norm,
        dropout=e.dropout,
        precision=e.precision,
        seed=e.seed,
        custom=model,
        sample=sample,
        loss=e.loss if loss is None else loss,
        metric=e.metric if metric is None else metric,
        norm_stats=e.norm_stats,
        compiled=e.compile == "on",
        inputs=inputs,
        augment=e.augment if augment is None else augment,
    )


def _algorithm(e: Experiment, custom: Algorithm | None) -> Algorithm:
    if custom is None:
        return make_method(e)
    if e.method_options:
        raise UserError(f"method_options={printable(e.method_options)} is for a method that is named; set the object's")
    return apply_recipe(e, custom)


def _on_ray(
    e: Experiment,
    algorithm: Algorithm,
    remake: Callable[[], Problem],
    data: Dataset,
    shares: Shares,
    options: CohortOptions,
) -> Cohort:
    """The clients on a Ray cluster; what its workers cannot do is rejected here."""
    if e.aggregate != "mean":
        raise UserError(
            f"aggregate={e.aggregate} needs engine=local: Ray's workers return sums, not each client's vectors"
        )
    try:
        from fedveca.cohorts.ray.cohort import RayCohort
    except ModuleNotFoundError as error:
        raise UserError("engine=ray needs the extra fedveca[ray]: pip install 'fedveca[ray]'") from error
    return RayCohort(
        algorithm,
        remake,
        data.x,
        data.y,
        shares,
        workers=e.workers,
        address=e.ray_address,
        gpus=e.worker_gpus,
        **options,
    )


def make_method(e: Experiment) -> Algorithm:
    """The method that the settings name, under their recipe."""
    return apply_recipe(e, _make_plain_method(e))


def _make_plain_method(e: Experiment) -> Algorithm:
    """The method itself; each of its fields that is a setting has that value."""
    trim = 0.0 if e.aggregate == "mean" else e.aggregate_trim  # what a method may distrust is what is cut off
    settings = dataclasses.asdict(e) | {"distrust": trim}
    algorithm = load_method(e.method).algorithm
    fields = [field.name for field in dataclasses.fields(algorithm)]  # type: ignore[arg-type]
    values = {name: settings[name] for name in fields if name in settings}
    return algorithm(**values, **read_method_options(e.method_options, algorithm, e.method, settings))
