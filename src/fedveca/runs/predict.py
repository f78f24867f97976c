"""What a run's model makes of rows: those of a file, or the test rows of its data set."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.errors import UserError, explain_error, printable
from fedveca.runs.folder import Run, to_json
from fedveca.runs.folder_types import Json
from fedveca.runs.output_file import write_file
from fedveca.runs.rebuild import RebuiltModel
from fedveca.runs.value_text import format_value, short_label
from fedveca.tasks.metrics import Table


@dataclass(frozen=True)
class Predicted:
    """Rows' scores and classes, and how good they are where the targets are known."""

    scores: Tensor  # [n, ...]; of numbers to predict, the numbers
    classes: Tensor | None  # [n, ...]
    measures: dict[str, float | Table] = field(default_factory=dict)  # by the names of the metrics

    def values(self) -> dict[str, Json]:
        """For JSON."""
        classes = {} if self.classes is None else {"classes": to_json(self.classes)}
        return self.describe() | classes | {"scores": to_json(self.scores)}

    def describe(self) -> dict[str, Json]:
        """How many rows and how good, for JSON; null where a measure is not defined."""
        return {"rows": len(self.scores)} | {name: to_json(v) for name, v in self.measures.items()}


def predict_file(run: Run, path: Path) -> Predicted:
    """Predicts the rows of a file.

    Args:
        run: A run that has ended.
        path: An .npy file with rows [n, ...], or an .npz file with x and, where the targets are known, y. Bytes (uint8)
            are prepared as in training; other numbers are what the model takes.

    Returns:
        Scores and classes, and the metrics of the run where there are targets.

    Raises:
        UserError: Where the file cannot be read, or its rows do not fit the model.
    """
    model = RebuiltModel(run)
    x, y = _read_rows(path)
    return _predict(model, model.prepare(x, printable(str(path))), y)


def predict_test(run: Run, data_dir: str = "") -> Predicted:
    """Predicts the test rows of the run's data set.

    Args:
        run: A run that has ended, of a data set that can be named.
        data_dir: Folder that holds the data set.

    Returns:
        Scores and classes, and the metrics of the run.

    Raises:
        UserError: Where the data cannot be found or are custom.
    """
    model = RebuiltModel(run)
    data = model.load_test_rows(data_dir)
    x = data.x_test
    return _predict(model, model.prepare(x, f"data={data.name}"), data.y_test)


def _predict(model: RebuiltModel, x: Tensor, y: Tensor | None) -> Predicted:
    found = model.predict(x)
    return Predicted(found.scores, found.classes, {} if y is None else model.evaluate(found, y))


def _read_rows(path: Path) -> tuple[Tensor, Tensor | None]:
    said = printable(str(path))
    if path.suffix not in (".npy", ".npz"):
        raise UserError(f"{said} is neither an .npy file of rows nor an .npz file with x, and y")
    try:
        loaded = np.load(path, allow_pickle=False)
        if path.suffix == ".npy":
            return torch.from_numpy(_to_native(loaded)), None
        with loaded:
            if "x" not in loaded:
                raise UserError(f"{said} has no array x; it has {printable(', '.join(loaded)) or 'none'}")
            y = torch.from_numpy(_to_native(loaded["y"])) if "y" in loaded else None
            return torch.from_numpy(_to_native(loaded["x"])), y
    except UserError:
        raise
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else explain_error(error)
        raise UserError(f"{said} cannot be read: {printable(why)}") from error


def _to_native(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Numbers in this machine's byte order, of a kind that PyTorch has."""
    if array.dtype.kind not in "buif":
        raise UserError(f"its numbers are {array.dtype}; they are floats or whole numbers")
    kind = array.dtype if array.dtype == np.uint8 else np.float32 if array.dtype.kind == "f" else np.int64
    return np.ascontiguousarray(array, dtype=kind)


def write_prediction(found: Predicted, out: Path) -> None:
    """Writes classes and scores as .npz arrays, or as one JSON object."""
    if out.suffix == ".json":
        content = json.dumps(found.values(), allow_nan=False).encode()
    else:
        buffer = io.BytesIO()
        arrays = {"scores": found.scores.numpy()}
        if found.classes is not None:
            arrays["classes"] = found.classes.numpy()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        content = buffer.getvalue()
    write_file(out, content)


def summarize(found: Predicted, most: int, out: str) -> str:
    """A few lines for people: how many rows, how good, and the first predictions or where all of them are."""
    numbers = {f"test_{name}": v for name, v in found.measures.items() if not isinstance(v, list)}
    shown = [f"{short_label(name)} {format_value(name, v)}" for name, v in numbers.items()]
    lines = [", ".join([f"{len(found.scores)} rows", *shown])]
    if out:
        return "\n".join([*lines, f"predictions: {printable(out, 4096)}"])
    predicted = found.scores if found.classes is None else found.classes
    word = "predicted" if found.classes is None else "classes"
    first = " ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in predicted[:most].flatten()[:80].tolist())
    more = " ..." if len(predicted) > most or predicted[:most].numel() > 80 else ""
    return "\n".join([*lines, f"{word}: {first}{more}"])
