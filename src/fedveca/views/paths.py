"""Where views read runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedveca.errors import UserError, printable
from fedveca.runs.folder import Run
from fedveca.views.series import list_metrics

SKIPPED = "skipped: "


def find_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these folders and below them, each once; and what was skipped, in a sentence each."""
    if isinstance(paths, str | Path) or not paths:
        raise UserError(f"paths={paths!r} is not a list of folders; name run folders, or folders of them")
    runs: dict[Path, Run] = {}
    skipped = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; name run folders, or folders of them")
        folders = [path] if (path / "experiment.toml").exists() else sorted(_find_folders(path))
        if not folders:
            raise UserError(f"{path} holds no run folder")
        for folder in folders:
            try:
                runs.setdefault(folder.resolve(), _open_run(folder))
            except ValueError as error:
                if folder == path:
                    raise
                skipped.append(f"{SKIPPED}{error}")
    if not runs:
        raise UserError(f"{paths[0]} holds no run that can be read: {skipped[0].removeprefix(SKIPPED)}")
    return list(runs.values()), skipped


def _find_folders(path: Path) -> Iterator[Path]:
    """The folders that hold settings, however deep; links are not followed."""
    left = [path]
    while left:
        here = left.pop()
        with contextlib.suppress(OSError), os.scandir(here) as entries:
            for entry in entries:
                if entry.name == "experiment.toml":
                    yield here
                if entry.is_dir(follow_symlinks=False):
                    left.append(here / entry.name)


def _open_run(folder: Path) -> Run:
    """A run that can be shown."""
    run = Run.open(folder)
    try:
        list_metrics([run])
    except ValueError as error:
        raise UserError(f"{printable(str(folder), 400)} cannot be shown: {error}") from error
    return run
