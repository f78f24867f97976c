"""An experiment's parts: data, partition, problem, method and cohort, made to fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedveca.algorithms import Algorithm
from fedveca.algorithms.registry import is_adaptive, is_pooled, load_method
from fedveca.cohorts.aggregate import aggregation_rule
from fedveca.cohorts.contract import Cohort, CohortOptions
from fedveca.cohorts.debug import DebugCohort
from fedveca.cohorts.faults import Faults, FaultyCohort
from fedveca.cohorts.holdout import Holdout, hold_out
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.local_loss import check_loss
from fedveca.cohorts.privacy import Account, Privacy, PrivateCohort, compose_sending, make_privacy
from fedveca.cohorts.random import clients_per_round, draw_epochs
from fedveca.errors import UserError, explain_error, printable, show_value
from fedveca.runs.epoch_settings import parse_epochs
from fedveca.runs.experiment import Experiment, count_probe_rows, describe_task, find_default, is_path
from fedveca.runs.federate import StepRule
from fedveca.runs.method_options import read_method_options
from fedveca.runs.overrides import Partition, name_objects, try_method
from fedveca.runs.recipes import apply_recipe
from fedveca.runs.resources import check_memory, check_model, check_rows
from fedveca.runs.schema import SCHEMA, Direction, RowForm
from fedveca.runs.weights import pack_model, read_weights
from fedveca.tasks import models
from fedveca.tasks.augment import Augmentation
from fedveca.tasks.datasets import dataset as datasets
from fedveca.tasks.datasets.dataset import CHANNELS, Dataset, Inputs, measure_channels, prepare
from fedveca.tasks.datasets.lazy import LazyRows, take_first
from fedveca.tasks.losses import Rows
from fedveca.tasks.models import Model, Sample, Shape
from fedveca.tasks.names import CUSTOM
from fedveca.tasks.noise import add_noise
from fedveca.tasks.partition import Shares, from_lists, partition
from fedveca.tasks.problem import Problem
from fedveca.tasks.validate import Metrics, check_ids, display_name

MOST_STEPS = 10**8  # local steps of a client in one round


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
        if data is None:
            check_rows(e)
        data, owned = load_data(e, data, partition, pool=not holds_back(e))
        held = hold_back(e, owned)
        check_held(e, held.val.sizes, held.test.sizes)
        shares = held.train
    else:
        if data is None or not callable(cohort) or not isinstance(getattr(cohort, "sizes", None), Tensor):
            raise UserError(
                f"cohort={show_value(cohort)} needs sizes, a tensor, to be called for a round, and data=..."
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
        return Built(data, shares, problem, algorithm, cohort, state, e, None, running, found, steps)
    faults = Faults(e.faults, len(shares.sizes), e.seed) if e.faults else None
    privacy, account = _make_privacy(e, algorithm, state) if e.dp_noise else (None, None)
    options = cohort_options(e)
    options |= {
        "pixels": data.pixels,
        "send": compose_sending(privacy, faults),
        "equal_weights": bool(privacy),
        "held": held if holds_back(e) else None,
    }
    if e.engine == "ray":
        cohort = _on_ray(e, algorithm, remake, data, shares, options)
    elif e.engine == "debug":
        cohort = DebugCohort(algorithm, problem, data.x, data.y, shares, device=device, **options)
    else:
        cohort = LocalCohort(algorithm, problem, data.x, data.y, shares, device=device, **options)
    cohort = FaultyCohort(cohort, faults) if faults else cohort
    cohort = PrivateCohort(cohort, privacy) if privacy else cohort
    return Built(data, shares, problem, algorithm, cohort, state, e, account, running, found, steps, held)


def make_start(e: Experiment, problem: Problem) -> tuple[Tensor, Tensor, str]:
    """w_0 [P], the running statistics [S], and the hash of the file that they come from, where `init` names one."""
    if not is_path(e.init):
        return problem.init(), problem.initial_statistics(), ""
    said = f"init={printable(e.init)}"
    found = read_weights(Path(e.init).expanduser(), said)
    return *pack_model(problem, found.tensors, said), found.sha256


def choose_sample(x: Tensor | LazyRows, y: Tensor, classes: int, pixels: str, inputs: Inputs) -> Sample | None:
    """Real rows to try a model on, where random numbers and one label per row would not do."""
    usual = classes and x.dtype != torch.int64 and y.dim() == 1 and not inputs
    if usual:
        return None
    some = take_first(x)
    return prepare(some, pixels), y[: len(some)]


def check_participation(e: Experiment, algorithm: Algorithm | type[Algorithm], name: str) -> None:
    """UserError where a method needs all clients, or whole steps of the server, and the settings give it less."""
    if algorithm.needs_whole_step and e.guard == "on":
        raise UserError(
            f"guard=on cannot go with method={name}, whose clients take the server's model for the mean of theirs; a "
            "shorter step would lead it to another point"
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
        faults=bool(e.faults),
    )


def cohort_options(e: Experiment) -> CohortOptions:
    """The one place where settings become options of a cohort: the simulator, a server and its nodes ask here."""
    return {
        "batch": e.batch,
        "seed": e.seed,
        "probe": count_probe_rows(e),
        "sampling": e.sampling,
        "want_loss": e.keep != "last" or e.guard == "on" or (e.patience > 0 and not e.val),
        "want_loss_after": e.keep == "rollback",
        "memory_bytes": e.memory_mb * 2**20,
        "local_statistics": e.norm_stats == "local",
        "aggregate": aggregation_rule(e.aggregate, e.aggregate_clip, e.aggregate_trim),
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


def describe_rows(data: Dataset) -> RowForm:
    """What a model of these data takes."""
    return {
        "shape": list(data.x_test.shape[1:]),
        "tokens": data.x_test.dtype == torch.int64,
        "targets": list(data.y_test.shape[1:]),
        "classes": data.classes,
        "pixels": data.pixels,
    }


def holds_back(e: Experiment) -> bool:
    """Whether clients hold rows back, to be evaluated only."""
    return e.val > 0 or e.test_by != "server"


def hold_back(e: Experiment, owned: Shares) -> Holdout:
    """Each client's rows in parts; the one client of a pooled method trains on what all clients would.

    The simulator and a node, which has its own rows only, ask here.
    """
    held = hold_out(owned, e.seed, val=e.val, test=e.test_share if e.test_by != "server" else 0.0)
    if is_pooled(e.method) and holds_back(e):
        rows = torch.unique(held.train.rows)
        return held._replace(train=Shares(rows, torch.tensor([0, len(rows)])))
    return held


def check_held(e: Experiment, val: Tensor, test: Tensor) -> None:
    """UserError where no client has a row to evaluate; `val` and `test` [N] are the rows that each holds back."""
    for name, wanted, sizes in (("val", e.val > 0, val), ("test_share", e.test_by != "server", test)):
        if wanted and int(sizes.sum()) == 0:
            raise UserError(f"{name}={getattr(e, name)} leaves no client a row to hold back; take a larger share")


def load_data(
    e: Experiment,
    data: Dataset | None = None,
    custom: Partition | None = None,
    *,
    pool: bool = True,
) -> tuple[Dataset, Shares]:
    """The data set and which client owns which of its rows; one client owns all for a pooled method, with `pool`."""
    if data is None:
        data = datasets.load(e.data, e.data_dir, clients=e.clients, heterogeneity=e.heterogeneity, seed=e.seed)
    if e.pixels in ("unit", "standardised", CHANNELS) and e.pixels != data.pixels and data.x.dim() != 4:
        raise UserError(f"pixels={e.pixels} needs images; rows of {e.data} have the shape {list(data.x.shape[1:])}")
    if e.pixels == CHANNELS:
        moments = data.channels or measure_channels(data.x)
        data = dataclasses.replace(data, pixels=moments.describe())
    elif e.pixels != "auto":
        data = dataclasses.replace(data, pixels=e.pixels)
    if e.batch > len(data.y):
        raise UserError(f"batch={e.batch} is more than the {len(data.y)} training rows; take a smaller one")
    pooled = pool and is_pooled(e.method)
    shares = _deal_rows(e, data, custom, alone=pooled and not e.feature_noise)
    if e.feature_noise:  # noise is the owner's: a client's rows are copies of its own, in its order
        clients = len(shares.sizes)
        x = add_noise(data.x, shares, clients, e.feature_noise, e.seed, pixels=data.pixels, inputs=data.inputs)
        writer = None if data.writer is None else data.writer[shares.rows]
        data = dataclasses.replace(data, x=cast(Tensor, x), y=data.y[shares.rows], writer=writer)
        rows = torch.arange(len(shares.rows))
        shares = Shares(rows, torch.tensor([0, len(rows)]) if pooled else shares.start)
    return data, shares


def _deal_rows(e: Experiment, data: Dataset, custom: Partition | None, alone: bool) -> Shares:
    """Which client owns which rows; with `alone`, one client owns all."""
    if custom is None:
        try:
            return partition(
                "case1" if alone else e.partition,
                data.y,
                data.classes,
                1 if alone else e.clients,
                seed=e.seed,
                concentration=e.concentration,
                shards=e.shards,
                labels_per_client=e.labels_per_client,
                exponent=e.exponent,
                writer=data.writer,
            )
        except UserError as error:
            if alone or e.partition != find_default("partition", e):
                raise
            raise UserError(f"{error} (partition={e.partition} is the default with data={e.data})") from error
    if callable(custom):
        try:
            custom = custom(data, e.clients, e.seed)
        except Exception as error:
            raise UserError(f"partition ({e.partition}) fails: {explain_error(error)}") from error
    shares = from_lists(custom, len(data.y))
    return from_lists([torch.unique(shares.rows)], len(data.y)) if alone else shares


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


def initial_steps(e: Experiment, sizes: Tensor) -> Tensor:
    """[N] tau_(0,i): max(1, ceil(E D_i / B)) where epochs are given, with the most of them where they are random.

    Else it is the paper's fair share floor(tau_all / K * D_i / D) where tau_all is given, or tau_0. Where only a share
    of the clients takes part in a round, each takes so many more of tau_all.
    """
    if epochs := parse_epochs(e.epochs):
        check_epochs(e.epochs, e.method)
        tau = [epochs.count_steps(size, e.batch) for size in sizes.tolist()]
        if max(tau) > MOST_STEPS:
            raise UserError(
                f"epochs={e.epochs} gives a client {max(tau)} local steps per round; at most {MOST_STEPS}: "
                "take fewer epochs, or a larger batch"
            )
        return torch.tensor(tau)
    if is_adaptive(e.method) or not e.tau_all:
        return torch.full_like(sizes, e.tau_0)
    rows = e.rounds * int(sizes.sum()) * clients_per_round(len(sizes), e.participation)
    tau = [max(1, e.tau_all * size * len(sizes) // rows) for size in sizes.tolist()]  # products may pass int64
    if max(tau) > MOST_STEPS:
        most = e.tau_all * MOST_STEPS // max(tau)
        raise UserError(
            f"tau_all={e.tau_all} gives a client {max(tau)} local steps per round; at most {MOST_STEPS}: "
            f"take more rounds, or tau_all of {most} or less"
        )
    return torch.tensor(tau)


def check_epochs(text: str, method: object) -> None:
    """UserError where a method that chooses its own local steps is given random ones."""
    epochs = parse_epochs(text)
    if epochs and epochs.random and is_adaptive(method):
        raise UserError(
            f"epochs={text} cannot go with method={method}, which chooses its local steps itself; "
            "name one number of epochs, for its start"
        )


def make_step_rule(e: Experiment, sizes: Tensor) -> StepRule | None:
    """The local steps of each round where epochs are random: max(1, ceil(E D_i / B)), E drawn anew; else None."""
    epochs = parse_epochs(e.epochs)
    if epochs is None or not epochs.random:
        return None
    low, high = int(epochs.low), int(epochs.high)

    def count(k: int, ids: Tensor) -> Tensor:
        rows = draw_epochs(e.seed, k, ids, low, high) * sizes[ids]
        return (-(-rows // e.batch)).clamp(min=1)

    return count
