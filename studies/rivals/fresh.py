"""The tuned settings of the study on seeds that nobody has seen: `python -m studies.rivals.fresh --out fresh.json`.

Seeds 501 to 510 were seen while FedVecaM was made. Here every method runs once with the settings that the study chose
for it on seed 601, on seeds 511 to 520. Nothing was chosen on these, and nothing was changed after they ran.

Runs go seed by seed, so that where the time ends, all cases and methods have the same seeds. Networks with convolutions
take too long on a CPU for all methods, so they run where they are named; docs/choose.md has the four methods that were
nearest to the best on them in the study:

    python -m studies.rivals.fresh cnn-case3 cifar-case3 cifar-dirichlet05-partial \\
        --methods "fedvecam,fedacg,fedadam,scaffold tuned" --out rivals-fresh-cnn.json
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from studies.rivals.cases import find_family
from studies.rivals.run import RIVALS, RivalOutcome, Unit, measure_runs, parse_case

STORED = Path(__file__).parents[2] / "docs" / "results" / "rivals.json"
FRESH_SEEDS = tuple(range(511, 521))


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
    """What is not in `found` yet, seed by seed; all methods where none is named, and all cases without a CNN."""
    known = {(unit["case"], unit["method"], seed) for unit in found for seed in unit["runs"]}
    wanted = [unit for unit in stored if unit["case"] in cases or (not cases and find_family(unit["case"]) != "CNN")]
    wanted = [unit for unit in wanted if unit["method"] in (methods or [unit["method"]])]
    jobs = [FreshRun(unit, seed) for seed in FRESH_SEEDS for unit in wanted]
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
