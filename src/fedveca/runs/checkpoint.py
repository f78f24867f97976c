"""A run's whole changing state on disk, so that it resumes where it stopped and ends with the same bytes."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedveca.algorithms.contract import STATISTICS, Named, Order
from fedveca.algorithms.control import TAU_MIN
from fedveca.algorithms.hyper import LARGEST
from fedveca.algorithms.registry import concerns, is_adaptive
from fedveca.cohorts.client_memory import NodeLedger, PersistentMemory, make_new_memory
from fedveca.cohorts.clock.answer_buffer import AnswerBuffer
from fedveca.errors import UserError, printable
from fedveca.runs.build import Built, cohort_options
from fedveca.runs.clock_settings import read_devices
from fedveca.runs.evaluate import Keeper
from fedveca.runs.experiment import Experiment, upgrade_settings
from fedveca.runs.files import find_inside, read_inside, write_atomic, write_draft
from fedveca.runs.folder import FILE_BYTES
from fedveca.runs.folder_writer import FORMER, LAST, MEMORY_FILE, guard_writing
from fedveca.runs.guard import TrainingGuard, is_guarded, restore_numbers
from fedveca.runs.interrupt import FLOWER, LOCAL, RUN, how_to_resume
from fedveca.safe_files import SECOND_NAME, work_aside
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.losses import cross_entropy
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.names import CUSTOM

FORMAT, FORMAT_0_1 = "3", "2"
BLANK = b"0" * 64
_SCHEDULE = "schedule."  # how the names of what a buffered schedule stores begin
FREE = ("rounds", "data_dir", "test_every", "track", "ray_address", "memory_mb")  # settings that may differ on resuming


class Unfit(UserError):
    """A checkpoint that is whole, but not this run's."""


class Checkpointer:
    """Writes the checkpoints of one run; nothing where it has no folder."""

    def __init__(self, folder: Path | None, built: Built) -> None:
        self.folder, self.cohort = folder, built.cohort
        self.identity = identify_run(built) if folder else {}

    def save(self, keeper: Keeper) -> None:
        """The last checkpoint becomes the former one, and both stay."""
        if self.folder is None:
            return
        with guard_writing(self.folder):
            work_aside(partial(self._write, self.folder, self.collect(keeper)))

    def _write(self, folder: Path, named: Named) -> None:
        new = write_draft(folder / LAST, seal(named, self.identity))
        if (folder / LAST).exists():
            os.replace(folder / LAST, folder / FORMER)
        os.replace(new, folder / LAST)

    def encode(self, keeper: Keeper) -> bytes:
        """A checkpoint's bytes; the clients' memory is written to its file."""
        return seal(self.collect(keeper), self.identity)

    def collect(self, keeper: Keeper) -> Named:
        """What a checkpoint stores, on the host; the clients' memory is written to its file."""
        named = {f"state.{name}": v for name, v in keeper.state._asdict().items()} | {"kept": keeper.kept}
        lowest = keeper.rollback.lowest if keeper.rollback else float("inf")
        named |= {STATISTICS: keeper.statistics.now} if keeper.statistics else {}
        numbers = [keeper.round, keeper.kept_round, keeper.kept_loss, lowest]
        named["numbers"] = torch.tensor(numbers, dtype=torch.float64)
        named |= keeper.guard.save() if keeper.guard else {}
        named |= {f"memory.{name}": v for name, v in self.cohort.memory.save().items()}
        if isinstance(self.cohort, AnswerBuffer):
            named |= {f"{_SCHEDULE}{name}": v for name, v in self.cohort.save().items()}
        return {name: _copy_to_host(v.detach()) for name, v in named.items()}


def _copy_to_host(v: Tensor) -> Tensor:
    return v.contiguous().clone() if v.device.type == "cpu" else v.cpu().contiguous()


def identify_run(built: Built) -> dict[str, str]:
    """What a checkpoint belongs to: the settings, by name, and the data and custom objects, by their hash."""
    settings = {name: v for name, v in asdict(built.experiment).items() if name not in FREE}
    return {"settings": json.dumps(settings), "data": _hash_data(hashlib.sha256(), built)}


def load_checkpoint(folder: Path, built: Built, device: str) -> tuple[Keeper, str]:
    """The last good checkpoint and a note for the user (none if all is well); the clients' memory is filled."""
    notes: list[str] = []
    memory, rows_file, most = built.cohort.memory, memory_file(folder), _bound_bytes(built)
    for name in (LAST, FORMER):
        try:
            named, form = _read(folder, name, most, built)
            rows = {n.removeprefix("memory."): v for n, v in named.items() if n.startswith("memory.")}
            keeper = _restore(named, built, device)
            if (rows.keys() == NodeLedger.NAMES) != isinstance(memory, NodeLedger):
                raise Unfit(_explain_other(folder, memory))
            memory.load(rows_file, rows, device, _new_memory(built))
        except Unfit as error:
            raise UserError(f"{folder} cannot be resumed: {name} {error}") from error
        except (OSError, ValueError) as error:
            notes.append(str(error))
        else:
            if form == FORMAT_0_1:  # its mark is of the text of experiment.toml, which is about to be written anew
                with guard_writing(folder):
                    write_atomic(folder / name, Checkpointer(folder, built).encode(keeper))
            return keeper, f"{'; '.join(notes)}; resumed from {name}" if notes else ""
    raise UserError(f"{folder} cannot be resumed: {'; '.join(dict.fromkeys(notes))}")


def _new_memory(built: Built) -> Named:
    options = cohort_options(built.experiment)
    return make_new_memory(built.algorithm, _first_order(built), options["local_statistics"], options["transfer"])


def _first_order(built: Built) -> Order:
    order = built.algorithm.order(built.state)
    return order._replace(aux=order.aux | ({STATISTICS: built.statistics} if len(built.statistics) else {}))


def memory_file(folder: Path) -> Path:
    """The file of the clients' memory, there or not; UserError where it is not the folder's alone."""
    path = folder / MEMORY_FILE
    if not os.path.lexists(path):
        return path
    try:
        path = find_inside(folder, MEMORY_FILE).resolve()
        if path.stat().st_nlink > 1:
            raise UserError(f"{MEMORY_FILE} {SECOND_NAME}; resume a copy of the folder")
    except ValueError as error:
        raise UserError(f"{folder} cannot be resumed: {error}") from error
    return path


def seal(named: Named, identity: Mapping[str, str], form: str = FORMAT) -> bytes:
    """The file, with the hash of all its bytes except for the hash's own."""
    content: bytes = save(named, {"format": form, **identity, "sum": BLANK.decode()})
    at, view = content.index(BLANK), memoryview(content)  # in the header, so it is found at once
    return b"".join((view[:at], hashlib.sha256(content).hexdigest().encode(), view[at + len(BLANK) :]))


def _read(folder: Path, name: str, most: int, built: Built) -> tuple[Named, str]:
    content = read_inside(folder, name, most)
    try:
        header = _read_header(content)
        if hashlib.sha256(content.replace(header["sum"].encode(), BLANK, 1)).hexdigest() != header["sum"]:
            raise ValueError("its content does not match its sum")
        named: Named = load(content)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise UserError(f"{name} is damaged") from error
    if header.get("format") == FORMAT_0_1:
        same = header.get("mark") == _identify_0_1(folder, built)
    elif header.get("format") == FORMAT:
        same = header.get("data") == identify_run(built)["data"] and _same_settings(header, built.experiment)
    else:
        raise Unfit(f"has the format of another version of fedveca ({header.get('format')!r:.40})")
    if not same:
        raise Unfit("belongs to another experiment or other data")
    return named, header["format"]


def _same_settings(header: Mapping[str, str], experiment: Experiment) -> bool:
    """Whether a checkpoint has these settings; one that is newer than the checkpoint must have its default."""
    try:
        stored = upgrade_settings(json.loads(header["settings"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False
    defaults = {field.name: field.default for field in fields(experiment)}
    now = asdict(experiment)
    return stored.keys() <= now.keys() and all(
        now[name] == stored.get(name, defaults[name]) for name in now if name not in FREE
    )


def _identify_0_1(folder: Path, built: Built) -> str:
    """The mark of a checkpoint that version 0.1 wrote: a hash of the text of experiment.toml, and of the data."""
    text = read_inside(folder, "experiment.toml", FILE_BYTES).decode("utf-8")
    lines = [line for line in text.splitlines() if line.split(" = ")[0] not in FREE]
    return _hash_data(hashlib.sha256("\n".join(lines).encode()), built)


def _hash_data(found: hashlib._Hash, built: Built) -> str:
    e = built.experiment
    if CUSTOM in e.model:
        found.update(repr([(name, v.shape) for name, v in built.problem.named(built.state.w).items()]).encode())
    found.update(built.problem.hash_fixed().encode())
    if e.devices:
        found.update(repr(read_devices(e.devices)).encode())
    shares = built.shares if CUSTOM in e.partition else ()
    parts: tuple[Tensor | LazyRows, ...] = built.data.x, built.data.y, built.data.x_test, built.data.y_test, *shares
    for part in parts:
        found.update(str((part.dtype, tuple(part.shape))).encode())
        if isinstance(part, LazyRows):
            found.update(part.identify())
        else:
            found.update(part.contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _bound_bytes(built: Built) -> int:
    """Bytes of this run's largest checkpoint: state, kept and best model, three numbers per client, and its header."""
    parts: list[Tensor] = [*built.state._asdict().values(), *2 * [built.state.w], *3 * [built.statistics]]
    size = sum(v.numel() * v.element_size() for v in parts)
    if isinstance(built.cohort, AnswerBuffer):  # an order per client at work, and its five numbers
        order = built.algorithm.order(built.state)
        each = sum(v.numel() * v.element_size() for v in (order.w, *order.aux.values(), built.statistics))
        size += (each + 2**10) * (built.cohort.at_once + 1)
    return size + 24 * len(built.cohort.sizes) + 2**20


def _explain_other(folder: Path, memory: PersistentMemory) -> str:
    if isinstance(memory, NodeLedger):
        return f"is of a run without Flower nodes; resume it with: {how_to_resume(folder, RUN)}"
    local, server = how_to_resume(folder, LOCAL), how_to_resume(folder, FLOWER)
    return f"is of a run over Flower nodes; resume it with: {local}, or where a Flower server made it: {server}"


def _read_header(content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    if size > len(content):
        raise ValueError("it ends within its header")
    header: dict[str, str] = json.loads(content[8 : 8 + size])["__metadata__"]
    return header


def _restore(named: Named, built: Built, device: str) -> Keeper:
    """Unfit where a tensor is not of the run's shape and kind."""
    state, running = built.state, built.statistics
    wanted = {f"state.{name}": v for name, v in state._asdict().items()}
    wanted |= {"kept": torch.cat([state.w, running])} | ({STATISTICS: running} if len(running) else {})
    wanted["numbers"] = torch.empty(4, dtype=torch.float64)
    guard = make_guard(built)
    wanted |= guard.save() if guard else {}
    cohort, schedule = built.cohort, {name: v for name, v in named.items() if name.startswith(_SCHEDULE)}
    for name in wanted.keys() | {name for name in named if not name.startswith("memory.") and name not in schedule}:
        fits = name in named and name in wanted and _describe(named[name]) == _describe(wanted[name])
        if not fits:
            raise Unfit(f"does not fit this run: {printable(name)}")
    fresh = {name: named[f"state.{name}"].to(v.device) for name, v in state._asdict().items()}
    done, kept_round, kept_loss, lowest = named["numbers"].tolist()
    if not (0 <= kept_round <= done < 2**31 and done == int(done) and kept_round == int(kept_round)):
        raise Unfit(f"does not fit this run: round {done}, kept {kept_round}")
    if isinstance(cohort, AnswerBuffer):
        stored = {name.removeprefix(_SCHEDULE): v for name, v in schedule.items()}
        if not cohort.load(stored, int(done), _first_order(built)):
            raise Unfit("does not fit this run: the clients at work")
    elif schedule:
        raise Unfit("does not fit this run: it has clients at work")
    if guard:
        numbers = restore_numbers(named["guard.numbers"])
        if numbers is None or numbers.best_round > done:
            raise Unfit("does not fit this run: guard.numbers")
        guard.best, guard.numbers = named["guard.best"].to(device), numbers
    for name in ("state.w", "kept", *((STATISTICS,) if len(running) else ()), *(("guard.best",) if guard else ())):
        if not bool(torch.isfinite(named[name]).all()):
            raise Unfit(f"does not fit this run: {name} is not finite")
    low, high = _bound_steps(built)
    for tau in (int(named["state.tau"].min()), int(named["state.tau"].max())):
        if not low <= tau <= high:
            raise Unfit(f"does not fit this run: tau of a client is {tau}; allowed: [{low}, {high}]")
    return Keeper(
        built.experiment.keep,
        state._replace(**fresh),
        statistics=named[STATISTICS].to(device) if len(running) else None,
        round=int(done),
        kept=named["kept"].to(device),
        kept_round=int(kept_round),
        kept_loss=kept_loss,
        lowest=lowest,
        guard=guard,
    )


def make_guard(built: Built) -> TrainingGuard | None:
    """The guard of a run that starts, where its settings ask for one."""
    if not is_guarded(built.experiment):
        return None
    problem, classes = built.problem, built.data.classes
    entropic = isinstance(problem, ModuleProblem) and problem.loss is cross_entropy and classes > 1
    guess = math.log(classes) if entropic else math.nan
    return TrainingGuard(torch.cat([built.state.w, built.statistics]), built.state.tau, guess=guess)


def _bound_steps(built: Built) -> tuple[int, int]:
    """The fewest and most local steps that a client of this run can have in its next round."""
    e = built.experiment
    first = int(built.state.tau.max())
    if ":" in e.method:
        return 0, LARGEST  # for a custom method to decide
    if is_adaptive(e.method):
        return 1, max(first, e.tau_max, TAU_MIN) if concerns("tau_max", e.method) else LARGEST
    return 1, LARGEST if e.tau_all else first  # with tau_all, all of them are compared with the run's own


def _describe(v: Tensor) -> tuple[torch.dtype, torch.Size]:
    return v.dtype, v.shape
