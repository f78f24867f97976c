"""Other seeds for the cases whose plan has seen ones: `python -m studies.rivals.fresh --methods M,M --out fresh.json`.

The cases with a CNN ran on seeds 501 to 510, which were seen while FedVecaM was made. Here methods run with the
settings that were chosen for them, on the seeds of all other cases. Nothing was chosen on these, and nothing was
changed after they ran.

Runs go seed by seed, so that where the time ends, all cases and methods have the same seeds. On a CPU a run of a CNN
takes a minute; docs/rivals.md has the four methods that were nearest to the best on these cases.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from studies.rivals.run import RIVALS, SEEDS, STORED, RivalOutcome, Unit, measure_runs, parse_case, read_plan


class FreshRun(NamedTuple):
    """One run: a case, a method with the settings that were chosen for it, and a seed."""

    unit: Unit
    seed: int

    def measure(self, device: str) -> RivalOutcome:
        case, method, settings = self.unit["case"], self.unit["method"], self.unit["settings"]
        return measure_runs(case, method, settings, [self.seed], device)[str(self.seed)]


def _call(job: FreshRun, device: str) -> tuple[FreshRun, RivalOutcome]:
    return job, job.measure(device)


def list_missing(stored: list[Unit], found: list[Unit], cases: Sequence[str], methods: Sequence[str]) -> list[FreshRun]:
    """What is not in `found` yet, seed by seed; all methods where none is named, and all cases with seen seeds."""
    known = {(unit["case"], unit["method"], seed) for unit in found for seed in unit["runs"]}
    seen = {unit["case"] for unit in stored if not {*SEEDS} & {*read_plan(unit["case"]).seeds}}
    wanted = [unit for unit in stored if unit["case"] in (cases or seen)]
    wanted = [unit for unit in wanted if unit["method"] in (methods or [unit["method"]])]
    jobs = [FreshRun(unit, seed) for seed in SEEDS for unit in wanted]
    return [job for job in jobs if (job.unit["case"], job.unit["method"], str(job.seed)) not in known]


def add_run(found: list[Unit], job: FreshRun, run: RivalOutcome) -> Unit:
    """The unit of the results that has the run now."""
    same = (unit for unit in found if (unit["case"], unit["method"]) == (job.unit["case"], job.unit["method"]))
    unit = next(same, None)
    if unit is None:
        unit = {**job.unit, "tuning": [], "runs": {}, "grid": {}}
        found.append(unit)
    unit["runs"][str(job.seed)] = run
    return unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=parse_case, metavar="case")
    parser.add_argument("--methods", default="", help="all where none is named")
    parser.add_argument("--stored", type=Path, default=STORED, help="the results of the study")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    methods = args.methods.split(",") if args.methods else []
    if unknown := {*methods} - {*RIVALS}:
        parser.error(f"{min(unknown)} is not a method of the study; it is one of {', '.join(RIVALS)}")
    units: list[Unit] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else []
    jobs = list_missing(json.loads(args.stored.read_text("utf-8")), units, args.cases, methods)
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for job, run in pool.imap_unordered(functools.partial(_call, device=args.device), jobs):
            unit = add_run(units, job, run)
            args.out.write_text(json.dumps(units) + "\n", "utf-8")
            print(f"{unit['case']} {unit['method']} seed {job.seed}: last {run['last']:.2f} %", flush=True)


if __name__ == "__main__":
    main()
