"""What the terminal shows and when: a live line, tables; plain lines where there is no terminal."""

from __future__ import annotations

import io
import os
import sys
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.trackers.tracking import TrackerFailed
from fedveca.views.terminal import tables


class Screen:
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

    def run(self, experiment: Experiment) -> Callable[[dict[str, Any]], None]:
        """A watcher of one run's rounds."""
        began, total = time.perf_counter(), experiment.rounds
        every = max(1, total // 10)
        name = f"{experiment.method} seed {experiment.seed}"

        def watch(line: dict[str, Any]) -> None:
            k = line["round"] + 1
            faults = line.get("faults", [])
            if not experiment.faults:  # those by design are no news
                for fault in faults:
                    self.warn(f"{name}: round {k}: client {fault['client']} {fault['what']}")
            if wild := sorted(set(line["left_out"]) - {fault["client"] for fault in faults}):
                who = ", ".join(map(str, wild))
                self.warn(f"{name}: round {k}: left out, not finite: client {who}")
            if self.quiet:
                return
            left = (time.perf_counter() - began) / k * (total - k)
            told = Run(experiment, [line], {}).metric
            test = (
                f"  {tables.metric_label(told)} {tables.value(told, line[told])}  loss {line['test_loss']:.4f}"
                if line.get(told) is not None and line.get("test_loss") is not None
                else ""
            )
            more = f"  epsilon {line['epsilon']:.3g}" if "epsilon" in line else ""
            more += f"  faults {len(faults)}" if faults else ""
            text = f"{name}  round {k}/{total}{test}  tau {_short(line['tau'])}{more}  {left:.0f} s left"
            if self._live:
                bar = "━" * round(20 * k / total)
                self._live.update(Text.assemble((bar, "green"), ("━" * (20 - len(bar)), "dim"), " ", text))
            elif k % every == 0 or k == total:
                self.progress.print(text, soft_wrap=True)

        return watch

    def ended(self, run: Run, study: str = "") -> None:
        """One line of a run whose rounds were not watched."""
        e, kept, told = run.experiment, run.summary["kept"], run.metric
        if not self.quiet:
            self.progress.print(
                f"{study}{': ' if study else ''}{e.method} seed {e.seed}  {tables.metric_label(told)} "
                f"{tables.value(told, kept[told])}  loss {tables.number(kept['test_loss'])}",
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

    def table(self, rows: list[dict[str, Any]], name: str) -> None:
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
