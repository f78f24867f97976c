"""What the terminal shows and when: progress, results; plain lines where there is no terminal."""

from __future__ import annotations

import io
import logging
import shlex
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.style import Style
from rich.table import Table
from rich.text import Text

from fedveca.errors import count_noun
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.observers import ComparisonObserver, Observer
from fedveca.runs.run import log_of_results
from fedveca.runs.schema import Round
from fedveca.views.run_text import describe_privacy
from fedveca.views.terminal.console import make_console
from fedveca.views.terminal.lines import (
    Pace,
    count_runs,
    describe_end,
    describe_round,
    describe_start,
    fill_lines,
    find_device,
    format_seconds,
    name_device,
    name_run,
)
from fedveca.views.terminal.tables import (
    describe_simulated_time,
    describe_work,
    make_client_table,
    make_model_table,
)

LOGGER = logging.getLogger("fedveca")
BAR, NARROW = 20, 90  # columns of a bar, and of the narrowest terminal that gets one
REPEATS = 3  # rounds of a run of which it is said that clients were left out
SILENCE = 10.0  # seconds after which a comparison writes a line into a file


@dataclass
class _Row:
    """One run under way."""

    experiment: Experiment
    record: Round | None = None
    pace: Pace = field(default_factory=Pace)
    left_out: int = 0  # rounds in which clients were
    keys: tuple[str, ...] = ()  # settings in which it differs from the other runs of a sweep

    def __rich_console__(self, console: Console, options: object) -> list[Table]:
        e, k = self.experiment, self.record["round"] + 1 if self.record else 0
        bar = (
            [ProgressBar(total=None if e.budget else e.rounds, completed=k, width=BAR)]
            if console.width >= NARROW
            else []
        )
        text, width = f"{name_run(e, self.keys)}  starting", console.width - (BAR + 1 if bar else 0)
        if self.record:
            left = None if e.budget else self.pace.left(e.rounds - k)
            text = describe_round(e, self.record, left, width, self.keys)
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(*bar, Text(text, no_wrap=True, overflow="ellipsis"))
        return [line]


class Screen(ComparisonObserver):
    """Results on standard output; progress, notes and warnings on standard error."""

    def __init__(self, quiet: bool = False, device: str = "") -> None:
        self.quiet, self.device = quiet, device
        self.out, self.error = make_console(full=True), make_console(stderr=True)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a stream that has no ± still gets its table
        self._spinner = Spinner("dots", style="dim")
        self._rows: dict[str, _Row] = {}  # runs under way; one run, or one per worker
        self._total = self._done = 0  # runs of a comparison
        self._began = self._spoke = time.monotonic()
        self._keys: tuple[str, ...] = ()  # settings that are swept
        self._warned = ""  # the last warning
        self._head: list[str] = []  # of a comparison, until its first run has begun
        self._handler = _LogHandler(self)
        self._show_warning = warnings.showwarning
        self._live = Live(console=self.error, transient=True, get_renderable=self._render, refresh_per_second=8)

    def __enter__(self) -> Screen:
        self._show_warning, warnings.showwarning = warnings.showwarning, self._show_ours
        self._level = LOGGER.level
        LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(self._handler)
        if not self.quiet and self.error.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_progress()
        LOGGER.removeHandler(self._handler)
        LOGGER.setLevel(self._level)
        warnings.showwarning = self._show_warning

    def _show_ours(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """The package's own warnings are for people: their text is enough."""
        if category.__module__.startswith("fedveca."):
            self.warn(str(message))
        else:
            self._show_warning(message, category, filename, lineno, file, line)

    @property
    def is_tuning(self) -> bool:
        """Whether the runs under way are trials of a sweep."""
        return bool(self._keys)

    def _stop_progress(self) -> None:
        if self._live.is_started:
            self._live.stop()

    def _render(self) -> Group:
        """The lines that live: one per run under way, and where a comparison stands; a spinner while nothing runs."""
        lines: list[_Row | Text | Spinner] = list(self._rows.values())
        spent = format_seconds(time.monotonic() - self._began)
        if self._total:
            now = min(self._total, self._done + max(1, len(self._rows)))
            lines.append(Text(f"run {now} of {self._total}, {self._done} done, {spent}", style="dim", no_wrap=True))
        if not self._rows:
            doing = "writing the results" if self._done and self._done == self._total else "preparing"
            self._spinner.update(text=Text(f"{doing}, {spent}", style="dim"))
            lines.insert(0, self._spinner)
        return Group(*lines)

    def print(self, result: str | Text | Table) -> None:
        """A result; from here on there is no progress."""
        self._stop_progress()
        if not self.quiet:
            self.out.print(result, markup=False, soft_wrap=not isinstance(result, Table))

    def print_names(self, label: str, names: list[str], note: str) -> None:
        """A result's names with commas between them; a line of a terminal ends between two of them."""
        *others, last = names
        parts = [*others, f"{last} {note}"]
        width = self.out.width if self.out.is_terminal else 10**6
        self.print("\n".join(fill_lines([f"{label}: {parts[0]}", *parts[1:]], width)))

    def print_path(self, label: str, path: Path) -> None:
        """A result's file or folder on a line of its own; terminals that can make it a link do."""
        shown = Text(str(path), style=Style(link=path.absolute().as_uri()))
        fits = not self.out.is_terminal or len(label) + 2 + len(shown) <= self.out.width
        self.print(Text.assemble(f"{label}:{' ' if fits else chr(10)}", shown))

    def note(self, text: str) -> None:
        """A line next to the progress, not among the results."""
        if not self.quiet:
            self._say(text, "dim")

    def warn(self, text: str) -> None:
        """A line that is shown even when quiet."""
        self._warned = text
        self._say(text, "yellow", soft_wrap=not self.error.is_terminal)

    def _say(self, text: str, style: str = "", soft_wrap: bool = True) -> None:
        self._spoke = time.monotonic()
        self.error.print(text, style=style, markup=False, soft_wrap=soft_wrap)

    @property
    def _width(self) -> int:
        return self.error.width if self.error.is_terminal else 10**6

    def plan(self, experiment: Experiment, methods: tuple[str, ...], seeds: int, workers: int, folder: Path) -> None:
        """A comparison begins."""
        self._plan(len(methods) * seeds, f"{count_noun(len(methods), 'method')}", experiment, seeds, workers, folder)

    def plan_tuning(
        self,
        experiment: Experiment,
        methods: tuple[str, ...],
        keys: tuple[str, ...],
        trials: int,
        seeds: int,
        workers: int,
        folder: Path,
    ) -> None:
        """A sweep begins."""
        what = f"tuning {count_noun(len(methods), 'method')}: {count_noun(trials, 'trial')}"
        self._plan(trials * seeds, what, experiment, seeds, workers, folder)
        self._keys = keys

    def _plan(self, runs: int, what: str, experiment: Experiment, seeds: int, workers: int, folder: Path) -> None:
        self._total, self._done, self._keys, self._rows = runs, 0, (), {}
        each = f"{what} x {count_noun(seeds, 'seed')} = {count_runs(runs)}"
        about = describe_start(experiment, self.device or "CPU")[0].split(", ")[1:]  # without the method
        about = [part for part in about if not part.startswith("seed ") and (self.device or not part.startswith("on "))]
        side_by_side = [f"{workers} workers"] if workers > 1 else []
        self._head = [*fill_lines([each, *about, *side_by_side], self._width), str(folder)]

    def _show_head(self) -> None:
        """What is compared: said when a run has begun, and not where bad input is rejected."""
        for line in self._head if not self.quiet else ():
            self._say(line)
        self._head = []

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        """A run begins."""
        self._rows = {"": _Row(experiment, keys=self._keys)}
        self._show_head()
        if not self.quiet and not self._total:
            for line in describe_start(experiment, self.device or find_device(folder), self._width, folder):
                self._say(line)
            if folder:
                self._say(str(folder), "dim")

    def round(self, record: Round) -> None:
        """The progress of the run; in a file every tenth of the rounds."""
        self._show_round("", record)

    def begin_in_worker(self, experiment: Experiment, folder: Path) -> None:
        """A run of another process begins."""
        self._rows[str(folder)] = _Row(experiment, keys=self._keys)
        self._show_head()

    def see_round_in_worker(self, folder: Path, record: Round) -> None:
        """A round of such a run."""
        self._show_round(str(folder), record)

    def _show_round(self, key: str, record: Round) -> None:
        row = self._rows.get(key)
        if row is None:
            return
        e, k, faults = row.experiment, record["round"] + 1, record.get("faults", [])
        row.record = record
        row.pace.add()
        if not e.faults:  # those that were asked for are not news
            for fault in faults:
                self.warn(f"{name_run(e)}: round {k}: client {fault['client']} {fault['what']}")
        if diverged := sorted(set(record["left_out"]) - {fault["client"] for fault in faults}):
            row.left_out += 1
            if row.left_out <= REPEATS and not row.keys:
                clients = ", ".join(map(str, diverged))
                more = "; later rounds are not reported here" if row.left_out == REPEATS else ""
                self.warn(f"{name_run(e)}: round {k}: left out, not finite: client {clients}{more}")
        if self.quiet or self.error.is_terminal:
            return
        tenth = k % (10 if e.budget else max(1, e.rounds // 10)) == 0 or k == e.rounds
        if time.monotonic() - self._spoke > SILENCE if self._total else tenth:
            left = None if e.budget else row.pace.left(e.rounds - k)
            self._say(describe_round(e, record, left, keys=row.keys))

    def end(self, run: Run) -> None:
        """A run is over; those of a comparison leave a line."""
        if self._rows.pop(str(run.folder), None):  # its process has shown no warning
            for text in run.summary.get("warnings", []) if not self._keys else ():
                self.warn(f"{name_run(run.experiment)}: {text}")
        if self._total:
            self._rows.pop("", None)
            self._done += 1
            if run.summary and not self.quiet:
                self._say(describe_end(run, self._width, f"run {self._done} of {self._total}: ", self._keys))

    def count_done(self, run: Run) -> None:
        """A run of the comparison that an earlier command has finished."""
        self._show_head()
        self._done += 1

    def report_divergence(self, run: Run) -> None:
        """Says why, if the run ended early."""
        text = f"{name_run(run.experiment)} stopped: {run.summary['stopped']}" if run.diverged else ""
        if text and text != self._warned:
            self._stop_progress()
            self.error.print(text, style="red", markup=False)

    def summarize(self, run: Run) -> None:
        """The closing lines of one run."""
        self.report_divergence(run)
        s = run.summary
        self.print(make_model_table(run))
        if clients := make_client_table(run):
            self.print("")
            self.print(clients)
        self.print(f"{describe_work(run)}, {s['seconds']:.1f} s")
        if simulated := describe_simulated_time(run):
            self.print(simulated)
        if privacy := describe_privacy(run):
            self.print(privacy)
        if run.folder:
            self.print_path("run folder", run.folder)
            folder, above = shlex.quote(str(run.folder)), shlex.quote(str(run.folder.parent))
            self.suggest(f"fedveca report {folder}", f"fedveca show {folder}", f"fedveca board {above}")

    def suggest(self, *commands: str) -> None:
        """The commands that come next."""
        self.note("\n  ".join(("next:", *commands)))


class RunProgress(Observer):
    """A screen for one run that Python started: it opens with the run and closes with it."""

    def __init__(self, device: str) -> None:
        self._screen = Screen(device=name_device(device))

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        self._screen.__enter__()
        self._screen.start(experiment, folder)

    def round(self, record: Round) -> None:
        self._screen.round(record)

    def end(self, run: Run) -> None:
        self._screen.end(run)
        if run.summary:
            self._screen.note(describe_end(run))
        self._screen.__exit__()


def make_progress(device: str) -> Observer:
    """What shows a run that Python started: a line of a terminal or of a notebook."""
    from fedveca.views.notebook import NotebookProgress, is_notebook  # with Jinja2, which no command needs here

    return NotebookProgress() if is_notebook() else RunProgress(device)


class _LogHandler(logging.Handler):
    """The package's log on the screen."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self.screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if self.screen.is_tuning and record.name == log_of_results.name:
            return  # many settings of a sweep fail, and what is chosen does not
        (self.screen.warn if record.levelno >= logging.WARNING else self.screen.note)(self.format(record))
