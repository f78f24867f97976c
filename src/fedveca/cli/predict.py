"""fedveca predict: what a run's model makes of rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveca.cli.arguments import Command, add_output, print_result
from fedveca.errors import UserError, printable

SHOWN = 10  # predictions that are printed for people


def add(command: Command) -> None:
    examples = (
        ("fedveca predict runs/mine rows.npy -o classes.json", "classes and scores of rows in a file"),
        ("fedveca predict runs/mine --data test", "the test rows of its data set, and the metrics of the run"),
    )
    predict = command("predict", _predict, "Predict rows with the model of a run.", examples)
    predict.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    predict.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="rows [n, ...]: an .npy file, or an .npz file with x, and y"
    )
    predict.add_argument("--data", metavar="test", help="predict the test rows of the run's data set instead")
    predict.add_argument("--data-dir", default="", metavar="DIR", help="folder that holds the data set")
    predict.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="write classes and scores to this .npz or .json file"
    )
    add_output(predict)


def _predict(args: argparse.Namespace) -> int:
    from fedveca.runs.folder import Run
    from fedveca.runs.output_file import require_file
    from fedveca.runs.predict import predict_file, predict_test, summarize, write_prediction

    if (args.file is None) == (args.data is None):
        raise UserError("fedveca predict takes a FILE of rows or --data test, one of them")
    if args.data not in (None, "test"):
        raise UserError(
            f"--data {printable(args.data)} is not known; allowed: test. A file of rows is given without --data: "
            f"fedveca predict {printable(str(args.run))} rows.npy"
        )
    if args.out is not None and args.out.suffix not in (".npz", ".json"):
        raise UserError(f"--out {printable(str(args.out))} is neither an .npz nor a .json file")
    if args.out is not None:
        require_file(args.out)
    run = Run.open(args.run)
    found = predict_test(run, args.data_dir) if args.data else predict_file(run, args.file)
    if args.out is not None:
        write_prediction(found, args.out)
    whole = {"folder": str(args.run), **found.values()}
    if args.out is not None:
        whole = {"folder": str(args.run), "out": str(args.out), **found.describe()}
    print_result(args, whole, summarize(found, SHOWN, str(args.out) if args.out else ""))
    return 0
