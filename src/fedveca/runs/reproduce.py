"""The paper's evaluation as data: which runs each table and figure of Section V is made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedveca.runs.compare import compare
from fedveca.runs.experiment import METHODS, Experiment, preset
from fedveca.runs.record import Run

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
    return Study(name, name, {}, METHODS)


STUDIES: dict[str, tuple[Study, ...]] = {
    "table1": tuple(_full(name) for name in FULL),
    "curves": tuple(_full(name) for name in FULL),
    "premise": tuple(_full(name) for name in FULL),
    "cases": tuple(_full(f"svm-mnist-case{case}") for case in (1, 2)),
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


def reproduce(
    what: str,
    seeds: int,
    out: Path,
    *,
    tasks: tuple[str, ...] = TASKS,
    device: str = "auto",
    workers: int = 1,
    data_dir: str = "",
    ended: Callable[[Study, Run], None] | None = None,
) -> dict[str, list[Run]]:
    """The runs behind `what`, by study; those already in `out` are not repeated."""
    wanted = {study.name: study for name in (STUDIES if what == "all" else (what,)) for study in STUDIES[name]}
    runs = {}
    for study in wanted.values():
        if study.preset.rpartition("-")[0] not in tasks:
            continue
        experiment = replace(study.experiment(), data_dir=data_dir)

        def told(run: Run, study: Study = study) -> None:
            if ended:
                ended(study, run)

        runs[study.name] = compare(
            experiment, seeds, out / study.name, methods=study.methods, device=device, workers=workers, ended=told
        )
    return runs
