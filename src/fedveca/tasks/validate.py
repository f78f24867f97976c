"""A module, a loss and metrics are tried on a few rows before they are used: what does not fit is named here."""

from __future__ import annotations

import logging
from copy import deepcopy
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedveca.errors import UserError, explain_error
from fedveca.tasks.augment import Augmentation, make_augmentation
from fedveca.tasks.datasets.dataset import Inputs, unpack_inputs
from fedveca.tasks.goal import Goal, check_classes, display_name
from fedveca.tasks.live_bytes import LiveBytes
from fedveca.tasks.losses import cross_entropy, per_row
from fedveca.tasks.metrics import METRICS, Auc, Metric, RowMetric, WholeMetric
from fedveca.tasks.module_problem import FEW, ModuleProblem
from fedveca.tasks.problem import Problem
from fedveca.tasks.randomness import DrawFrom
from fedveca.tasks.replica import to_scores

_log = logging.getLogger(__name__)
ROWS = 8  # tried at a time
ALL, FIRST, _LAST = slice(None), slice(0, 1), slice(-1, None)


def validate_model(
    module: nn.Module,
    said: str,
    goal: Goal,
    x: Tensor,
    y: Tensor,
    precision: str,
    *,
    norm_stats: str = "average",
    inputs: Inputs = (),
    compiled: bool = False,
    augment: str | Augmentation = "",
) -> ModuleProblem:
    """The module with its goal as a problem; UserError with one sentence where they do not fit rows x and y."""
    make = partial(ModuleProblem, module, said, goal.loss, goal.metrics, precision, inputs=inputs)
    network = make()
    if not torch.is_grad_enabled():
        raise UserError(f"{said} cannot be trained where gradients are off: leave torch.no_grad or inference_mode")
    two, targets = x[:2].clone(), y[:2]
    try:
        scores, again = (network.scores(network.init(), two) for _ in range(2))
    except UserError as error:
        raise UserError(f"{said}: {error}") from error
    except Exception as error:
        hint = ""
        if two.is_floating_point() and any(isinstance(part, nn.Embedding) for part in module.modules()):
            hint = " (an Embedding wants whole numbers: from_arrays(..., tokens=True))"
        raise UserError(
            f"{said} does not fit rows of shape {list(two.shape[1:])}: {explain_error(error)}{hint}"
        ) from error
    want = [*targets.shape, goal.classes]
    if list(scores.shape) != want:
        got = f"{said} gives scores {list(scores.shape)} for {len(two)} rows"
        if goal.loss is cross_entropy:
            raise UserError(f"{got}; {goal.classes} classes need {want}")
        for metric in (each for each in goal.metrics if each.labels):
            if not goal.classes:
                raise UserError(f"{got}, and metric={metric.name} is for labels; y holds numbers: take absolute_error")
            if not isinstance(metric, Auc) or scores.numel() != targets.numel():
                raise UserError(f"{got}, and metric={metric.name} needs {want}; give a custom metric")
    check_classes(goal.metrics, goal.classes)
    if scores.dim() == 0 or len(scores) != len(two):
        raise UserError(f"{said} gives scores {list(scores.shape)} for {len(two)} rows; the rows come first")
    if bool(scores.isnan().any()):
        raise UserError(f"{said} gives NaN as a score of the first rows; its scores must be numbers")
    if not torch.equal(scores, again):
        if not torch.equal(two, x[:2]):
            raise UserError(f"{said} changes its input in place; let it work on a copy, x.clone()")
        raise UserError(
            f"{said} gives other scores each time in evaluation mode: randomness or state within it does not follow "
            "the seed; draw only where self.training is true"
        )
    if not scores.requires_grad:
        raise UserError(f"{said} gives scores without a gradient: they are detached from its parameters")
    _check_buffers_stay(network, said)
    _check_rows_apart(network, said, x[:ROWS])
    _check_loss(goal, scores, targets)
    trial = _try_training(network, said, two)
    change = _check_augment(augment, x[:ROWS], inputs)
    make = partial(make, random=trial.random, compiled=compiled, augment=change)
    fixed = norm_stats == "fixed"
    if fixed and trial.running:
        network = make(fixed=trial.running)
        _check_fixed(_try_training(network, said, two), said)
    else:
        _check_running(module, said, trial.running)
        network = make(running=trial.running)
    network.row_bytes = trial.row_bytes
    network.metrics = tuple(_try_metric(network, metric, x, y) for metric in goal.metrics)
    if network.mapped:
        mapped = _try_mapped(network, two, targets)
        network.mapped, network.row_bytes = mapped is not None, max(network.row_bytes, mapped or 0)
    return network


def _check_augment(augment: str | Augmentation, rows: Tensor, inputs: Inputs) -> Augmentation | None:
    """What changes the rows of a local step; UserError where it does not fit them."""
    said = f"augment={augment}" if isinstance(augment, str) else f"augment ({display_name(augment)})"
    if augment and inputs:
        raise UserError(f"{said} is for models with one input; this one takes {len(inputs)}")
    return make_augmentation(augment, said, rows)


class Trial(NamedTuple):
    """What one pass in training mode showed."""

    running: list[str]  # buffers that it changed
    random: bool
    row_bytes: int  # held for the gradient of one row


def _try_training(network: ModuleProblem, said: str, rows: Tensor) -> Trial:
    """Trains a copy of the module on two rows, to see which buffers change and whether it draws random numbers."""
    module = deepcopy(network.module).train()
    for name in network.quiet:
        module.get_submodule(name).training = False
    before = {name: v.detach().clone() for name, v in module.named_buffers()}
    trained = [p for p in module.parameters() if p.requires_grad]
    held = {"bytes": 0}

    def pack(v: Tensor) -> Tensor:
        held["bytes"] += v.numel() * v.element_size()
        return v

    def forward() -> tuple[Tensor, int]:
        args, named = unpack_inputs(rows.clone(), network.inputs)
        with DrawFrom(torch.Generator().manual_seed(0)) as mode:
            return to_scores(module(*args, **named)), mode.draws

    state = torch.get_rng_state()
    try:
        with saved_tensors_hooks(pack, lambda v: v):
            scores, draws = forward()
        changed = [name for name, v in module.named_buffers() if name in before and not _same_bits(before[name], v)]
        first = scores.detach().clone()
        with DrawFrom(torch.Generator()) as backward:
            torch.autograd.grad(scores.float().sum(), trained, allow_unused=True)
        for name in changed:
            place, _, own = name.rpartition(".")
            setattr(module.get_submodule(place), own, before[name])
        again = forward()[0].detach()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{said} cannot be trained on two rows: {explain_error(error)}") from error
    finally:
        drew = not torch.equal(state, torch.get_rng_state())
        torch.set_rng_state(state)
    if backward.draws:
        raise UserError(
            f"{said} draws random numbers again in the backward pass (gradient checkpointing), where they would be "
            "others; turn off the checkpointing or the dropout"
        )
    if drew or not _same_bits(first, again):
        raise UserError(
            f"{said} gives other scores each time in training mode, with the same seed: randomness from outside "
            "PyTorch, or state in attributes; draw with torch, and keep state in buffers"
        )
    held["bytes"] -= sum(v.numel() * v.element_size() for v in trained)
    return Trial(changed, draws > 0, max(held["bytes"], 0) // len(rows))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


def _check_buffers_stay(network: ModuleProblem, said: str) -> None:
    """UserError where a pass in evaluation mode has changed a buffer."""
    now = network.buffers_in_use()
    for name, v in network.module.named_buffers():
        if name in now and not _same_bits(v, now[name]):
            raise UserError(
                f"{said} changes the buffer {name} in evaluation mode too; change it only where self.training is true"
            )


def _check_running(module: nn.Module, said: str, running: list[str]) -> None:
    """Takes the counters of batches out of `running`; UserError for a buffer that clients cannot share."""
    buffers = dict(module.named_buffers())
    running[:] = [name for name in running if not name.endswith("num_batches_tracked")]
    for name in running:
        if buffers[name].dtype != torch.float32:
            raise UserError(
                f"{said}: training changes the buffer {name}, which is {buffers[name].dtype}; only running statistics "
                "in float32 can be averaged; norm_stats=fixed leaves it as it is"
            )


def _check_fixed(trial: Trial, said: str) -> None:
    """UserError where a buffer changes although its layer is in evaluation mode."""
    if trial.running:
        raise UserError(
            f"{said} changes the buffer {trial.running[0]} although norm_stats=fixed keeps its layer in evaluation "
            "mode; take norm_stats=average"
        )


def check_ids(problem: Problem, said: str, x: Tensor, of: str) -> None:
    """UserError where the model cannot take the largest ids of rows x [D, ...] of tokens."""
    if not isinstance(problem, ModuleProblem) or x.dtype != torch.int64 or not x.numel():
        return
    rows = x[torch.unique(x.flatten(1).argmax(0))]  # at every place of a row, the one with the largest id there
    try:
        with torch.no_grad():
            for part in torch.split(rows, ROWS):
                problem.scores(problem.init(), part.clone())
    except Exception as error:
        hint = "; an Embedding needs num_embeddings above the largest id" if isinstance(error, IndexError) else ""
        raise UserError(
            f"{said} does not fit all rows of {of}, whose ids go up to {int(x.max())}: {explain_error(error)}{hint}"
        ) from error


def _check_rows_apart(network: ModuleProblem, said: str, rows: Tensor) -> None:
    """UserError where the scores of a row depend on the rows that stand in the same batch."""
    start = network.init()
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    share = 2**-4 if network.precision == "bfloat16" else 1e-3  # of the largest score: far above rounding
    for w in (start, start + 0.01 * noise):  # layers that start at zero hide what is before them
        try:
            mixed = _mixes_rows(network, w, rows, share)
        except Exception as error:
            if w is start:
                raise UserError(f"{said} cannot take a batch of one row: {explain_error(error)}") from error
            continue
        if mixed:
            raise UserError(
                f"{said} mixes rows: the scores of a row change with the other rows of its batch; "
                "normalise within a row, with GroupNorm or LayerNorm"
            )


def _mixes_rows(network: ModuleProblem, w: Tensor, rows: Tensor, share: float) -> bool:
    """Whether the first or the last row has other scores in a smaller batch."""
    with torch.no_grad():
        together = network.scores(w, rows.clone())
        known = together[together.isfinite()].abs()
        if together.isnan().any() or not len(known):
            return False
        for n in (1, 2):
            try:
                first, last = network.scores(w, rows[:n].clone()), network.scores(w, rows[-n:].clone())
                break
            except Exception:
                if n == 2 or len(rows) < 3:
                    raise
    pairs = (first.flatten(), together[:n].flatten()), (last.flatten(), together[-n:].flatten())
    near = share * float(known.max())
    return not all(a.shape == b.shape and torch.allclose(a, b, rtol=0.0, atol=near) for a, b in pairs)


def _check_loss(goal: Goal, scores: Tensor, y: Tensor) -> None:
    said = f"loss ({display_name(goal.loss)})"
    given = scores.clone(), y.clone()
    try:
        rows = goal.loss(*given)
        again, first, last = (goal.loss(scores[at].clone(), y[at].clone()) for at in (ALL, FIRST, _LAST))
    except Exception as error:
        labels = "; labels are whole numbers, y.astype(int)" if y.is_floating_point() else ""
        raise UserError(
            f"{said} cannot take scores {list(scores.shape)} and targets {list(y.shape)}: "
            f"{explain_error(error)}{labels}"
        ) from error
    if not isinstance(rows, Tensor) or rows.dim() == 0 or len(rows) != len(y):
        got = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise UserError(f'{said} gives {got} for {len(y)} rows; it must give one number per row (reduction="none")')
    if not torch.equal(scores, given[0]) or given[1]._version:
        what = "targets" if given[1]._version else "scores"
        raise UserError(f"{said} changes the {what} in place; let it work on a copy")
    if not rows.requires_grad:
        raise UserError(
            f"{said} gives {rows.dtype} without a gradient; compute it from the scores, not detached, not whole numbers"
        )
    if bool(rows.isnan().any()):
        raise UserError(f"{said} gives NaN for the first rows; a loss is a number")
    if not torch.equal(rows, again):
        raise UserError(
            f"{said} gives other values each time: chance or state within it is not the seed's; leave it out"
        )
    for which, alone, at in (("first", first, FIRST), ("last", last, _LAST)):
        if alone.shape[1:] != rows.shape[1:] or not torch.allclose(per_row(alone), per_row(rows)[at]):
            raise UserError(
                f"{said} mixes rows: that of the {which} row changes with the others; "
                f"scores {list(scores.shape)} and targets {list(y.shape)} may need the same shape"
            )


def _try_metric(network: ModuleProblem, metric: Metric, x: Tensor, y: Tensor) -> Metric:
    """The metric, as one of all rows where its function gives one number for all of them."""
    if METRICS.get(metric.name) is metric:
        try:
            with torch.no_grad():
                metric.close(metric.count(network.scores(network.init(), x[:2]), y[:2]), len(y[:2]))
        except Exception as error:
            kinds = "accuracy is for labels, absolute_error for numbers"
            raise UserError(f"metric={metric.name} does not fit the targets of these data; {kinds}") from error
        return metric
    assert isinstance(metric, RowMetric)
    said, given = f"metric ({metric.name})", y.clone()
    try:
        with torch.no_grad():
            value = torch.as_tensor(metric.function(network.scores(network.init(), x), given), dtype=torch.float32)
    except Exception as error:
        raise UserError(f"{said} fails on the {len(y)} test rows: {explain_error(error)}") from error
    if given._version:
        raise UserError(f"{said} changes the targets in place; let it work on a copy")
    if not bool(value.isfinite().any()):
        _log.warning("%s is not finite for the untrained model; rounds in which that is so have no value of it", said)
    if value.dim() == 0 or (value.numel() == 1 and len(y) > 1):
        return WholeMetric(metric.name, "", metric.better, metric.unit, function=metric.function)
    if len(value) != len(y) or (value.numel() != len(y) and value.shape != y.shape):
        several = "; give several metrics as a list, metric=[f, g]" if len(value) == len(y) else ""
        raise UserError(
            f"{said} gives {list(value.shape)} for {len(y)} rows; it gives one number, or one per row{several}"
        )
    return metric


def _try_mapped(network: ModuleProblem, rows: Tensor, y: Tensor) -> int | None:
    """The bytes that a row takes where many clients go through the module at once, on top of what any row needs.

    None for a module that branches on values, which takes clients one by one.
    """
    n, peaks = FEW + 1, list[int]()
    w = network.init().repeat(n, 1)
    try:
        for times in (1, 2):
            x, targets = (torch.cat([v] * times).expand(n, times * len(v), *v.shape[1:]) for v in (rows, y))
            with LiveBytes() as live:
                network.gradients(w, x, targets)
            peaks.append(live.peak)
        network.slope(w, rows.expand(n, *rows.shape), y.expand(n, *y.shape))
    except Exception:
        return None
    return (peaks[1] - peaks[0]) // (n * len(rows))
