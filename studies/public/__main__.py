"""Runs public tables: python -m studies.public niid_dirichlet --seeds 3 --device cuda --out results."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from fedveca.runs.experiment import parse_settings
from studies.public.run import TABLES, run_table, summarise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("settings", nargs="*", help="key=value in place of the table's")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from the first")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--methods", default="", help="with commas between; all of the table where none are named")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="runs end after the round in which they have passed")
    parser.add_argument("--name", default="", help="of the file in the folder; the table's where none is given")
    parser.add_argument("--out", type=Path, default=Path("results"))
    args = parser.parse_args()
    until = time.time() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    seeds = list(range(args.first, args.first + args.seeds))
    path = args.out / f"{args.name or args.table}.json"
    methods = [name for name in args.methods.split(",") if name]
    more = parse_settings(args.settings)
    done = run_table(args.table, seeds, args.device, args.processes, path, methods, more, until)
    print(json.dumps(summarise(args.table, done), indent=1))


if __name__ == "__main__":
    main()
