"""The model of a run folder, built again to be used: scores of new rows, and a module that others can load."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from fedveca.errors import UserError, printable
from fedveca.runs.build import make_problem
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.folder_types import Json, RowForm
from fedveca.runs.task_data import describe_rows, load_data
from fedveca.runs.weights import pack_model
from fedveca.tasks.datasets.dataset import Dataset, is_preparation, prepare
from fedveca.tasks.losses import IGNORED
from fedveca.tasks.metrics import METRICS, Table
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.names import CUSTOM
from fedveca.tasks.problem import Problem
from fedveca.tasks.svm import SquaredSvm
from fedveca.tasks.validate import ROWS

PASS_ROWS = 1000  # rows of a pass


class SvmScores(nn.Module):
    """The paper's SVM as a module: w.x [B], above 0 for even labels."""

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.w


class Prediction(NamedTuple):
    """What a model makes of rows."""

    scores: Tensor  # [n, ...] float32
    classes: Tensor | None  # [n, ...] int64; None where numbers are predicted: they are the scores


class RebuiltModel:
    """A run's kept model, ready for rows of its data's form.

    Args:
        run: A run that has ended; its data set need not be at hand where its folder says what rows look like.

    Raises:
        UserError: Where the run has no model yet, or was made with custom objects that only its author has.
    """

    def __init__(self, run: Run) -> None:
        where = printable(str(run.folder or "the run"), 400)
        e = run.experiment
        if e.model.startswith(CUSTOM):
            raise UserError(
                f"{where} has a custom model ({printable(e.model)}), which only your code can build: "
                "module.load_state_dict(fedveca.Run.open(FOLDER).model) loads it"
            )
        if not run.model:
            raise UserError(f"{where} has no model yet: the run has not ended")
        self.experiment, self.form = e, find_form(run, where)
        shape, classes = tuple(self.form["shape"]), self.form["classes"]
        # loss, metric and augmentation do not change scores; custom ones are not at hand
        loss = "auto" if e.loss.startswith(CUSTOM) else e.loss
        plain = replace(e, loss=loss, metric=_keep_known(e.metric), augment="")
        self.problem: Problem = make_problem(plain, shape, classes, sample=_make_sample(self.form))
        self.w, self.running = pack_model(self.problem, run.model, f"the model of {where}")

    def module(self) -> nn.Module:
        """The model as a module in evaluation mode; its input is prepared rows."""
        if not isinstance(self.problem, ModuleProblem):
            return SvmScores(self.w.clone()).eval()
        module = self.problem.module
        module.load_state_dict(self.problem.state(torch.cat([self.w, self.running])), strict=True)
        return module.eval()

    def sample(self) -> Tensor:
        """Two rows of the right form."""
        shape = (2, *self.form["shape"])
        return torch.zeros(shape, dtype=torch.int64) if self.form["tokens"] else torch.zeros(shape)

    def prepare(self, x: Tensor, said: str) -> Tensor:
        """Rows as the model takes them: bytes as in training, other numbers as they are."""
        shape = self.form["shape"]
        if list(x.shape[1:]) != shape or x.dim() == 0:
            raise UserError(f"{said} has the shape {list(x.shape)}; the model takes rows of shape {shape}")
        if len(x) == 0:
            raise UserError(f"{said} has no rows")
        if self.form["tokens"]:
            if x.is_floating_point() or x.dtype == torch.bool or bool((x < 0).any()):
                raise UserError(f"{said} is {x.dtype}; the model takes tokens, whole numbers from 0 up")
            return x.long()
        if x.is_complex() or not bool(torch.isfinite(x).all()):
            raise UserError(f"{said} holds what is not a finite number; a model takes finite ones")
        return prepare(x, self.form["pixels"] if x.dtype == torch.uint8 else "as-is")

    def predict(self, x: Tensor) -> Prediction:
        """Scores and classes of prepared rows."""
        module, parts = self.module(), []
        with torch.no_grad():
            for part in torch.split(x, PASS_ROWS):
                try:
                    parts.append(module(part))
                except IndexError as error:
                    raise UserError(
                        f"the rows hold the token {int(part.max())}, which the model does not know"
                    ) from error
        scores = torch.cat(parts)
        if isinstance(module, SvmScores):
            return Prediction(scores, (scores <= 0).long())
        return Prediction(scores, scores.argmax(-1) if self.form["classes"] else None)

    def load_test_rows(self, data_dir: str = "") -> Dataset:
        """The run's data set with its test rows."""
        if self.experiment.data.startswith(CUSTOM):
            name = printable(self.experiment.data)
            raise UserError(f"the run has custom data ({name}), which are not in its folder; give a file of rows")
        return load_data(replace(self.experiment, data_dir=data_dir or self.experiment.data_dir))[0]

    def evaluate(self, found: Prediction, y: Tensor) -> dict[str, float | Table]:
        """Every metric of the run on predicted rows, by its name; a custom one is not at hand.

        Args:
            found: What `predict` made of the rows.
            y: Their labels or targets, [n, ...].

        Returns:
            Numbers, and lists of lists for tables. A value that is not defined, such as the AUC of rows of one class,
            is NaN.

        Raises:
            UserError: Where y is not of the form of the run's targets, or holds a label that the model does not know.
        """
        form = [len(found.scores), *self.form["targets"]]
        if list(y.shape) != form:
            raise UserError(f"y has the shape {list(y.shape)}; these rows have targets of shape {form}")
        scores, labels = found.scores, y.float()
        if found.classes is not None:
            labels = self.problem.labels(_read_labels(y))
        if isinstance(self.problem, SquaredSvm):
            scores = torch.stack([scores, -scores], -1)
        elif found.classes is not None:
            counted = labels[labels != IGNORED] if labels.dim() > 1 else labels
            odd = counted[(counted < 0) | (counted >= scores.shape[-1])]
            if len(odd):
                raise UserError(f"y holds the label {int(odd[0])}; the model knows 0 to {scores.shape[-1] - 1}")
        return {m.name: m.close(m.count(scores, labels), len(y)) for m in self.problem.metrics}


def _read_labels(y: Tensor) -> Tensor:
    if y.is_floating_point() and not torch.equal(y, y.round()):
        raise UserError("y holds fractions; the model predicts labels, which are whole numbers")
    return y.long()


def _keep_known(metric: str) -> str:
    """The setting `metric` without custom functions, which are not at hand; auto where nothing is left."""
    if not metric.startswith(CUSTOM):
        return metric
    return ",".join(name for name in metric.removeprefix(CUSTOM).split(",") if name in METRICS) or "auto"


def find_form(run: Run, where: str) -> RowForm:
    """What rows look like: as the folder says, or as the data set has them."""
    if run.folder is not None:
        with contextlib.suppress(OSError, ValueError):
            return _check_form(read_object(run.folder, "environment.json").get("rows"))
    if run.experiment.data.startswith(CUSTOM):
        raise UserError(f"{where} does not say what the rows of its custom data ({run.experiment.data}) look like")
    return describe_rows(load_data(run.experiment)[0])


def _check_form(stated: Json) -> RowForm:
    """ValueError where a folder's text is not a form."""
    if not isinstance(stated, dict):
        raise ValueError("rows is not a table")
    shape, targets, classes = stated.get("shape"), stated.get("targets"), stated.get("classes")
    tokens, pixels = stated.get("tokens"), stated.get("pixels")
    sizes = [shape, targets]
    if not all(isinstance(v, list) and all(type(n) is int and 0 < n < 2**20 for n in v) for v in sizes):
        raise ValueError("rows has no shapes")
    if type(classes) is not int or not 0 <= classes < 2**20 or type(tokens) is not bool:
        raise ValueError("rows has no classes")
    if not is_preparation(pixels, cast(list[int], shape)):
        raise ValueError("rows has no pixels")
    return {"shape": shape, "targets": targets, "classes": classes, "tokens": tokens, "pixels": pixels}  # type: ignore[typeddict-item]


def _make_sample(form: RowForm) -> tuple[Tensor, Tensor]:
    """Rows and targets of a form, to try a model on."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(ROWS, *form["shape"], generator=generator)
    y = torch.zeros(ROWS, *form["targets"])
    return x.long() if form["tokens"] else x, y.long() if form["classes"] else y
