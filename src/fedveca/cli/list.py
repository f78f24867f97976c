"""fedveca list: everything that settings can name, and the settings."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command, add_output, print_result


def add(command: Command) -> None:
    examples = (
        ("fedveca list settings", "every setting, its default and what is allowed"),
        ("fedveca list alpha", "one setting explained"),
        ("fedveca list dirichlet", "a name that a setting can have"),
    )
    text = "List presets, methods, models, data sets, partitions and settings, or explain one."
    sub = command("list", _list, text, examples)
    sub.add_argument(
        "topic",
        nargs="?",
        default="",
        metavar="WHAT",
        help="presets, methods, models, data, partitions or settings; a setting; or a name that one can have",
    )
    add_output(sub)


def _list(args: argparse.Namespace) -> int:
    from fedveca.runs.setting_checks import FIELDS
    from fedveca.views.terminal import lists
    from fedveca.views.terminal.console import make_console

    console, what, settings = make_console(), args.topic, lists.list_settings()
    console.quiet = args.quiet or args.json
    result: dict[str, object]
    if what == "settings":
        lists.show_settings(console)
        result = {what: settings}
    elif what in lists.TOPICS:
        lists.show_names(console, what)
        result = {what: lists.list_choices()[what]}
    elif what in FIELDS:
        lists.show_setting(console, what)
        result = {what: settings[what]}
    elif what:
        lists.show_name(console, what)
        result = {what: lists.describe_name(what)}
    else:
        lists.show_overview(console)
        result = {**lists.list_choices(), "settings": settings}
    print_result(args, result)
    return 0
