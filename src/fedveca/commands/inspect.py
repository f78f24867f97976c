"""partition, list, data."""

from __future__ import annotations

import argparse

from fedveca.commands.words import Command, experiment_of, takes_experiment


def add(command: Command) -> None:
    takes_experiment(command("partition", _partition, "Show how many rows of each label every client owns."))
    command("list", _list, "Show methods, data, models, partitions, presets and every setting.")
    data = command("data", _data, "Fetch a data set and check every byte of it.")
    data.add_argument("action", choices=("get",))
    data.add_argument("name", metavar="NAME")
    data.add_argument("--data-dir", default="", metavar="DIR", help="folder that may hold it already")


def _partition(args: argparse.Namespace) -> int:
    from fedveca.runs.build import build
    from fedveca.tasks.partition import label_counts
    from fedveca.views.terminal import Screen

    _, experiment = experiment_of(args.words)
    built = build(experiment, say=None)
    with Screen() as screen:
        screen.partition(label_counts(built.shares, built.data.y, built.data.classes))
    return 0


def _list(args: argparse.Namespace) -> int:
    from fedveca.views.terminal import Screen

    with Screen() as screen:
        screen.settings()
    return 0


def _data(args: argparse.Namespace) -> int:
    from fedveca.tasks.fetch import get

    print(get(args.name, args.data_dir))
    return 0
