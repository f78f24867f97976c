"""Every figure of the docs, from stored results: python docs/pictures.py

The figures of docs/results are drawn from the JSON files next to them, those of docs/images from docs/results too or,
for the two clients of docs/idea.md, from the package's own methods. The same results give the same bytes.
`python docs/pictures.py --run` first repeats the run of docs/results/control.json, which takes seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # studies and benchmarks are not installed

from benchmarks.scale import chart as scale
from benchmarks.speed import chart as speed
from fedveca import Experiment, FedAvg, FedNova, run
from fedveca.algorithms import Algorithm, Report
from fedveca.runs.schema import get_number
from fedveca.views.figures.style import (
    CATEGORIES,
    GRID,
    INK,
    QUIET,
    STYLE,
    darken,
    draw_band,
    label_lines,
    save_figure,
)
from fedveca.views.series import find_look
from studies.corrected import results as corrected
from studies.paper.figures import FIGURES, draw_results
from studies.rivals import swings
from studies.robustness import run as robustness
from studies.wang import results as wang

DOCS = Path(__file__).parent
# Two clients, F_i(w) = (w - c_i)' H_i (w - c_i) / 2: each knows only its own loss. In double precision, so that the
# pictures are the same on every machine.
CENTRES = torch.tensor([[-1.6, -0.6], [1.6, 0.9]], dtype=torch.float64)
HILLS = torch.stack([torch.diag(torch.tensor(d, dtype=torch.float64)) for d in ([2.0, 0.25], [0.3, 1.5])])
P = torch.tensor([0.5, 0.5], dtype=torch.float64)
START, ETA = torch.tensor([-1.2, 2.2], dtype=torch.float64), 0.12
CONTROL = Experiment(data="digits", model="mlp", partition="case3", rounds=40, batch=32, lr=0.05)


def read_result(name: str) -> Any:
    """What a JSON file of docs/results holds."""
    return json.loads((DOCS / "results" / f"{name}.json").read_text("utf-8"))


def grad(i: int, w: Tensor) -> Tensor:
    return HILLS[i] @ (w - CENTRES[i])


def simulate(algorithm: Algorithm, tau: Tensor, rounds: int, start: Tensor = START) -> tuple[Tensor, list[Tensor]]:
    """The server's models [rounds + 1, 2], and the clients' paths in the first round."""
    state, models = algorithm.init(start, tau), [start]
    first: list[Tensor] = []
    for _ in range(rounds):
        order, paths, out = algorithm.order(state), [], []
        for i in range(2):
            w, path = order.w, [order.w]
            s = algorithm.start(order, {}, grad(i, w))
            for _step in range(int(tau[i])):
                w, s = algorithm.step(order, s, w, grad(i, w))
                path.append(w)
            paths.append(torch.stack(path))
            out.append(algorithm.finish(order, s, w, torch.tensor([float(tau[i])])))
        mean = {"G": torch.stack([float(p) * o[0]["G"] for p, o in zip(P, out, strict=True)]).sum(0)}
        state, _ = algorithm.update(state, torch.arange(2), P, Report(mean, {"tau": tau.double()}, 1.0))
        models.append(state.w)
        first = first or paths
    return torch.stack(models), first


def find_optimum() -> Tensor:
    """The lowest point of F."""
    lowest: Tensor = torch.linalg.solve(HILLS.sum(0), torch.einsum("nij,nj->i", HILLS, CENTRES))
    return lowest


def draw_ground(axis: Any, title: str) -> None:
    """The contours of F = (F_0 + F_1) / 2, its lowest point and the clients' own."""
    x, y = np.meshgrid(np.linspace(-2.5, 2.5, 120), np.linspace(-1.5, 2.7, 120))
    w = torch.tensor(np.stack([x, y], -1))
    F = torch.stack([((w - CENTRES[i]) @ HILLS[i] * (w - CENTRES[i])).sum(-1) / 4 for i in range(2)]).sum(0)
    axis.contour(x, y, F.numpy(), levels=14, colors=GRID, linewidths=1, zorder=0)
    for i in range(2):
        axis.plot(*CENTRES[i], marker="o", color=CATEGORIES[i], markersize=8, linestyle="none")
        note(axis, f"best for client {i}", CENTRES[i], (0, -16), CATEGORIES[i])
    axis.plot(*find_optimum(), marker="*", color=INK, markersize=14, linestyle="none", zorder=1)
    note(axis, "best for both", find_optimum(), (0, -19), INK)
    axis.set(title=title, xticks=[], yticks=[], aspect="equal", xlabel="first weight", ylabel="second weight")
    axis.grid(False)


def note(axis: Any, text: str, point: Tensor, offset: tuple[float, float], colour: str, align: str = "center") -> None:
    """A text near a point, on white so that no line runs through it."""
    axis.annotate(
        text,
        point.tolist(),
        xytext=offset,
        textcoords="offset points",
        ha=align,
        va="center",
        color=darken(colour),
        fontsize=9.5,
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
    )


def draw_drift(path: Path) -> None:
    """One round: with one step each the mean is a step of SGD, with many the clients drift to their own minima."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.7), layout="constrained")
    colour = find_look("fedavg")[1]
    for axis, tau in zip(axes, (1, 20), strict=True):
        models, paths = simulate(FedAvg(ETA), torch.tensor([tau, tau]), 1)
        draw_ground(axis, f"{tau} local step{'s' if tau > 1 else ''} per client")
        for i, steps in enumerate(paths):
            axis.plot(*steps.T, color=CATEGORIES[i], marker=".", markersize=5, linewidth=1.5)
        axis.plot(*START, marker="s", color=INK, markersize=6, linestyle="none")
        note(axis, "$w_k$", START, (12, 6), INK)
        axis.plot(*models.T, color=colour, linewidth=1.8, linestyle="--")
        axis.plot(*models[-1], marker="D", color=colour, markersize=7, linestyle="none", zorder=4)
        note(axis, "$w_{k+1}$, the mean", models[-1], (12, -12), colour, "left")
    caption = "One round of FedAvg with two clients: many local steps make the clients drift apart"
    figure.suptitle(caption)
    about = "With 20 local steps, the mean of the two models is not on the way to the optimum of the common loss."
    save_figure(figure, path, caption, f"Grey: contours of the common loss. {about}")


def draw_normalised(path: Path) -> None:
    """Where the server ends when one client takes 2 steps and the other 20."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.7), layout="constrained")
    for axis, algorithm in zip(axes, (FedAvg(0.03), FedNova(0.03)), strict=True):
        name, colour, _ = find_look(type(algorithm).__name__.lower())
        models, _ = simulate(algorithm, torch.tensor([2, 20]), 60)
        off = float((models[-1] - find_optimum()).norm())
        draw_ground(axis, f"{name}: ends {off:.2f} away from the star")
        axis.plot(*START, marker="s", color=INK, markersize=6, linestyle="none")
        note(axis, "start", START, (20, 6), INK)
        axis.plot(*models.T, color=colour, marker=".", linewidth=1.5)
        axis.plot(*models[-1], marker="D", color=colour, markersize=5, linestyle="none", zorder=4)
    caption = "60 rounds in which client 0 takes 2 local steps and client 1 takes 20"
    figure.suptitle(caption)
    save_figure(figure, path, caption, "FedAvg ends near client 1's optimum, FedNova near the common one.")


def run_control(path: Path) -> None:
    """Writes what draw_control needs of a run on the digits, Case 3."""
    veca = run(CONTROL, device="cpu")
    avg = run(Experiment(**(vars(CONTROL) | {"method": "fedavg", "tau_all": veca.summary["tau_all"]})), device="cpu")
    content = {
        "command": "python docs/pictures.py --run",
        "settings": {name: getattr(CONTROL, name) for name in ("data", "model", "partition", "rounds", "batch", "lr")},
        "tau": [record["tau"] for record in veca.rounds],
        "A": [record.get("A") for record in veca.rounds],
        "test_accuracy": {
            done.experiment.method: [get_number(record, "test_accuracy") for record in done.rounds]
            for done in (veca, avg)
        },
        "tau_all": {done.experiment.method: done.summary["tau_all"] for done in (veca, avg)},
    }
    path.write_text(json.dumps(content) + "\n", "utf-8")


def draw_control(content: Any, path: Path) -> None:
    """A run on the digits, Case 3: how many steps each client takes, and why."""
    tau = np.array(content["tau"]).T
    figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.8), layout="constrained", width_ratios=(1, 1, 1))
    edges = (0.5, tau.shape[1] + 0.5, len(tau) - 0.5, -0.5)
    image = axes[0].imshow(tau, aspect="auto", cmap="cividis", vmin=0, interpolation="nearest", extent=edges)
    axes[0].set(title="local steps τ of each client", ylabel="client", yticks=range(len(tau)))
    axes[0].grid(False)
    figure.colorbar(image, cax=axes[0].inset_axes((1.02, 0, 0.04, 1)), ticks=range(0, 21, 5))
    A = np.array(content["A"][1:]).T
    for i, row in enumerate(A):
        x = range(2, len(row) + 2)
        axes[1].plot(x, row / A.min(0), ".", markersize=5, label=f"client {i}", color=CATEGORIES[i])
    axes[1].axhline(1, color=QUIET, linewidth=0.9)
    axes[1].set(title="A of each client / the smallest A", yscale="log")
    axes[1].yaxis.set_major_formatter("{x:g}")
    for method, shares in content["test_accuracy"].items():
        y = 100 * np.array(shares, dtype=float)
        draw_band(axes[2], range(1, len(y) + 1), y, None, find_look(method))
    axes[2].set(title="test accuracy (%)")
    for axis in axes:
        axis.set_xlabel("round")
    caption = "One run of FedVeca: MLP on the digits, Case 3, 5 clients"
    figure.suptitle(caption)
    label_lines(*axes[1:])
    about = "Left: local steps per client and round. Middle: the clients' A. Right: accuracy of FedVeca and FedAvg."
    save_figure(figure, path, caption, about)


def draw_resnet(outcomes: Any, path: Path) -> None:
    """Accuracy and loss over the rounds of a public table's runs, one seed each."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    order = {method: i for i, method in enumerate(("fedavg", "scaffold", "fedveca", "corrected"))}
    for outcome in sorted(outcomes, key=lambda outcome: order[outcome["method"]]):
        look, x = find_look(outcome["method"]), range(1, len(outcome["accuracy"]) + 1)
        draw_band(axes[0], x, 100 * np.array(outcome["accuracy"]), None, look)
        draw_band(axes[1], x, outcome["loss"], None, look)
    axes[0].set(title="test accuracy (%)", ylim=(0, 90))
    axes[1].set(title="test loss", yscale="log")
    axes[1].yaxis.set_major_formatter("{x:g}")
    for axis in axes:
        axis.set_xlabel("round")
    caption = "ResNet-18 with GroupNorm on CIFAR-10: 10 clients, Dirichlet 0.5, one seed"
    figure.suptitle(caption)
    label_lines(*axes)
    about = "FedAvg and SCAFFOLD end at about 80 %. FedVeca and corrected fall to chance in round 3."
    save_figure(figure, path, caption, about)


def draw_all(folder: Path) -> None:
    """Draws every figure into the folders images and results of a folder."""
    images, results = folder / "images", folder / "results"
    for what in FIGURES:
        draw_results(read_result(what), results)
    rows = read_result("corrected")["rows"]
    corrected.draw(rows, results)
    corrected.draw_first(rows, images / "first.svg")
    robustness.draw(read_result("robustness")["results"], results / "robustness.svg")
    wang.draw(read_result("wang"), results / "wang.svg")
    swings.draw(read_result("rivals"), results / "rivals.svg")
    speed.draw(read_result("speed")["summary"], results / "speed.svg")
    scale.draw(read_result("scale"), results / "scale.svg")
    with plt.rc_context(STYLE):
        draw_resnet(read_result("public-resnet"), results / "public-resnet.svg")
        draw_drift(images / "drift.svg")
        draw_normalised(images / "normalised.svg")
        draw_control(read_result("control"), images / "control.svg")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="first repeat the run of docs/results/control.json")
    if parser.parse_args().run:
        run_control(DOCS / "results" / "control.json")
    draw_all(DOCS)


if __name__ == "__main__":
    main()
