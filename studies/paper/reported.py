"""Table I as the paper reports it."""

from __future__ import annotations

METHODS = ("fedveca", "fedavg", "fedprox", "fednova", "scaffold", "centralised")
TITLES = {"svm-mnist": "SVM on MNIST", "cnn-mnist": "CNN on MNIST", "cnn-cifar10": "CNN on CIFAR-10"}
TASKS = tuple(TITLES)
# By task, in the order of METHODS: loss x 100, accuracy in %.
_TABLE_I = {
    "svm-mnist": ((22.22, 23.13, 23.14, 23.44, 22.07, 22.06), (86.63, 85.75, 85.76, 85.32, 86.92, 86.87)),
    "cnn-mnist": ((24.25, 32.32, 32.76, 33.05, 20.80, 22.67), (93.04, 90.67, 90.47, 90.37, 93.86, 93.43)),
    "cnn-cifar10": ((160.32, 170.50, 170.77, 171.63, 163.28, 160.88), (42.41, 38.62, 38.17, 38.10, 41.23, 42.38)),
}
REPORTED = {
    task: {
        method: {"test_loss": round(loss / 100, 6), "test_accuracy": round(accuracy / 100, 6)}
        for method, loss, accuracy in zip(METHODS, *columns, strict=True)
    }
    for task, columns in _TABLE_I.items()
}


def task_of(study: str) -> str:
    """The task of a study's name, such as svm-mnist of svm-mnist-case3."""
    return next(task for task in TASKS if study.startswith(task))
