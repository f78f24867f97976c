"""fedveca export: a run's model for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveca.cli.arguments import Command, add_output, print_result
from fedveca.errors import printable


def add(command: Command) -> None:
    examples = (
        ("fedveca export runs/mine", "its weights, as mine.safetensors"),
        ("fedveca export runs/mine --format onnx -o mine.onnx", "the model itself, for other programs"),
    )
    export = command("export", _export, "Write the model of a run as safetensors, ONNX or TorchScript.", examples)
    export.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    export.add_argument(
        "--format",
        default="safetensors",
        choices=("safetensors", "onnx", "torchscript"),
        metavar="FORMAT",
        help="safetensors: weights by name (default); onnx, torchscript: the model itself, for prepared rows",
    )
    export.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="file to write (default: the name of the run, in this folder)"
    )
    add_output(export)


def _export(args: argparse.Namespace) -> int:
    from fedveca.runs.export import SUFFIXES, export_run
    from fedveca.runs.folder import Run

    run = Run.open(args.run)
    out = args.out or Path(f"{args.run.resolve().name}{SUFFIXES[args.format]}")
    size = export_run(run, args.format, out)
    result = {"model": str(out), "format": args.format, "bytes": size}
    print_result(args, result, f"model: {printable(str(out), 4096)} ({size:,} bytes)")
    return 0
