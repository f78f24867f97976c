"""Models on disk as safetensors: those of run folders, and those that a run starts from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedveca.errors import UserError, explain_error, printable
from fedveca.runs.files import read_inside

if TYPE_CHECKING:  # at run time PyTorch is loaded where it is used: opening a folder takes none of it
    from torch import Tensor

    from fedveca.tasks.problem import Problem

MODEL_FILE = "model.safetensors"
MODEL_BYTES = 2**37  # the most of a model file


class Weights(NamedTuple):
    """A model file's tensors by name, and the SHA-256 of its bytes."""

    tensors: dict[str, Tensor]
    sha256: str


class StoredModel(Mapping[str, "Tensor"]):
    """The kept model of a run folder, read when it is first used; empty where the run has not ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tensors: dict[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def _load(self) -> dict[str, Tensor]:
        if self._tensors is None:
            there = (self.folder / MODEL_FILE).exists()
            self._tensors = read_weights(self.folder, f"the model of {self.folder}").tensors if there else {}
        return self._tensors


def read_weights(path: Path, said: str) -> Weights:
    """Reads a .safetensors file, or the kept model of a run folder.

    Args:
        path: The file or the folder.
        said: What an error calls it.

    Returns:
        Its tensors and its hash.

    Raises:
        UserError: Where it is neither, or cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not path.is_dir() and path.suffix != ".safetensors":
        raise UserError(f"{said} is neither a .safetensors file nor a run folder")
    folder, name = (path, MODEL_FILE) if path.is_dir() else (path.resolve().parent, path.resolve().name)
    try:
        size = (folder / name).stat().st_size if (folder / name).exists() else 0  # a read asks for all that it may have
        content = read_inside(folder, name, min(size, MODEL_BYTES))
        return Weights(load(content), hashlib.sha256(content).hexdigest())
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, RuntimeError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else explain_error(error)
        raise UserError(f"{said} cannot be read: {printable(why, 200)}") from error


def pack_model(problem: Problem, tensors: Mapping[str, Tensor], said: str) -> tuple[Tensor, Tensor]:
    """Puts a model's tensors into the problem's vectors.

    Args:
        problem: The problem of the same model.
        tensors: All that its module's `load_state_dict` expects.
        said: What an error calls them.

    Returns:
        w [P] and the running statistics [S].

    Raises:
        UserError: Where names, shapes or frozen values differ, or a number is not finite.
    """
    import torch

    from fedveca.tasks.module_problem import ModuleProblem

    w, running = problem.init(), problem.initial_statistics()
    wanted = problem.state(torch.cat([w, running]))
    for name in [*wanted, *tensors]:
        if name not in tensors or name not in wanted:
            lacks = "lacks" if name not in tensors else "has"
            theirs = "" if name not in tensors else ", which the model does not have"
            raise UserError(f"{said} does not fit the model: it {lacks} {printable(name)}{theirs}")
        if tensors[name].shape != wanted[name].shape:
            form, want = list(tensors[name].shape), list(wanted[name].shape)
            raise UserError(f"{said} does not fit the model: {printable(name)} has the shape {form}, not {want}")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise UserError(f"{said} holds NaN or infinity in {printable(name)}; training starts from it")
    where = problem.named(torch.arange(len(w)))  # the places of each parameter in w
    statistics = problem.named_statistics(torch.arange(len(running))) if isinstance(problem, ModuleProblem) else {}
    for places, vector in ((where, w), (statistics, running)):
        for name, at in places.items():
            vector[at.flatten()] = tensors[name].to(torch.float32).flatten()
    for name, v in problem.state(torch.cat([w, running])).items():
        if v.is_floating_point() and not torch.equal(v, tensors[name].to(v.dtype)):
            raise UserError(f"{said} does not fit the model: {printable(name)} is frozen, and has other values there")
    return w, running
