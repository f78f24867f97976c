"""fedveca list: everything that settings can name, and the settings."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command, add_output, print_result


def add(command: Command) -> None:
    text = "List all methods, data sets, models, partitions, presets and settings."
    add_output(command("list", _list, text))


def _list(args: argparse.Namespace) -> int:
    from rich.text import Text

    from fedveca.views.terminal.screen import Screen
    from fedveca.views.terminal.tables import list_choices, list_settings, make_settings_table

    with Screen(args.quiet or args.json) as screen:
        for title, names in list_choices().items():
            screen.print(Text.assemble((title, "bold"), "  ", "  ".join(names)))
        screen.print("")
        screen.print(make_settings_table())
    print_result(args, {**list_choices(), "settings": list_settings()})
    return 0
