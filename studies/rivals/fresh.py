"""The tuned settings of the study on seeds that nobody has seen: `python -m studies.rivals.fresh --out fresh.json`.

Seeds 501 to 510 were seen while FedVecaM was made. Here every method runs once with the settings that the study chose
for it on seed 601, on seeds 511 to 520. Nothing was chosen on these, and nothing was changed after they ran.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
from pathlib import Path

from studies.rivals.run import Unit, measure_runs, parse_case

STORED = Path(__file__).parents[2] / "docs" / "results" / "rivals.json"
FRESH_SEEDS = tuple(range(511, 521))


def repeat_unit(unit: Unit, device: str) -> Unit:
    """The unit's method and settings on the fresh seeds."""
    runs = measure_runs(unit["case"], unit["method"], unit["settings"], FRESH_SEEDS, device)
    return {**unit, "tuning": [], "runs": runs, "grid": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=parse_case, metavar="case")
    parser.add_argument("--stored", type=Path, default=STORED, help="the results of the study")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    units: list[Unit] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else []
    known = {(unit["case"], unit["method"]) for unit in units}
    stored: list[Unit] = json.loads(args.stored.read_text("utf-8"))
    wanted = [unit for unit in stored if not args.cases or unit["case"] in args.cases]
    jobs = [unit for unit in wanted if (unit["case"], unit["method"]) not in known]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for unit in pool.imap_unordered(functools.partial(repeat_unit, device=args.device), jobs):
            units.append(unit)
            args.out.write_text(json.dumps(units) + "\n", "utf-8")
            mean = sum(run["last"] for run in unit["runs"].values()) / len(unit["runs"])
            print(f"{unit['case']} {unit['method']}: last {mean:.2f} %", flush=True)


if __name__ == "__main__":
    main()
