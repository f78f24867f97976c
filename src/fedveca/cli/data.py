"""fedveca data: data sets on this machine."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command, add_output, print_result
from fedveca.errors import UserError, count_noun, printable, suggest


def add(command: Command) -> None:
    examples = (("fedveca data get mnist", "into the cache, unless it is there"),)
    data = command("data", _data, "Download a data set and verify every byte of it.", examples)
    data.add_argument("action", choices=("get",), help="get: download it unless it is there")
    data.add_argument("download", metavar="NAME", help="the data set, such as mnist")
    data.add_argument("--data-dir", default="", metavar="DIR", help="folder that may hold it already")
    add_output(data)


def _data(args: argparse.Namespace) -> int:
    from fedveca.runs.catalog import load_catalog

    known = load_catalog()["downloads"]
    if args.download not in known:
        hint = suggest(args.download, known)
        said = f"there are no files to get for {printable(repr(args.download))}{hint}"
        raise UserError(f"{said}; allowed: {', '.join(known)}")
    from fedveca.tasks.datasets.download import SOURCES, find_files, get
    from fedveca.views.terminal.screen import Screen

    with Screen(args.quiet or args.json):
        found = find_files(args.download, args.data_dir)
        folder = found[0] if found else get(args.download, args.data_dir)
    files, size = SOURCES[args.download].files, sum(file.size for file in SOURCES[args.download].files)
    did = "was already there" if found else "was downloaded"
    text = (
        f"{args.download} {did}: {count_noun(len(files), 'file')}, {size / 1e6:.1f} MB, every byte verified\n{folder}"
    )
    names = [file.name for file in files]
    print_result(args, {"name": args.download, "folder": str(folder), "files": names, "downloaded": not found}, text)
    return 0
