"""The study behind docs/corrected.md: FedVeca corrected compared with every method, and what each part of it does.

    python -m studies.corrected --out corrected --workers 8 [main ablation alpha partition clients]
    python -m studies.corrected --out corrected --write docs/results

The studies are the TOML files in this folder; each follows the fair protocol of `fedveca compare`. Two variants of
SCAFFOLD are added to the main study: `scaffold+` has its share of the steps rounded up instead of down, and the server
of `scaffold probed` also steps along the probe's gradient. The ablations change one part of the corrected method at a
time. What is finished in --out is not repeated. The method and its defaults were found on other seeds of the same
tasks (docs/corrected.md says how and on which); the seeds here begin at 300.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedveca.runs.compare import Method, compare
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.study import Study, read_study, run_study
from studies.corrected.results import load_rows, print_table, write_results
from studies.corrected.variants import ABLATIONS, Probed, make_ablation

HERE = Path(__file__).parent
FILES = ("main", "alpha", "partition", "clients")
STUDIES = (*FILES, "ablation")
ABLATION_SEEDS = 5


class Job(NamedTuple):
    """One run of a method that a TOML file cannot name."""

    experiment: Experiment
    method: Method
    out: Path
    device: str


def scaffold_jobs(study: Study, runs: list[Run], out: Path, device: str) -> list[Job]:
    """SCAFFOLD's two variants for every seed, with the steps that the corrected method took there."""
    jobs = []
    for done in (run for run in runs if run.experiment.method == "corrected"):
        e = replace(study.experiment(), seed=done.experiment.seed, data_dir=done.experiment.data_dir)
        budget = done.summary["tau_all"]
        more = replace(e, method="scaffold", tau_all=budget + e.rounds * e.clients)
        jobs.append(Job(more, "scaffold", out / "scaffold+" / study.name, device))
        jobs.append(Job(replace(e, tau_all=budget), Probed(e.lr), out / "scaffold probed" / study.name, device))
    return jobs


def ablation_jobs(study: Study, seeds: int, out: Path, device: str, data_dir: str) -> list[Job]:
    """Every ablation of a task for every seed."""
    e = replace(study.experiment(), data_dir=data_dir)
    return [
        Job(replace(e, seed=e.seed + i), make_ablation(label, e), out / "ablation" / f"{study.name} {label}", device)
        for label in ABLATIONS
        for i in range(seeds)
    ]


def run_job(job: Job) -> None:
    """Runs one job, unless it is finished."""
    torch.set_num_threads(1)
    compare(job.experiment, 1, job.out, methods=(job.method,), device=job.device)


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"some of {', '.join(STUDIES)}")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, help="seeds of each study in place of the file's")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--write", type=Path, metavar="DIR", help="folder for corrected.json and its figures")
    args = parser.parse_args(argv)
    if unknown := set(args.studies) - set(STUDIES):
        parser.error(f"{min(unknown)} is not a study; it is one of {', '.join(STUDIES)}")
    jobs: list[Job] = []
    for name in FILES:
        if name in args.studies:
            studies, where = read_study(HERE / f"{name}.toml"), args.out / name
            runs = run_study(
                studies,
                where,
                seeds=args.seeds,
                device=args.device,
                workers=args.workers,
                data_dir=args.data_dir,
            )
            if name == "main":
                for study in studies:
                    jobs += scaffold_jobs(study, runs[study.name], args.out, args.device)
    if "ablation" in args.studies:
        for study in read_study(HERE / "main.toml"):
            seeds = args.seeds or ABLATION_SEEDS
            jobs += ablation_jobs(study, seeds, args.out, args.device, args.data_dir)
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(run_job, jobs))
    rows = load_rows(args.out)
    print_table(rows)
    if args.write:
        write_results(rows, args.write)
