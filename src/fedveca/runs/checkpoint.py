"""A run's whole changing state on disk, so that it goes on where it stopped and ends with the same bytes."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedveca.algorithms.contract import Named
from fedveca.algorithms.control import TAU_MIN
from fedveca.algorithms.hyper import LARGEST
from fedveca.algorithms.registry import concerns, is_adaptive
from fedveca.cohorts.client_memory import NodeLedger, PersistentMemory
from fedveca.errors import UserError, printable
from fedveca.runs.build import Built
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import SECOND_NAME, read_inside
from fedveca.runs.folder import FORMER, LAST, ROWS, guard_writing, write_draft
from fedveca.runs.interrupt import FLOWER, LOCAL, RUN, how_to_resume
from fedveca.runs.schema import find_inside
from fedveca.tasks.custom import CUSTOM

FORMAT = "2"
BLANK = b"0" * 64


class Progress(NamedTuple):
    """All that changes while a run goes on, but for the clients' memory, which the cohort holds."""

    state: Any  # the method's, with w = w_round
    round: int  # rounds done
    kept: Tensor  # [P] the model handed out so far
    kept_round: int
    kept_loss: float  # F(kept)
    least: float  # keep=rollback: the least estimated loss so far


def start_progress(built: Built) -> Progress:
    return Progress(built.state, 0, built.state.w, 0, math.inf, math.inf)


def identify_run(experiment: Experiment, built: Built) -> str:
    """What a checkpoint belongs to: settings (rounds may be raised, data may move) and the data themselves."""
    seen = hashlib.sha256()
    skip = ("rounds", "data_dir", "test_every", "track", "ray_address", "memory_mb")
    settings = [line for line in experiment.toml().splitlines() if line.split(" = ")[0] not in skip]
    seen.update("\n".join(settings).encode())
    if CUSTOM in experiment.model:
        seen.update(repr([(name, v.shape) for name, v in built.problem.named(built.state.w).items()]).encode())
    shares = built.shares if CUSTOM in experiment.partition else ()
    for part in (built.data.x, built.data.y, built.data.x_test, built.data.y_test, *shares):
        seen.update(str((part.dtype, tuple(part.shape))).encode())
        seen.update(_bytes(part))
    return seen.hexdigest()


def save_checkpoint(folder: Path, course: Progress, memory: PersistentMemory, belongs: str) -> None:
    """Whole or not at all; the former checkpoint stays beside it."""
    named = {f"state.{name}": v for name, v in course.state._asdict().items()} | {"kept": course.kept}
    named["numbers"] = torch.tensor(
        [course.round, course.kept_round, course.kept_loss, course.least], dtype=torch.float64
    )
    with guard_writing(folder):
        named |= {f"memory.{name}": v for name, v in memory.save().items()}
        content = seal({name: v.detach().cpu().contiguous().clone() for name, v in named.items()}, belongs)
        new = write_draft(folder / LAST, content)
        if (folder / LAST).exists():
            os.replace(folder / LAST, folder / FORMER)
        os.replace(new, folder / LAST)


def load_checkpoint(folder: Path, built: Built, belongs: str, device: str) -> tuple[Progress, str]:
    """The last good checkpoint and what to tell the user (nothing if all is well); the clients' memory is filled."""
    said: list[str] = []
    memory, beside, most = built.cohort.memory, rows_of(folder), _bound_bytes(built)
    for name in (LAST, FORMER):
        try:
            named = _read(folder, name, most, belongs)
            rows = {n.removeprefix("memory."): v for n, v in named.items() if n.startswith("memory.")}
            course = _course(named, built, device)
            if (rows.keys() == NodeLedger.NAMES) != isinstance(memory, NodeLedger):
                raise Unfit(_explain_other(folder, memory))
            memory.load(beside, rows, device, built.algorithm.memory(built.state.w))
        except Unfit as error:
            raise UserError(f"{folder} cannot be resumed: {name} {error}") from error
        except (OSError, ValueError) as error:
            said.append(str(error))
        else:
            return course, f"{'; '.join(said)}; went on from {name}" if said else ""
    raise UserError(f"{folder} cannot be resumed: {'; '.join(dict.fromkeys(said))}")


def rows_of(folder: Path) -> Path:
    """The file of the clients' memory, there or not; ValueError where it is not the folder's alone."""
    path = folder / ROWS
    if not os.path.lexists(path):
        return path
    try:
        path = find_inside(folder, ROWS).resolve()
        if path.stat().st_nlink > 1:
            raise UserError(f"{ROWS} {SECOND_NAME}; resume a copy of the folder")
    except ValueError as error:
        raise UserError(f"{folder} cannot be resumed: {error}") from error
    return path


class Unfit(UserError):
    """A checkpoint that is whole, but not this run's."""


def seal(named: Named, belongs: str, form: str = FORMAT) -> bytes:
    """The file, with the sum of all its bytes but the sum's own."""
    content: bytes = save(named, {"format": form, "mark": belongs, "sum": BLANK.decode()})
    return content.replace(BLANK, hashlib.sha256(content).hexdigest().encode(), 1)


def _bound_bytes(built: Built) -> int:
    """Bytes of this run's largest checkpoint: state, kept model, three numbers of each client, and its header."""
    parts: list[Tensor] = [*built.state._asdict().values(), built.state.w]
    return sum(v.numel() * v.element_size() for v in parts) + 24 * len(built.cohort.sizes) + 2**20


def _explain_other(folder: Path, memory: PersistentMemory) -> str:
    if isinstance(memory, NodeLedger):
        return f"is of a run without Flower nodes; resume it with: {how_to_resume(folder, RUN)}"
    local, server = how_to_resume(folder, LOCAL), how_to_resume(folder, FLOWER)
    return f"is of a run over Flower nodes; resume it with: {local}, or where a Flower server made it: {server}"


def _read(folder: Path, name: str, most: int, belongs: str) -> Named:
    content = read_inside(folder, name, most)
    try:
        header = _header(content)
        if hashlib.sha256(content.replace(header["sum"].encode(), BLANK, 1)).hexdigest() != header["sum"]:
            raise UserError("its content does not match its sum")
        named: Named = load(content)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise UserError(f"{name} is damaged") from error
    if header.get("format") != FORMAT:
        raise Unfit(f"has the format of another version of fedveca ({header.get('format')!r:.40})")
    if header.get("mark") != belongs:
        raise Unfit("belongs to another experiment or other data")
    return named


def _header(content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    if size > len(content):
        raise UserError("it ends within its header")
    header: dict[str, str] = json.loads(content[8 : 8 + size])["__metadata__"]
    return header


def _course(named: Named, built: Built, device: str) -> Progress:
    """Unfit where a tensor is not of the run's shape and kind."""
    state, w = built.state, built.state.w
    wanted = {f"state.{name}": v for name, v in state._asdict().items()} | {"kept": w}
    wanted["numbers"] = torch.empty(4, dtype=torch.float64)
    for name in wanted.keys() | {name for name in named if not name.startswith("memory.")}:
        fits = name in named and name in wanted and _form(named[name]) == _form(wanted[name])
        if not fits:
            raise Unfit(f"does not fit this run: {printable(name)}")
    fresh = {name: named[f"state.{name}"].to(v.device) for name, v in state._asdict().items()}
    done, kept_round, kept_loss, least = named["numbers"].tolist()
    if not (0 <= kept_round <= done < 2**31 and done == int(done) and kept_round == int(kept_round)):
        raise Unfit(f"does not fit this run: round {done}, kept {kept_round}")
    for name in ("state.w", "kept"):
        if not bool(torch.isfinite(named[name]).all()):
            raise Unfit(f"does not fit this run: {name} is not finite")
    low, high = _bound_steps(built)
    for tau in (int(named["state.tau"].min()), int(named["state.tau"].max())):
        if not low <= tau <= high:
            raise Unfit(f"does not fit this run: tau of a client is {tau}; allowed: [{low}, {high}]")
    return Progress(state._replace(**fresh), int(done), named["kept"].to(device), int(kept_round), kept_loss, least)


def _bound_steps(built: Built) -> tuple[int, int]:
    """The least and most local steps that a client of this run can have for its next round."""
    e = built.experiment
    if e.method.startswith(CUSTOM):
        return 0, LARGEST  # a custom method's own business
    if is_adaptive(e.method):
        return 1, max(e.tau_0, e.tau_max, TAU_MIN) if concerns("tau_max", e.method) else LARGEST
    return 1, LARGEST if e.tau_all else e.tau_0  # with tau_all, all of them are compared with the run's own


def _form(v: Tensor) -> tuple[torch.dtype, torch.Size]:
    return v.dtype, v.shape


def _bytes(v: Tensor) -> Any:
    return v.contiguous().flatten().view(torch.uint8).numpy()
