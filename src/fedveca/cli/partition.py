"""fedveca partition: which client owns which rows."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command, add_experiment, add_output, parse_experiment, print_result

MOST_CLIENTS = 40  # of the table


def add(command: Command) -> None:
    partition = command("partition", _partition, "Show how many rows of each label every client has.")
    add_experiment(partition)
    add_output(partition)


def _partition(args: argparse.Namespace) -> int:
    from fedveca.runs.build import build
    from fedveca.tasks.partition import label_counts
    from fedveca.views.terminal.screen import Screen
    from fedveca.views.terminal.tables import make_partition_table

    _, experiment = parse_experiment(args.words)
    built = build(experiment)
    counts = label_counts(built.shares, built.data.y, built.data.classes)
    with Screen(args.quiet or args.json) as screen:
        screen.print(make_partition_table(counts[:MOST_CLIENTS]))
        if len(counts) > MOST_CLIENTS:
            screen.print(f"... and {len(counts) - MOST_CLIENTS} more clients")
    print_result(args, {"clients": len(counts), "labels": counts.tolist()})
    return 0
