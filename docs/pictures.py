"""The pictures of docs/idea.md, from the package's own methods: python docs/pictures.py"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from fedveca import Experiment, FedAvg, FedNova, run
from fedveca.algorithms import Algorithm, Report
from fedveca.views.figures.curves import STYLE, save_figure
from fedveca.views.series import find_look

OUT = Path(__file__).parent / "images"
# Two clients, F_i(w) = (w - c_i)' H_i (w - c_i) / 2: each knows only its own loss.
CENTRES = torch.tensor([[-1.6, -0.6], [1.6, 0.9]])
HILLS = torch.stack([torch.diag(torch.tensor([2.0, 0.25])), torch.diag(torch.tensor([0.3, 1.5]))])
P = torch.tensor([0.5, 0.5], dtype=torch.float64)
START, ETA = torch.tensor([-1.2, 2.2]), 0.12
COLOURS = ("#0072B2", "#009E73")


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


def best() -> Tensor:
    lowest: Tensor = torch.linalg.solve(HILLS.sum(0), torch.einsum("nij,nj->i", HILLS, CENTRES))
    return lowest


def ground(axis: Any, title: str) -> None:
    """The hills of F = (F_1 + F_2) / 2, its lowest point and the clients' own."""
    x, y = np.meshgrid(np.linspace(-2.4, 2.4, 120), np.linspace(-1.5, 2.7, 120))
    w = torch.tensor(np.stack([x, y], -1), dtype=torch.float32)
    F = torch.stack([((w - CENTRES[i]) @ HILLS[i] * (w - CENTRES[i])).sum(-1) / 4 for i in range(2)]).sum(0)
    axis.contour(x, y, F.numpy(), levels=14, colors="#cccccc", linewidths=0.7, zorder=0)
    for i, colour in enumerate(COLOURS):
        axis.plot(*CENTRES[i], marker="o", color=colour, markersize=8, linestyle="none")
        axis.annotate(
            f"client {i + 1}'s best",
            CENTRES[i].tolist(),
            xytext=(0, -16),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontsize=9,
        )
    axis.plot(*best(), marker="*", color="black", markersize=14, linestyle="none")
    axis.annotate("best for all", best().tolist(), xytext=(0, -19), textcoords="offset points", ha="center", fontsize=9)
    axis.set(title=title, xticks=[], yticks=[], aspect="equal")
    axis.title.set_fontsize(10)
    axis.grid(False)


def drift() -> None:
    """One round: with one step each the mean is a step of SGD, with many the clients drift to their own minima."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.6))
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.92, wspace=0.03)
    for axis, tau in zip(axes, (1, 20), strict=True):
        models, paths = simulate(FedAvg(ETA), torch.tensor([tau, tau]), 1)
        ground(axis, f"one round, {tau} local step{'s' if tau > 1 else ''} each")
        for path, colour in zip(paths, COLOURS, strict=True):
            axis.plot(*path.T, color=colour, marker=".", markersize=5, linewidth=1.5)
        axis.plot(*START, marker="s", color="black", markersize=6, linestyle="none")
        axis.annotate("w_k", START.tolist(), xytext=(7, 3), textcoords="offset points")
        axis.plot(*models.T, color="#D55E00", linewidth=1.8, linestyle="--")
        axis.plot(*models[-1], marker="D", color="#D55E00", markersize=7, linestyle="none")
        axis.annotate(
            "w_(k+1), the mean",
            models[-1].tolist(),
            xytext=(9, -13),
            textcoords="offset points",
            color="#D55E00",
            fontsize=9,
        )
    save_figure(figure, OUT / "drift.svg")


def normalised() -> None:
    """Where the server ends when one client takes 2 steps and the other 20."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.6))
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.92, wspace=0.03)
    for axis, (name, algorithm) in zip(axes, (("FedAvg", FedAvg(0.03)), ("FedNova", FedNova(0.03))), strict=True):
        models, _ = simulate(algorithm, torch.tensor([2, 20]), 60)
        ground(axis, f"{name}: client 1 takes 2 steps per round, client 2 takes 20")
        axis.plot(*models.T, color="#D55E00", marker=".", linewidth=1.5)
        off = float((models[-1] - best()).norm())
        axis.annotate(
            f"after 60 rounds {off:.2f} off",
            models[-1].tolist(),
            xytext=(40, 22),
            textcoords="offset points",
            color="#D55E00",
            fontsize=9,
            ha="center",
        )
    save_figure(figure, OUT / "normalised.svg")


def control() -> None:
    """A run on the digits, Case 3: how many steps each client takes, and why."""
    e = Experiment(data="digits", model="mlp", partition="case3", rounds=40, batch=32, lr=0.05)
    veca = run(e)
    avg = run(Experiment(**(vars(e) | {"method": "fedavg", "tau_all": veca.summary["tau_all"]})))
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    tau = np.array([line["tau"] for line in veca.rounds]).T
    image = axes[0].imshow(tau, aspect="auto", cmap="Oranges", vmin=0, interpolation="nearest")
    axes[0].set(title="τ, local steps of each client", xlabel="round", ylabel="client", yticks=range(5))
    axes[0].grid(False)
    figure.colorbar(image, ax=axes[0])
    A = np.array([line["A"] for line in veca.rounds[1:]]).T
    for i, row in enumerate(A):
        axes[1].plot(
            range(1, 40), row / A.min(0), ".", markersize=4, label=f"client {i}", color=plt.get_cmap("tab10")(i)
        )
    axes[1].axhline(1, color="#888888", linewidth=0.8)
    axes[1].set(title="A of each client / the least A", xlabel="round", yscale="log")
    axes[1].legend(fontsize=7, loc="upper right")
    for done in (veca, avg):
        label, colour, dash = find_look(done.experiment.method)
        shares = [100 * (line["test_accuracy"] or 0.0) for line in done.rounds]
        axes[2].plot(range(1, 41), shares, dash, color=colour, label=label)
    axes[2].set(title="test accuracy (%), local steps of the paper's protocol", xlabel="round")
    axes[2].legend(loc="lower right")
    save_figure(figure, OUT / "control.svg")
    for done in (veca, avg):
        print(done.experiment.method, done.summary["tau_all"], done.summary["kept"], done.summary["last"])
    print("tau by client, mean:", tau.mean(1).round(1), "A / least, median:", np.median(A / A.min(0), 1).round(2))


def main() -> None:
    """Draws all three."""
    OUT.mkdir(exist_ok=True)
    with plt.rc_context(STYLE):
        drift()
        normalised()
        control()


if __name__ == "__main__":
    main()
