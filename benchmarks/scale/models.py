"""The cost of a client's step of real models: ours compared with an eager loop, in interleaved passes of one process.

    python -m benchmarks.scale.models --out docs/results/models.json [--device cuda] [--clients 10] [--passes 3]

The eager loop is what one would write by hand: one client after another, `module.train()`, a batch of random rows,
`loss.backward()`, a step of SGD. FedVeca and FedAvg take the same steps; FedVeca's probe is that of probe=auto with
ten steps. On a busy machine `--clock cpu` counts the process's CPU time instead, so that only the work is compared; the
ratio is the median of the passes' ratios.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedveca.algorithms import Algorithm, FedAvg, FedVeca
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.local.cuda_graphs import use_tensor_cores
from fedveca.runs.folder import describe_environment
from fedveca.tasks.losses import cross_entropy
from fedveca.tasks.models import model
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.partition import partition
from fedveca.tasks.problem import Problem

LR, BATCH, ROWS = 0.01, 32, 2_000


class Job(NamedTuple):
    """A model and rows for it."""

    problem: Problem
    x: Tensor
    y: Tensor
    classes: int


def images(precision: str, compiled: bool) -> Job:
    """ResNet-18 with GroupNorm, 32 x 32 images."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (ROWS, 3, 32, 32), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (ROWS,), generator=generator)
    return Job(model("resnet18", (3, 32, 32), 10, precision=precision, compiled=compiled), x, y, 10)


def text(precision: str, compiled: bool) -> Job:
    """A transformer of 10.8 million parameters: 6 layers, width 384, context 128, 96 characters."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 96, (ROWS, 129), generator=generator)
    x, y = x[:, :-1].contiguous(), x[:, 1:].contiguous()
    made = model("gpt", (128,), 96, hidden=384, layers=6, precision=precision, compiled=compiled, sample=(x[:8], y[:8]))
    return Job(made, x, y, 96)


JOBS = {"resnet18": images, "transformer": text}


def timed(work: Callable[[], None], device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def make_ours(job: Job, algorithm: Algorithm, clients: int, steps: int, probe: int, device: str) -> Callable[[], None]:
    labels = job.y if job.y.dim() == 1 else job.y[:, 0]
    shares = partition("iid", labels, job.classes, clients)
    pixels = "unit" if job.x.dtype == torch.uint8 else "as-is"
    cohort = LocalCohort(
        algorithm,
        job.problem,
        job.x,
        job.y,
        shares,
        batch=BATCH,
        want_loss=False,
        pixels=pixels,
        device=device,
        probe=probe,
    )
    tau, ids = torch.full((clients,), steps), torch.arange(clients)
    order = algorithm.order(algorithm.init(job.problem.init().to(device), tau))

    def work() -> None:
        cohort(0, order, ids, tau)

    return work


def make_eager(job: Job, clients: int, steps: int, device: str) -> Callable[[], None]:
    assert isinstance(job.problem, ModuleProblem)
    module: nn.Module = copy.deepcopy(job.problem.module).to(device).train()
    x, y = job.x.to(device), job.y.to(device)
    start = copy.deepcopy(module.state_dict())
    autocast = job.problem.precision == "bfloat16"

    def work() -> None:
        with use_tensor_cores(torch.device(device)):
            for _ in range(clients):
                module.load_state_dict(start)
                optimizer = torch.optim.SGD(module.parameters(), LR)
                for _ in range(steps):
                    rows = torch.randint(0, len(y), (BATCH,), device=device)
                    batch = x[rows].float() / 255 if x.dtype == torch.uint8 else x[rows]
                    with torch.autocast(device, torch.bfloat16, enabled=autocast):
                        scores = module(batch)
                    loss = cross_entropy(scores.float(), y[rows]).mean()
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--probe", type=int, default=64)
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--precision", default="float32,bfloat16")
    parser.add_argument("--compile", default="off,on")
    args = parser.parse_args()
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    results: dict[str, dict[str, list[float]]] = {}
    for name in args.jobs.split(","):
        for precision, compiled in product(args.precision.split(","), args.compile.split(",")):
            job = JOBS[name](precision, compiled == "on")
            size = args.clients, args.steps
            works = {
                "eager": make_eager(job, *size, args.device),
                "fedavg": make_ours(job, FedAvg(LR), *size, args.probe, args.device),
                "fedveca": make_ours(job, FedVeca(LR), *size, args.probe, args.device),
            }
            began = time.perf_counter()
            for work in [*works.values(), *works.values()]:
                timed(work, args.device)
            warm_up = time.perf_counter() - began
            setting = f"{name} {precision} compile={compiled}"
            found = results[setting] = {what: [] for what in works}
            for _ in range(args.passes):
                for what, work in works.items():
                    found[what].append(1e3 * timed(work, args.device, clock) / (args.clients * args.steps))
            middle = {what: statistics.median(values) for what, values in found.items()}
            rounded = {what: round(v, 3) for what, v in middle.items()}
            ratios = [eager / ours for eager, ours in zip(found["eager"], found["fedavg"], strict=True)]
            quicker = f"FedAvg {statistics.median(ratios):.2f} times as fast as the eager loop"
            print(f"{setting}: ms per client step {rounded}, {quicker}, warm-up {warm_up:.0f} s", flush=True)
    if args.out:
        content = {
            "environment": describe_environment(args.device),
            "settings": vars(args) | {"out": ""},
            "ms": results,
        }
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
