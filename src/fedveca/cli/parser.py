"""How the command line is read and explained: groups of commands, examples, hints for the usual mistakes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fedveca.errors import find_near, printable, quoted, suggest

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

WIDEST_HELP = 100  # columns of a help text
NARROW_HELP = 70  # columns below which texts start further left
SETTINGS_NOTE = "Settings are written key=value: `fedveca list` shows them, `fedveca list rounds` explains one."
LEARN_MORE = (
    "`fedveca help COMMAND` explains a command; `fedveca list` shows presets, methods, models, data and settings."
)

Example = tuple[str, str]  # a command, and what it does
CommandFunction = Callable[[argparse.Namespace], int]


class HelpFormatter(argparse.HelpFormatter):
    """Argparse's layout, as wide as the terminal up to a line that is easy to read; indented lines stay as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._width = min(self._width, WIDEST_HELP)
        self._max_help_position = 17 if self._width < NARROW_HELP else 26

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        parts = (line if line.startswith(" ") else fill(line, width, indent) for line in text.split("\n"))
        return "\n".join(parts)


class Parser(argparse.ArgumentParser):
    """A parser whose help is in colour on a terminal, and whose options are written in full."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.formatter_class, self.allow_abbrev = HelpFormatter, False  # `compare --seed 3` is not --seeds
        self._positionals.title = "arguments"

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """The help, with headings, commands, options and comments in colour where it is read on a terminal."""
        text = self.format_help()
        if file is not None or not sys.stdout.isatty():
            super().print_help(file)
            return
        from rich.text import Text

        from fedveca.views.terminal.console import make_console

        shown = Text(text.rstrip("\n"))
        shown.highlight_regex(r"(?m)^usage:|^\w[\w ]*:$", "bold")
        shown.highlight_regex(r"(?m)^  [a-z]+(?=  |$)", "cyan")
        shown.highlight_regex(r"(?<![\w-])--?[a-zA-Z][\w-]*", "cyan")
        shown.highlight_regex(r"(?m)^  #.*$", "dim")
        make_console().print(shown, soft_wrap=True)

    def error(self, message: str) -> NoReturn:
        """One sentence and where to read more: argparse's usage has many lines."""
        self.fail(f"{message}; see `{self.prog} --help`")

    def fail(self, sentence: str) -> NoReturn:
        """Ends with a sentence that says all."""
        self.exit(2, f"fedveca: {printable(sentence, 1000)}\n")


class MainParser(Parser):
    """The parser of the whole command line: commands by subject."""

    def __init__(self, examples: Sequence[Example], **more: Any) -> None:
        super().__init__(prog="fedveca", **more)
        self.examples = examples
        self.commands = self.add_subparsers(metavar="COMMAND", parser_class=Parser)
        self.groups: dict[str, list[str]] = {}

    def add_command(
        self, group: str, name: str, function: CommandFunction, text: str, examples: Sequence[Example] = ()
    ) -> argparse.ArgumentParser:
        """A command of a group."""
        sub = self.commands.add_parser(name, help=text, description=text, epilog=format_examples(examples))
        sub.set_defaults(command=function, parser=sub)
        self.groups.setdefault(group, []).append(name)
        return sub

    def format_help(self) -> str:
        """Commands by subject, then examples."""
        formatter = HelpFormatter(self.prog)
        formatter.add_usage("fedveca COMMAND [...]", [], [])
        formatter.add_text(self.description)
        listed = {action.dest: action for action in self.commands._choices_actions}
        for group, names in self.groups.items():
            formatter.start_section(group)
            formatter.add_arguments([listed[name] for name in names])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(action for action in self._actions if action.option_strings)
        formatter.end_section()
        formatter.add_text(format_examples(self.examples))
        formatter.add_text(LEARN_MORE)
        return formatter.format_help()

    def explain_command(self, word: str) -> NoReturn:
        """Ends with a sentence about a word that is not a command."""
        from fedveca.runs.presets import presets
        from fedveca.runs.setting_checks import FIELDS

        near = suggest(word, (name for name in self.commands.choices if name != "rm"))  # nothing that removes runs
        if word.partition("=")[0] in FIELDS or word in presets():
            near = f" (did you mean `fedveca run {printable(word)}`?)"
        self.fail(f"{quoted(word)} is not a command{near}; `fedveca help` lists them")


def format_examples(examples: Sequence[Example]) -> str | None:
    """Examples under a heading, each with what it does above it."""
    return "\n".join(["examples:", *(f"  # {text}\n  {line}" for line, text in examples)]) if examples else None


def explain_unknown(parser: Parser, unknown: list[str], argv: list[str]) -> NoReturn:
    """Ends with a sentence about words that a command does not take.

    Args:
        parser: The command's.
        unknown: What it left over.
        argv: All words, where the value of an option that does not exist is the next one.
    """
    word = next((word for word in unknown if word.startswith("-")), unknown[0])
    if not word.startswith("-"):
        parser.error(f"{quoted(word)} is one argument too many for `{parser.prog}`")
    name, equals, value = word.lstrip("-").partition("=")
    options = [option.lstrip("-") for action in parser._actions for option in action.option_strings]
    near_option = find_near(name, options)
    if any(action.dest == "words" for action in parser._actions):
        from fedveca.runs.setting_checks import FIELDS

        key, next_word = name.replace("-", "_"), argv[argv.index(word) + 1 :][:1]
        if not equals and next_word and not next_word[0].startswith("-") and "=" not in next_word[0]:
            value = next_word[0]
        if key in FIELDS:
            parser.fail(f"{word} is not an option: settings are key=value: {key}={value or '...'}")
        if not near_option and (near := find_near(key, FIELDS)):
            parser.fail(f"{word} is not an option (did you mean {near}={value or '...'}?); settings are key=value")
    hint = f" (did you mean --{near_option}?)" if near_option else ""
    parser.error(f"{word} is not an option of `{parser.prog}`{hint}")
