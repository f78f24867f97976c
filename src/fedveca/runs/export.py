"""A run's model as a file that other programs load: safetensors, ONNX or TorchScript."""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save

from fedveca.errors import UserError, explain_error, printable
from fedveca.runs.folder import Run
from fedveca.runs.output_file import require_file, write_file
from fedveca.runs.rebuild import RebuiltModel

NOTE = "pixels"  # under which an ONNX or TorchScript file says how rows are prepared


def export_run(run: Run, form: str, out: Path) -> int:
    """Writes a run's kept model.

    Args:
        run: A run that has ended.
        form: One of FORMATS.
        out: The file to write.

    Returns:
        The file's size in bytes.

    Raises:
        UserError: Where the model cannot be built or written in this form; nothing is written then.
    """
    if form not in FORMATS:
        raise UserError(f"format={printable(form)} is not known; allowed: {' | '.join(FORMATS)}")
    require_file(out)
    content = FORMATS[form](run)
    write_file(out, content)
    return len(content)


def _make_safetensors(run: Run) -> bytes:
    if not run.model:
        raise UserError(f"{printable(str(run.folder), 400)} has no model yet: the run has not ended")
    return save({name: v.contiguous() for name, v in run.model.items()})


def _make_torchscript(run: Run) -> bytes:
    model, buffer = RebuiltModel(run), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a trace cannot follow: shapes, which are the same
        try:
            traced = torch.jit.trace(model.module(), model.sample())  # type: ignore[no-untyped-call]
            torch.jit.save(traced, buffer, _extra_files={NOTE: model.form["pixels"]})
        except Exception as error:
            raise UserError(f"model={model.experiment.model} cannot be traced: {explain_error(error)}") from error
    return buffer.getvalue()


def _make_onnx(run: Run) -> bytes:
    for name in ("onnx", "onnxscript"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UserError("--format onnx needs the extra fedveca[export]: pip install 'fedveca[export]'") from error
    model = RebuiltModel(run)
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model.module(),
                (model.sample(),),
                dynamo=True,
                verbose=False,
                input_names=["x"],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("rows")},),
            )
    except Exception as error:
        raise UserError(f"model={model.experiment.model} cannot be written as ONNX: {explain_error(error)}") from error
    finally:
        quiet.setLevel(level)
    assert program is not None
    proto = program.model_proto
    note = proto.metadata_props.add()
    note.key, note.value = NOTE, model.form["pixels"]
    content: bytes = proto.SerializeToString()
    return content


FORMATS: dict[str, Callable[[Run], bytes]] = {
    "safetensors": _make_safetensors,
    "onnx": _make_onnx,
    "torchscript": _make_torchscript,
}
SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx", "torchscript": ".pt"}
