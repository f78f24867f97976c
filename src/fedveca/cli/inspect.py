"""partition, list, data."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command, experiment_of, says, takes_experiment, tell


def add(command: Command) -> None:
    partition = command("partition", _partition, "Show how many rows of each label every client owns.")
    takes_experiment(partition)
    says(partition)
    says(command("list", _list, "Show methods, data, models, partitions, presets and every setting."))
    data = command("data", _data, "Fetch a data set and check every byte of it.")
    data.add_argument("action", choices=("get",))
    data.add_argument("name", metavar="NAME")
    data.add_argument("--data-dir", default="", metavar="DIR", help="folder that may hold it already")


def _partition(args: argparse.Namespace) -> int:
    from fedveca.runs.build import build
    from fedveca.tasks.partition import label_counts
    from fedveca.views.terminal.screen import Screen

    _, experiment = experiment_of(args.words)
    built = build(experiment)
    counts = label_counts(built.shares, built.data.y, built.data.classes)
    with Screen(args.quiet or args.json) as screen:
        screen.partition(counts)
    tell(args, {"clients": len(counts), "labels": counts.tolist()})
    return 0


def _list(args: argparse.Namespace) -> int:
    from fedveca.views.terminal.screen import Screen
    from fedveca.views.terminal.tables import named, settings

    with Screen(args.quiet or args.json) as screen:
        screen.settings()
    tell(args, named() | {"settings": settings()})
    return 0


def _data(args: argparse.Namespace) -> int:
    from fedveca.tasks.datasets.download import get

    print(get(args.name, args.data_dir))
    return 0
