"""A federated run on custom NumPy arrays with a custom PyTorch model."""

import numpy as np
import torch

from fedveca import Experiment, from_arrays, run

rng = np.random.default_rng(0)
y = rng.integers(0, 3, 600)
x = rng.normal(size=(600, 8)) + 0.8 * rng.normal(size=(3, 8))[y]  # three clouds of points

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
experiment = Experiment(partition="dirichlet", concentration=0.3, clients=6, rounds=20, batch=16, lr=0.05)
result = run(experiment, data=from_arrays(x, y), model=model)

model.load_state_dict(result.model)  # the kept model, in your module
print(f"test accuracy {100 * result.summary['kept']['test_accuracy']:.1f} % on rows held out for testing")
