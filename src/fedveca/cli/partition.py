"""fedveca partition: which client owns which rows."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command, add_experiment, add_output, parse_experiment, print_result
from fedveca.errors import count_noun
from fedveca.views.terminal.loading import show_loading

MOST_CLIENTS = 40  # of the table


def add(command: Command) -> None:
    examples = (
        ("fedveca partition", "the preset digits-case3"),
        ("fedveca partition partition=dirichlet concentration=0.3 clients=20", "an uneven draw"),
    )
    partition = command("partition", _partition, "Show how many rows of each label every client has.", examples)
    add_experiment(partition)
    add_output(partition)


def _partition(args: argparse.Namespace) -> int:
    _, experiment = parse_experiment(args.words)
    with show_loading(args.quiet or args.json):
        from fedveca.runs.build import build
        from fedveca.tasks.partition import label_counts
        from fedveca.views.terminal.screen import Screen
        from fedveca.views.terminal.tables import make_partition_table
    built = build(experiment)
    counts = label_counts(built.shares, built.data.y, built.data.classes)
    with Screen(args.quiet or args.json) as screen:
        screen.print(make_partition_table(counts[:MOST_CLIENTS], screen.out.width))
        if len(counts) > MOST_CLIENTS:
            screen.print(f"... and {count_noun(len(counts) - MOST_CLIENTS, 'more client')}")
    print_result(args, {"clients": len(counts), "labels": counts.tolist()})
    return 0
