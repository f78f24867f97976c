"""The paper's evaluation as data: which runs each table and figure of Section V is made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedveca.algorithms.registry import paper_methods
from fedveca.errors import UserError, quoted, suggest
from fedveca.runs.compare import compare
from fedveca.runs.experiment import Experiment, preset
from fedveca.runs.folder import Run
from fedveca.runs.observers import Observer

TASKS = ("svm-mnist", "cnn-mnist", "cnn-cifar10")
FULL = tuple(f"{task}-case3" for task in TASKS)


class Study(NamedTuple):
    """One folder of runs: a preset, what differs from it, and the methods."""

    name: str
    preset: str
    settings: dict[str, float]
    methods: tuple[str, ...]

    def experiment(self) -> Experiment:
        return Experiment(**(preset(self.preset) | self.settings))


def _full(name: str) -> Study:
    return Study(name, name, {}, paper_methods())


STUDIES: dict[str, tuple[Study, ...]] = {
    "table1": tuple(_full(name) for name in FULL),
    "curves": tuple(_full(name) for name in FULL),
    "premise": tuple(_full(name) for name in FULL),
    "cases": tuple(_full(f"svm-mnist-case{case}") for case in (1, 2, 3)),
    "instant": (_full("svm-mnist-case3"),),
    "alpha": (
        _full("svm-mnist-case3"),
        Study("svm-mnist-case3-alpha0.5", "svm-mnist-case3", {"alpha": 0.5}, ("fedveca",)),
        Study("svm-mnist-case3-alpha0.995", "svm-mnist-case3", {"alpha": 0.995}, ("fedveca",)),
    ),
    "clients": (
        _full("svm-mnist-case3"),
        Study("svm-mnist-case3-clients30", "svm-mnist-case3", {"clients": 30}, ("fedveca",)),
        Study("svm-mnist-case3-clients50", "svm-mnist-case3", {"clients": 50}, ("fedveca", "fedavg", "fednova")),
    ),
}
WHAT = (*STUDIES, "all")


def studies(what: str, tasks: tuple[str, ...] = TASKS) -> dict[str, tuple[Study, ...]]:
    """The studies of each result that `what` names, as far as `tasks` has them; ValueError where that is none."""
    if what not in WHAT:
        hint = suggest(what, WHAT)
        raise UserError(f"{quoted(what)} is not known{hint}; it is one of {', '.join(WHAT)}")
    for task in tasks:
        if task not in TASKS:
            raise UserError(f"--tasks {quoted(task)} is not known; it names some of {','.join(TASKS)}")
    named = STUDIES if what == "all" else {what: STUDIES[what]}
    found = {name: tuple(study for study in of if _task(study) in tasks) for name, of in named.items()}
    found = {name: of for name, of in found.items() if of}
    if not found:
        raise UserError(f"{what} has no runs of {','.join(tasks)}; its tasks are {_task(STUDIES[what][0])}")
    return found


def reproduce(
    what: str,
    seeds: int,
    out: Path,
    *,
    tasks: tuple[str, ...] = TASKS,
    device: str = "auto",
    workers: int = 1,
    data_dir: str = "",
    observers: Iterable[Observer] = (),
) -> dict[str, list[Run]]:
    """The runs behind `what`, by study; those already in `out` are not repeated."""
    wanted = {study.name: study for of in studies(what, tasks).values() for study in of}
    runs = {}
    for study in wanted.values():
        runs[study.name] = compare(
            replace(study.experiment(), data_dir=data_dir),
            seeds,
            out / study.name,
            methods=study.methods,
            device=device,
            workers=workers,
            observers=observers,
        )
    return runs


def _task(study: Study) -> str:
    return study.preset.rpartition("-")[0]
