"""What the terminal shows and when: a live line, tables; plain lines where there is no terminal."""

from __future__ import annotations

import io
import os
import sys
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedveca.runs.compare import TableRow
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.observers import Observer
from fedveca.runs.schema import Round, find_metric, format_value, get_number, short_label
from fedveca.trackers.tracking import TrackerFailed
from fedveca.views.terminal import tables


class Screen(Observer):
    """Results on standard output, progress and warnings on standard error."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        plain = any(map(os.environ.get, ("NO_COLOR", "CI"))) or os.environ.get("TERM") == "dumb"
        terminal = False if plain else None  # None: found out by looking
        self.out = Console(highlight=False, soft_wrap=True, force_terminal=terminal)
        self.progress = Console(stderr=True, highlight=False, force_terminal=terminal)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a stream that knows no ± still gets its table
        self._live: Live | None = None
        self.experiment, self.began = Experiment(), 0.0
        self._show = warnings.showwarning

    def __enter__(self) -> Screen:
        self._show, warnings.showwarning = warnings.showwarning, self._warned
        if not self.quiet and self.progress.is_terminal:
            self._live = Live(console=self.progress, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._still()
        warnings.showwarning = self._show

    def _warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, TrackerFailed):
            self.warn(str(message))
        else:
            self._show(message, category, filename, lineno, file, line)

    def _still(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        if not self.quiet:
            self._still()
            self.out.print(text, markup=False)

    def note(self, text: str) -> None:
        """Beside the progress, not among the results."""
        if not self.quiet:
            self.progress.print(text, style="dim", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Said even when quiet."""
        self.progress.print(text, style="yellow", markup=False, soft_wrap=True)

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        """A run begins."""
        self.experiment, self.began = experiment, time.perf_counter()

    def round(self, record: Round) -> None:
        """The live line, or in a file every tenth of the rounds."""
        e = self.experiment
        k, total, name = record["round"] + 1, e.rounds, f"{e.method} seed {e.seed}"
        faults = record.get("faults", [])
        if not e.faults:  # those by design are no news
            for fault in faults:
                self.warn(f"{name}: round {k}: client {fault['client']} {fault['what']}")
        if diverged := sorted(set(record["left_out"]) - {fault["client"] for fault in faults}):
            self.warn(f"{name}: round {k}: left out, not finite: client {', '.join(map(str, diverged))}")
        if self.quiet:
            return
        left = (time.perf_counter() - self.began) / k * (total - k)
        metric = find_metric([record])
        values = get_number(record, metric), get_number(record, "test_loss")
        test = ""
        if None not in values:
            test = f"  {short_label(metric)} {format_value(metric, values[0])}  loss {values[1]:.4f}"
        more = f"  epsilon {record['epsilon']:.3g}" if "epsilon" in record else ""
        more += f"  faults {len(faults)}" if faults else ""
        text = f"{name}  round {k}/{total}{test}  tau {_short(record['tau'])}{more}  {left:.0f} s left"
        if self._live:
            bar = "━" * round(20 * k / total)
            self._live.update(Text.assemble((bar, "green"), ("━" * (20 - len(bar)), "dim"), " ", text))
        elif k % max(1, total // 10) == 0 or k == total:
            self.progress.print(text, soft_wrap=True)

    def end(self, run: Run) -> None:
        """One line of a run whose rounds were not seen: those of worker processes."""
        if run.summary and not self.quiet and self.experiment != run.experiment:
            e, kept, metric = run.experiment, run.summary["kept"], run.metric
            self.progress.print(
                f"{e.method} seed {e.seed}  {short_label(metric)} {format_value(metric, get_number(kept, metric))}"
                f"  loss {format_value('test_loss', kept['test_loss'])}",
                soft_wrap=True,
            )

    def stopped(self, run: Run) -> None:
        """Says why, if the run could not go on."""
        if "stopped" in run.summary:
            self._still()
            e = run.experiment
            self.progress.print(f"{e.method} seed {e.seed} stopped: {run.summary['stopped']}", style="red")

    def summary(self, run: Run) -> None:
        """The closing lines of one run."""
        self.stopped(run)
        s = run.summary
        self._print(tables.models(run))
        self.say(f"{s['tau_all']} local steps in {s['rounds']} rounds, {s['seconds']:.1f} s")
        if "epsilon" in s:
            e = run.experiment
            self.say(f"differential privacy: epsilon {s['epsilon']:.4g} at delta {e.dp_delta:g}, a client as the unit")
        self.say(f"run folder: {run.folder}")

    def table(self, rows: list[TableRow], name: str) -> None:
        self._print(tables.methods(rows, name))

    def partition(self, counts: Tensor, most: int = 40) -> None:
        """Label counts, one row a client."""
        self._print(tables.partition(counts[:most]))
        if len(counts) > most:
            self.say(f"... and {len(counts) - most} more clients")

    def settings(self) -> None:
        """Everything that can be named."""
        if self.quiet:
            return
        for title, names in tables.named().items():
            self.out.print(f"[bold]{title}[/bold]  {'  '.join(names)}")
        self.out.print()
        self._print(tables.allowed())

    def _print(self, table: Table) -> None:
        if not self.quiet:
            self._still()
            self.out.print(table, soft_wrap=False)


def _short(tau: list[int]) -> str:
    return str(tau) if len(tau) <= 8 else f"{min(tau)}..{max(tau)}"
