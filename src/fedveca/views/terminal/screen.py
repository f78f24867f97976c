"""What the terminal shows and when: progress, results; plain lines where there is no terminal."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from pathlib import Path
from typing import TextIO

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedveca.errors import count_noun
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.observers import Observer
from fedveca.runs.schema import Round, find_metric, format_value, get_number, short_label
from fedveca.views.terminal.console import make_console
from fedveca.views.terminal.tables import make_model_table

LOGGER = logging.getLogger("fedveca")


class Screen(Observer):
    """Results on standard output; progress, notes and warnings on standard error."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.out, self.error = make_console(), make_console(stderr=True)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a stream that has no ± still gets its table
        columns = (BarColumn(20), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
        self._progress = Progress(*columns, console=self.error, transient=True)
        self._experiment = Experiment()
        self._task: TaskID | None = None  # of the run that is shown; it stays until the next one
        self._running = False
        self._handler = _LogHandler(self)
        self._show_warning = warnings.showwarning

    def __enter__(self) -> Screen:
        self._show_warning, warnings.showwarning = warnings.showwarning, self._show_ours
        self._level = LOGGER.level
        LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(self._handler)
        if not self.quiet and self.error.is_terminal:
            self._progress.start()
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

    def _stop_progress(self) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def print(self, result: str | Text | Table) -> None:
        """A result; from here on there is no progress."""
        self._stop_progress()
        if not self.quiet:
            self.out.print(result, markup=False, soft_wrap=not isinstance(result, Table))

    def note(self, text: str) -> None:
        """A line next to the progress, not among the results."""
        if not self.quiet:
            self.error.print(text, style="dim", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A line that is shown even when quiet."""
        self.error.print(text, style="yellow", markup=False, soft_wrap=True)

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        """A run begins."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._experiment, self._running = experiment, True
        self._task = self._progress.add_task(_name_run(experiment), total=experiment.rounds)

    def round(self, record: Round) -> None:
        """The progress of the run; in a file every tenth of the rounds."""
        e, k, faults = self._experiment, record["round"] + 1, record.get("faults", [])
        if not e.faults:  # those that were asked for are not news
            for fault in faults:
                self.warn(f"{_name_run(e)}: round {k}: client {fault['client']} {fault['what']}")
        if diverged := sorted(set(record["left_out"]) - {fault["client"] for fault in faults}):
            self.warn(f"{_name_run(e)}: round {k}: left out, not finite: client {', '.join(map(str, diverged))}")
        if self.quiet or self._task is None:
            return
        text = _describe_round(e, record)
        self._progress.update(self._task, completed=k, description=text)
        if not self.error.is_terminal and (k % max(1, e.rounds // 10) == 0 or k == e.rounds):
            left = self._progress.tasks[-1].time_remaining
            self.error.print(text if left is None else f"{text}  {left:.0f} s left", markup=False, soft_wrap=True)

    def end(self, run: Run) -> None:
        """A run is over; one whose rounds were not seen, in a worker process, gets a line."""
        if self._running:
            self._running = False
        elif run.summary and not self.quiet:
            kept, metric = run.summary["kept"], run.metric
            value, loss = format_value(metric, get_number(kept, metric)), format_value("test_loss", kept["test_loss"])
            text = f"{_name_run(run.experiment)}  {short_label(metric)} {value}  loss {loss}"
            self.error.print(text, markup=False, soft_wrap=True)

    def report_divergence(self, run: Run) -> None:
        """Says why, if the run ended early."""
        if run.diverged:
            self._stop_progress()
            text = f"{_name_run(run.experiment)} stopped: {run.summary['stopped']}"
            self.error.print(text, style="red", markup=False)

    def summarize(self, run: Run) -> None:
        """The closing lines of one run."""
        self.report_divergence(run)
        s = run.summary
        self.print(make_model_table(run))
        self.print(f"{s['tau_all']} local steps in {count_noun(s['rounds'], 'round')}, {s['seconds']:.1f} s")
        if "epsilon" in s:
            delta = run.experiment.dp_delta
            self.print(f"differential privacy: epsilon {s['epsilon']:.4g} at delta {delta:g}, a client as the unit")
        self.print(f"run folder: {run.folder}")


class _LogHandler(logging.Handler):
    """The package's log on the screen."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self.screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        (self.screen.warn if record.levelno >= logging.WARNING else self.screen.note)(self.format(record))


def _name_run(e: Experiment) -> str:
    return f"{e.method} seed {e.seed}"


def _describe_round(e: Experiment, record: Round) -> str:
    metric, tau = find_metric([record]), record["tau"]
    value, loss = get_number(record, metric), get_number(record, "test_loss")
    parts = [_name_run(e), f"round {record['round'] + 1}/{e.rounds}"]
    if value is not None and loss is not None:
        parts += [f"{short_label(metric)} {format_value(metric, value)}", f"loss {format_value('test_loss', loss)}"]
    parts.append(f"tau {tau if len(tau) <= 8 else f'{min(tau)}..{max(tau)}'}")
    if "epsilon" in record:
        parts.append(f"epsilon {record['epsilon']:.3g}")
    if faults := record.get("faults"):
        parts.append(f"faults {len(faults)}")
    return "  ".join(parts)
