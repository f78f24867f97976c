"""A table: scikit-learn's breast cancer data at five clinics with different patients; the metric is the ROC AUC."""

from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedveca import Dataset, Experiment, from_arrays, run


def area_under_roc(scores: Tensor, y: Tensor) -> float:
    return float(roc_auc_score(y.cpu(), (scores[:, 1] - scores[:, 0]).cpu()))


def clinics(data: Dataset, clients: int, seed: int) -> list[Tensor]:
    """Each client's rows: the first clinic sees the patients with the smallest tumours, the last the largest."""
    by_size = data.x[:, 0].argsort()  # column 0 is the mean radius
    return list(by_size.tensor_split(clients))


x, y = load_breast_cancer(return_X_y=True)
data = from_arrays(StandardScaler().fit_transform(x), y, name="breast-cancer")
experiment = Experiment(model="mlp", hidden=16, clients=5, rounds=30, batch=16, lr=0.05)
result = run(experiment, data=data, partition=clinics, metric=area_under_roc)
for line in result.rounds[::10]:
    print(f"round {line['round'] + 1:2}  tau {line['tau']}  area under ROC {line['test_area_under_roc']:.4f}")
print(f"kept model: {result.summary['kept']['test_area_under_roc']:.4f}")
