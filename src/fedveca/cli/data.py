"""fedveca data: data sets on this machine."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command


def add(command: Command) -> None:
    data = command("data", _data, "Download a data set and verify every byte of it.")
    data.add_argument("action", choices=("get",), help="get: download it unless it is there")
    data.add_argument("name", metavar="NAME", help="the data set, such as mnist")
    data.add_argument("--data-dir", default="", metavar="DIR", help="folder that may hold it already")


def _data(args: argparse.Namespace) -> int:
    from fedveca.tasks.datasets.download import get

    print(get(args.name, args.data_dir))
    return 0
