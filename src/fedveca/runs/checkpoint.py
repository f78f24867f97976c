"""A run's whole changing state on disk, so that it goes on where it stopped and ends with the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedveca.algorithms.contract import Named
from fedveca.cohorts.memory import Memory
from fedveca.cohorts.shelf import Damaged
from fedveca.runs.build import Built
from fedveca.runs.experiment import Experiment
from fedveca.runs.record import whole

FORMAT = "2"
LAST, FORMER = "checkpoint.safetensors", "checkpoint.former.safetensors"
ROWS = "memory.rows"  # the clients' memory: both checkpoints point into it


class Course(NamedTuple):
    """All that changes while a run goes on, but for the clients' memory, which the cohort holds."""

    state: Any  # the method's, with w = w_round
    round: int  # rounds done
    kept: Tensor  # [P] the model handed out so far
    kept_round: int
    kept_loss: float  # F(kept)
    least: float  # keep=rollback: the least estimated loss so far


def mark(experiment: Experiment, built: Built) -> str:
    """What a checkpoint belongs to: settings (rounds may be raised, data may move) and the data themselves."""
    seen = hashlib.sha256()
    skip = ("rounds", "data_dir", "test_every", "ray_address", "memory_mb")
    settings = [line for line in experiment.toml().splitlines() if line.split(" = ")[0] not in skip]
    seen.update("\n".join(settings).encode())
    x, y = built.data.x, built.data.y
    for part in (y, x[:: max(1, len(x) // 500)]):
        seen.update(part.contiguous().numpy().tobytes())
    return seen.hexdigest()


def store(folder: Path, course: Course, memory: Memory, belongs: str) -> None:
    """Whole or not at all; the former checkpoint stays beside it."""
    named = {f"state.{name}": v for name, v in course.state._asdict().items()} | {"kept": course.kept}
    named["numbers"] = torch.tensor(
        [course.round, course.kept_round, course.kept_loss, course.least], dtype=torch.float64
    )
    named |= {f"memory.{name}": v for name, v in memory.save().items()}
    named = {name: v.detach().cpu().contiguous().clone() for name, v in named.items()}
    content = save(named, {"format": FORMAT, "mark": belongs, "sum": _sum(named)})
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / FORMER)
    whole(folder / LAST, content)


def restore(folder: Path, state: Any, belongs: str, device: str, memory: Memory) -> tuple[Course, str]:
    """The last good checkpoint and what to tell the user (nothing if all is well); the memory is filled."""
    said = []
    for name in (LAST, FORMER):
        try:
            named = _read(folder / name, belongs)
            rows = {n.removeprefix("memory."): v for n, v in named.items() if n.startswith("memory.")}
            memory.load(folder / ROWS, rows, device)
        except FileNotFoundError:
            said.append(f"{name} is missing")
        except Damaged as error:
            said.append(str(error))
        else:
            return _course(named, state, device), f"{'; '.join(said)}; went on from {name}" if said else ""
    raise ValueError(f"{folder} cannot be resumed: {'; '.join(said)}")


def _read(path: Path, belongs: str) -> Named:
    content = path.read_bytes()
    try:
        named: Named = load(content)
        header = _header(content)
    except (SafetensorError, ValueError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{path.name} is damaged") from error
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} has the format of another version of fedveca ({header.get('format')!r})")
    if header.get("sum") != _sum(named):
        raise Damaged(f"{path.name} is damaged: its content does not match its sum")
    if header.get("mark") != belongs:
        raise ValueError(f"{path} belongs to another experiment or other data")
    return named


def _header(content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    header: dict[str, str] = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    return header


def _course(named: Named, state: Any, device: str) -> Course:
    fresh = {name: named[f"state.{name}"].to(v.device) for name, v in state._asdict().items()}
    done, kept_round, kept_loss, least = named["numbers"].tolist()
    return Course(state._replace(**fresh), int(done), named["kept"].to(device), int(kept_round), kept_loss, least)


def _sum(named: Named) -> str:
    seen = hashlib.sha256()
    for name in sorted(named):
        seen.update(name.encode())
        seen.update(named[name].numpy().tobytes())
    return seen.hexdigest()
