"""Regression: ten sensors, each of which sees another range of the target; the metric is R squared."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedveca import Experiment, from_arrays, run


def r_squared(scores: Tensor, y: Tensor) -> Tensor:
    """One number of all test rows; its name stands in the record, as test_r_squared."""
    return 1 - ((scores[:, 0] - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()


def huber(scores: Tensor, y: Tensor) -> Tensor:
    """One number per row: gentler than the square on rows far off."""
    return torch.nn.functional.huber_loss(scores[:, 0], y, reduction="none")


rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, (2000, 3)).astype(np.float32)
y = (np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=2000)).astype(np.float32)

model = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
data = from_arrays(x, y, name="sensors")  # y are no whole numbers: numbers to predict
veca = Experiment(partition="shards", shards=2, clients=10, rounds=40, batch=32, lr=0.1)
steps = 0
for experiment in (veca, replace(veca, method="fedavg"), replace(veca, method="scaffold")):
    fair = replace(experiment, tau_all=steps)  # the others take at most as many local steps as FedVeca did
    result = run(fair, data=data, model=model, loss=huber, metric=r_squared)
    steps, kept = steps or result.summary["tau_all"], result.summary["kept"]
    print(f"{experiment.method}: R squared {kept['test_r_squared']:.3f}, Huber loss {kept['test_loss']:.4f}")
