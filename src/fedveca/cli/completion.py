"""fedveca completion: scripts for shells, which ask this program what may come next."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable
from pathlib import Path

from fedveca.cli.arguments import Command
from fedveca.cli.parser import MainParser

COMPLETE = "__complete"  # followed by the words of the line, the last one unfinished
ASK_FILES, ASK_FOLDERS = ":files", ":folders"  # said where the shell itself knows best
MOST_SUGGESTED = 100
SHELLS = {
    "bash": """\
# bash: put this into ~/.bashrc:  eval "$(fedveca completion bash)"
_fedveca() {
    local line="${COMP_LINE:0:COMP_POINT}" found candidate cut="" IFS=$'\\n'
    local -a words
    IFS=$' \\t\\n' read -r -a words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    local current="${words[${#words[@]}-1]}"
    found="$("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)"
    COMPREPLY=()
    # bash takes the part after the last = for a word of its own
    [[ "$current" == *=* && "$COMP_WORDBREAKS" == *=* ]] && cut="${current%%=*}="
    for candidate in $found; do
        case "$candidate" in
            :files) compopt -o filenames; COMPREPLY+=($(compgen -f -- "${current#"$cut"}")) ;;
            :folders) compopt -o filenames; COMPREPLY+=($(compgen -d -- "${current#"$cut"}")) ;;
            *=) compopt -o nospace; COMPREPLY+=("$candidate") ;;
            *) COMPREPLY+=("${candidate#"$cut"}") ;;
        esac
    done
}
complete -F _fedveca fedveca
""",
    "zsh": """\
# zsh: put this into ~/.zshrc:  eval "$(fedveca completion zsh)"
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_fedveca() {
    local -a found values keys
    found=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    keys=(${(M)found:#*=})
    values=(${found:#(*=|:files|:folders)})
    (( $#keys )) && compadd -S '' -- $keys
    (( $#values )) && compadd -- $values
    (( ${found[(I):files]} )) && _files
    (( ${found[(I):folders]} )) && _files -/
    return 0
}
compdef _fedveca fedveca
""",
    "fish": """\
# fish: put this into ~/.config/fish/config.fish:  fedveca completion fish | source
function __fedveca_complete
    set -l words (commandline -opc) (commandline -ct)
    for candidate in ($words[1] __complete $words[2..-1] 2>/dev/null)
        switch $candidate
            case :files
                __fish_complete_path (commandline -ct)
            case :folders
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $candidate
        end
    end
end
complete -c fedveca -f -a '(__fedveca_complete)'
""",
}


def add(command: Command) -> None:
    examples = (
        ('eval "$(fedveca completion bash)"', "in ~/.bashrc; the same with zsh in ~/.zshrc"),
        ("fedveca completion fish | source", "in config.fish"),
    )
    text = "Print a script that completes commands, options, presets and settings in a shell."
    sub = command("completion", _completion, text, examples)
    sub.add_argument("shell", choices=tuple(SHELLS), help="the shell that the script is for")


def _completion(args: argparse.Namespace) -> int:
    print(SHELLS[args.shell], end="")
    return 0


def print_candidates(parser: MainParser, words: list[str]) -> int:
    """What may come in place of the last word, one per line; nothing where something goes wrong."""
    with contextlib.suppress(Exception):  # a shell that completes is not the place for an error
        *before, current = words or [""]
        for candidate in sorted(set(find_candidates(parser, before, current))):
            print(candidate)
    return 0


def find_candidates(parser: MainParser, before: list[str], current: str) -> list[str]:
    """The words that may come next.

    Args:
        parser: The whole command line.
        before: The words after `fedveca`, up to the one that is completed.
        current: The one that is completed, as far as it was typed.

    Returns:
        Whole words that start with it; ASK_FILES or ASK_FOLDERS where the shell is to offer its own.
    """
    sub, left = _find_parser(parser, before)
    options = {name: action for action in sub._actions for name in action.option_strings}
    last = options.get(left[-1]) if left else None
    if last is not None and last.nargs != 0:
        return _match(_offer(last, current), current)
    if current.startswith("-"):
        return _match(options, current)
    return _match(_offer_positional(parser, sub, left, options, current), current)


def _find_parser(parser: MainParser, before: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of the command that the words name, and the words after the command."""
    sub: argparse.ArgumentParser = parser
    for at, word in enumerate(before):
        ways = _find_ways(sub)
        if ways is None or word not in ways.choices:
            return sub, before[at:]
        sub = ways.choices[word]
    return sub, []


def _find_ways(sub: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    return next((action for action in sub._actions if isinstance(action, argparse._SubParsersAction)), None)


def _offer_positional(
    parser: MainParser,
    sub: argparse.ArgumentParser,
    left: list[str],
    options: dict[str, argparse.Action],
    current: str,
) -> Iterable[str]:
    """What may stand in the next place that is not an option's."""
    plain = [
        word
        for at, word in enumerate(left)
        if not word.startswith("-") and not (at and left[at - 1] in options and options[left[at - 1]].nargs != 0)
    ]
    if sub.prog == "fedveca help":  # the names of commands, and of theirs
        ways = _find_ways(_find_parser(parser, plain)[0])
        return ways.choices if ways else ()
    places = [action for action in sub._actions if not action.option_strings]
    for place in places:
        if place.nargs in ("*", "+"):
            return _offer(place, current, plain)
        if not plain:
            return _offer(place, current)
        plain = plain[1:]
    return ()


def _offer(action: argparse.Action, current: str, before: list[str] | None = None) -> Iterable[str]:
    """The values of an option or of a place."""
    if action.choices is not None:
        return list(action.choices)
    if action.dest == "words":
        return _offer_settings(current, not before)
    if action.dest == "methods":
        return _offer_list(current, _list_methods())
    if action.dest == "topic":
        from fedveca.runs.setting_checks import FIELDS
        from fedveca.views.terminal.lists import TOPICS, list_choices

        return [*TOPICS, *FIELDS, *(name for names in list_choices().values() for name in names)]
    if action.dest == "download":
        from fedveca.runs.catalog import load_catalog

        return load_catalog()["downloads"]
    if action.dest in ("run", "a", "b"):
        return [ASK_FOLDERS, *_list_runs()]
    if action.metavar in ("DIR", "RUN", "RUNS_DIR", "FOLDER", "APP", "NODE"):
        return [ASK_FOLDERS]
    return [ASK_FILES] if action.metavar in ("FILE", "FILE.toml") else []


def _offer_settings(current: str, first: bool) -> Iterable[str]:
    """A preset in the first place, `key=`, and the values of a key."""
    from fedveca.runs.presets import presets
    from fedveca.runs.setting_checks import FIELDS
    from fedveca.views.terminal.lists import offer_values

    key, equals, value = current.partition("=")
    if not equals:
        return [*(presets() if first else ()), *(f"{key}=" for key in FIELDS)]
    if key not in FIELDS:
        return ()
    if FIELDS[key].metadata["some"]:
        return [f"{key}={each}" for each in _offer_list(value, offer_values(key))]
    return [f"{key}={name}" for name in offer_values(key)]


def _offer_list(current: str, names: Iterable[str]) -> list[str]:
    """Names with commas between: the last one is completed, and none is offered twice."""
    former, comma, _ = current.rpartition(",")
    return [f"{former}{comma}{name}" for name in names if name not in former.split(",")]


def _list_methods() -> list[str]:
    from fedveca.runs.catalog import known_methods

    return list(known_methods())


def _list_runs() -> list[str]:
    """Names of the newest runs in runs/, which `show` and `diff` understand."""
    from fedveca.cli.runs import HOME, NEWEST
    from fedveca.views.board.index import RunIndex

    names = [row.id for row in RunIndex(Path(HOME)).list_runs()[:MOST_SUGGESTED]]
    return [NEWEST, *names] if names else []


def _match(candidates: Iterable[str], current: str) -> list[str]:
    return [each for each in candidates if each in (ASK_FILES, ASK_FOLDERS) or each.startswith(current)]
