"""The study behind docs/corrected.md: FedVeca corrected against every method, and what each part of it does.

    python benchmarks/corrected.py main ablation alpha partition clients --out study.jsonl --workers 8
    python benchmarks/corrected.py --out study.jsonl --write docs/results

Every chain is one seed of the fair protocol: the first method chooses its steps, those that follow get the same total.
`scaffold+` is SCAFFOLD with its share rounded so that it takes at least as many; the server of `scaffold probed` also
steps along the probe's gradient. What stands in --out is not repeated. The method and its defaults were found on other
seeds of the same tasks (docs/corrected.md says how and on which); the seeds here begin at 300.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms import Algorithm, Corrected, Named, Order, Report, Scaffold
from fedveca.algorithms.contrib.corrected import Walk
from fedveca.algorithms.fedveca import norm
from fedveca.runs.experiment import Experiment, preset
from fedveca.runs.run import run

TASKS = ("cnn-cifar10", "cnn-mnist", "svm-mnist")
ALL = ("corrected", "fedveca", "scaffold", "scaffold+", "scaffold probed", "fedavg", "fedprox", "fednova")
FEW = ("corrected", "fedveca", "scaffold", "fedavg")


class Chain(NamedTuple):
    """One seed of one setting."""

    study: str
    task: str
    label: str
    settings: dict[str, float | str]
    methods: tuple[str, ...]
    seed: int


@dataclass(frozen=True)
class RawSpread(Corrected):
    """Corrected steps, but delta from the sum of the raw gradients."""

    def step(self, order: Order, s: Walk, w: Tensor, g: Tensor) -> tuple[Tensor, Walk]:
        after, t = super().step(order, s, w, g)
        raw = (order.w - after) / self.lr - t.lam * s.turn
        spread = torch.where(s.lam > 0, norm(raw) ** 2 / t.lam, 0.0)
        return after, t._replace(spread=torch.maximum(s.spread, spread))


@dataclass(frozen=True)
class Probed(Scaffold):
    """SCAFFOLD whose server also steps along grad F(w_k), as often as the corrected method's."""

    needs_gradient: ClassVar[bool] = True

    def update(self, state: Any, ids: Tensor, p: Tensor, report: Report) -> tuple[Any, Named]:
        after, seen = super().update(state, ids, p, report)
        return after._replace(w=after.w - self.lr * Corrected.probe_steps * report.mean["grad"]), seen

    def start(self, order: Order, memory: Named, g0: Tensor) -> tuple[Tensor, Tensor]:
        return memory["c"], g0

    def step(self, order: Order, s: tuple[Tensor, Tensor], w: Tensor, g: Tensor) -> tuple[Tensor, Any]:
        return super().step(order, s[0], w, g)[0], s

    def finish(self, order: Order, s: tuple[Tensor, Tensor], w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        vectors, each, memory = super().finish(order, s[0], w, tau)
        return vectors | {"grad": s[1]}, each, memory


VARIANTS: dict[str, dict[str, object]] = {
    "A not averaged": {"smooth": 0.0},
    "A averaged, 0.7 old": {"smooth": 0.7},
    "A averaged, 0.9 old": {"smooth": 0.9},
    "steps not by rows": {"by_rows": False},
    "no step along the probe's gradient": {"probe_steps": 0.0},
    "one step along the probe's gradient": {"probe_steps": 1.0},
    "three steps along the probe's gradient": {"probe_steps": 3.0},
    "spread of raw gradients": {},
}


def chains(studies: list[str], tasks: list[str], first: int, seeds: int) -> Iterator[Chain]:
    """Long ones first."""
    some, few = range(first, first + seeds), range(first, first + min(seeds, 3))
    for task in tasks:
        cifar = task == "cnn-cifar10"
        if "main" in studies:
            yield from (Chain("main", task, "Case 3", {}, ALL, seed) for seed in range(first, first + 2 * seeds))
        if "clients" in studies and not cifar:
            settings: dict[str, float | str] = {"clients": 50}
            mine = few if task == "cnn-mnist" else some
            yield from (Chain("clients", task, "50 clients", settings, FEW, seed) for seed in mine)
            part, label = settings | {"participation": 0.2}, "50 clients, 10 a round"
            yield from (Chain("clients", task, label, part, FEW, seed) for seed in some)
        if "partition" in studies:
            for rule, c in (("case1", 0.5), ("case2", 0.5), ("dirichlet", 0.1), ("dirichlet", 0.5)):
                if cifar and rule != "dirichlet":
                    continue
                label = {"case1": "Case 1", "case2": "Case 2"}.get(rule, f"Dirichlet {c}")
                settings, mine = {"partition": rule, "concentration": c}, few if cifar else some
                yield from (Chain("partition", task, label, settings, FEW, seed) for seed in mine)
        if "alpha" in studies:
            for alpha in (0.98, 0.9):
                settings = {"alpha": alpha}
                pair, mine = ("corrected", "scaffold"), few if cifar else some
                yield from (Chain("alpha", task, f"alpha {alpha}", settings, pair, seed) for seed in mine)
        if "ablation" in studies:
            for label in VARIANTS:
                yield from (Chain("ablation", task, label, {}, ("corrected",), seed) for seed in some)


def go(chain: Chain, device: str, data_dir: str) -> list[dict[str, object]]:
    """The rows of one chain."""
    torch.set_num_threads(1)
    rows, budget = [], 0
    for name in chain.methods:
        settings = preset(f"{chain.task}-case3") | {"probe": 1024, "seed": chain.seed, "data_dir": data_dir}
        e = Experiment(**(settings | chain.settings | {"method": name.split()[0].rstrip("+"), "test_every": 5}))
        if name not in ("corrected", "fedveca"):
            e = replace(e, tau_all=budget + (e.rounds * e.clients if name.endswith("+") else 0))
        method: Algorithm | None = Probed(e.lr) if name == "scaffold probed" else None
        if chain.study == "ablation":
            kind = RawSpread if chain.label.startswith("spread") else Corrected
            method = kind(e.lr, e.alpha, e.tau_max, **VARIANTS[chain.label])  # type: ignore[arg-type]
        began = time.perf_counter()
        done = run(e, device=device, method=method)
        budget = budget or done.summary["tau_all"]
        curve = [line["test_accuracy"] for line in done.rounds if "test_accuracy" in line]
        rows.append(
            {
                "study": chain.study,
                "task": chain.task,
                "label": chain.label,
                "method": name,
                "seed": chain.seed,
                "last": done.summary["last"],
                "kept": done.summary["kept"],
                "tau_all": done.summary["tau_all"],
                "progress": sum(line["tau_k"] for line in done.rounds),
                "curve": curve,
                "seconds": round(time.perf_counter() - began, 2),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help="main, ablation, alpha, partition, clients")
    parser.add_argument("--out", type=Path, required=True, help="one JSON line a run")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=5, help="of the ablations; the main table takes twice as many")
    parser.add_argument("--first", type=int, default=300, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--write", type=Path, help="folder for corrected.json and its figures")
    args = parser.parse_args()
    there = set()
    if args.out.exists():
        rows = [json.loads(line) for line in args.out.read_text().splitlines()]
        there = {(r["study"], r["task"], r["label"], r["seed"]) for r in rows}
    wanted = [
        c
        for c in chains(args.studies, args.tasks.split(","), args.first, args.seeds)
        if (c.study, c.task, c.label, c.seed) not in there
    ]
    began = time.perf_counter()
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool, args.out.open("a") as file:
        for future in as_completed([pool.submit(go, c, args.device, args.data_dir) for c in wanted]):
            for row in future.result():
                file.write(json.dumps(row) + "\n")
            file.flush()
    print(f"{len(wanted)} chains in {time.perf_counter() - began:.0f} s")
    if args.write:
        from corrected_views import write

        write(args.out, args.write)


if __name__ == "__main__":
    main()
