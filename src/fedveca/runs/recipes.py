"""From settings to a training recipe: the optimisers of clients and server, and the learning rate of each round."""

from __future__ import annotations

from fedveca.algorithms.contract import Algorithm
from fedveca.algorithms.optimizers import LocalOptimizer, Schedule, ServerOptimizer
from fedveca.algorithms.recipe import Recipe
from fedveca.runs.experiment import Experiment


def apply_recipe(e: Experiment, algorithm: Algorithm) -> Algorithm:
    """The method under the experiment's recipe; the method itself where its steps are plain SGD's at one rate."""
    local = LocalOptimizer(
        kind=e.optimizer,
        momentum=e.momentum,
        nesterov=e.nesterov == "on",
        weight_decay=e.weight_decay,
        clip_norm=e.clip_norm,
        proximal=e.proximal,
        beta1=e.beta1,
        beta2=e.beta2,
        eps=e.adam_eps,
        keep=e.optimizer_state == "keep",
    )
    kind, lr = algorithm.server_default
    server = ServerOptimizer(
        kind=kind if e.server_optimizer == "auto" else e.server_optimizer,
        lr=e.server_lr or (lr if e.server_optimizer == "auto" else 1.0),
        momentum=e.server_momentum,
        beta2=e.server_beta2,
        eps=e.server_eps,
    )
    schedule = make_schedule(e)
    if local == LocalOptimizer(beta1=e.beta1, beta2=e.beta2, eps=e.adam_eps) and server.is_plain:
        return Recipe(algorithm, schedule=schedule) if not schedule.is_constant else algorithm
    return Recipe(algorithm, local, server, schedule)


def make_schedule(e: Experiment) -> Schedule:
    return Schedule(
        kind=e.lr_schedule, rounds=e.rounds, warmup=e.lr_warmup, final=e.lr_final, every=e.lr_every, decay=e.lr_decay
    )
