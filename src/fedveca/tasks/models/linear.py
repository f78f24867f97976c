"""Linear models and the perceptron with one hidden layer."""

from __future__ import annotations

import math

from torch import nn

from fedveca.errors import UserError
from fedveca.tasks.models.registry import Task, named_model, require_numbers
from fedveca.tasks.svm import SquaredSvm


@named_model("svm", "the paper's squared SVM: even labels against odd ones")
def build_svm(task: Task) -> SquaredSvm:
    if task.y.is_floating_point() or task.y.dim() > 1 or not task.standard:
        raise UserError("model=svm has its own loss and tells even labels from odd; take cnn, mlp or a custom model")
    require_numbers("svm", task)
    return SquaredSvm(math.prod(task.shape))


@named_model("logistic", "multinomial logistic regression on the flattened row", lr=0.05)
def build_logistic(task: Task) -> nn.Module:
    require_numbers("logistic", task)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(task.shape), task.outputs))


@named_model("mlp", "one hidden layer on the flattened row", lr=0.05)
def build_mlp(task: Task) -> nn.Module:
    require_numbers("mlp", task)
    first = nn.Linear(math.prod(task.shape), task.hidden)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(task.hidden, task.outputs))
