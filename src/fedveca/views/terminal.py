"""What the terminal shows: a live line, tables; plain lines where there is no terminal."""

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

from fedveca.runs.experiment import FIELDS, METHODS, Experiment, presets, range_of
from fedveca.runs.record import Run
from fedveca.tasks.data import NAMES
from fedveca.tasks.partition import RULES
from fedveca.views.trackers import TrackerFailed


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
        self, message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
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
                    said = f"{name}: round {k}: client {fault['client']} {fault['what']}"
                    self.progress.print(said, style="yellow", markup=False, soft_wrap=True)
            if wild := sorted(set(line["left_out"]) - {fault["client"] for fault in faults}):
                who = ", ".join(map(str, wild))
                self.progress.print(f"{name}: round {k}: left out, not finite: client {who}", style="yellow")
            if self.quiet:
                return
            left = (time.perf_counter() - began) / k * (total - k)
            told = Run(experiment, [line], {}).metric
            test = (
                f"  {_said(told)} {_value(told, line[told])}  loss {line['test_loss']:.4f}"
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
                f"{study}{': ' if study else ''}{e.method} seed {e.seed}  {_said(told)} {_value(told, kept[told])}  "
                f"loss {_number(kept['test_loss'])}", soft_wrap=True,
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
        rows = Table(box=None, pad_edge=False)
        for heading in ("model", "of round", f"test {_said(run.metric)}", "test loss"):
            rows.add_column(heading, justify="left" if heading == "model" else "right")
        for which in ("kept", "last"):
            s = run.summary[which]
            rows.add_row(which, str(s["round"]), _value(run.metric, s[run.metric]), _number(s["test_loss"]))
        s = run.summary
        self._print(rows)
        self.say(f"{s['tau_all']} local steps in {s['rounds']} rounds, {s['seconds']:.1f} s")
        if "epsilon" in s:
            e = run.experiment
            self.say(f"differential privacy: epsilon {s['epsilon']:.4g} at delta {e.dp_delta:g}, a client as the unit")
        self.say(f"run folder: {run.folder}")

    def table(self, rows: list[dict[str, Any]], name: str) -> None:
        """The methods side by side, last and kept model; the best of each column in bold."""
        shown = Table(title=Text(name), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        shown.add_column("\nmethod", no_wrap=True)
        shown.add_column("local\nsteps", justify="right", no_wrap=True)
        names = sorted(rows[0]["kept"], key="test_loss".__eq__)  # the loss last
        columns = [(w, n) for w in ("kept", "last") for n in names]
        for which, what in columns:
            shown.add_column(f"{which}\n{_said(what)}{' %' if 'acc' in what else ''}", justify="right", no_wrap=True)
        best = {}
        for which, what in columns:
            rivals = [r[which][what]["mean"] for r in rows if r["method"] != "centralised"]
            known = [mean for mean in rivals if mean is not None]
            known = known if what in ("test_accuracy", "test_loss") else []  # of others, who knows what is better
            best[which, what] = (max if "acc" in what else min)(known, default=None)
        for row in rows:
            cells = []
            for which, what in columns:
                mean, std = row[which][what]["mean"], row[which][what]["std"]
                scale, digits = (100, 2) if "acc" in what else (1, 4)
                text = "-" if mean is None else f"{scale * mean:.{digits}f} ±{scale * std:.{digits}f}"
                bold = mean is not None and mean == best[which, what] and row["method"] != "centralised"
                cells.append(f"[bold]{text}[/bold]" if bold else text)
            shown.add_row(row["method"], f"{row['tau_all']:.0f}", *cells)
        self._print(shown)

    def paper(self, content: dict[str, Any]) -> None:
        """One result beside the paper's: its table where it has one, and what the paper says of it."""
        if content["what"] == "table1":
            for entry in content["results"]:
                self._table1(entry["task"], entry["rows"])
        shown = Table(title=Text(content["what"]), title_justify="left", box=None, pad_edge=False, show_header=False)
        for claim in content["claims"]:
            word, style = {True: ("yes", "green"), False: ("no", "red")}.get(claim["holds"], ("partly", "yellow"))
            said = Text.assemble(claim["claim"], "\n", (claim["evidence"], "dim"))
            shown.add_row(Text(word, style=style), said)
        self._print(shown)

    def _table1(self, task: str, rows: list[dict[str, Any]]) -> None:
        title = Text(f"Table I, {task}")
        shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
        shown.add_column("\nmethod", no_wrap=True)
        for heading in ("accuracy %\nkept", "\nlast", "\npaper", "loss x 100\nkept", "\nlast", "\npaper"):
            shown.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            cells = []
            for name in ("test_accuracy", "test_loss"):
                digits = 1 if row["paper"][name] > 1 else 2
                ours = (row[which][name] for which in ("kept", "last"))
                cells += [f"{100 * v['mean']:.{digits}f} ±{100 * v['std']:.{digits}f}" for v in ours]
                cells.append(f"{100 * row['paper'][name]:.{digits}f}")
            shown.add_row(row["method"], *cells)
        self._print(shown)

    def partition(self, counts: Tensor, most: int = 40) -> None:
        """Label counts, one row a client."""
        shown = Table(box=None, pad_edge=False)
        shown.add_column("client", justify="right")
        for label in range(counts.shape[1]):
            shown.add_column(str(label), justify="right")
        shown.add_column("rows", justify="right")
        for i, row in enumerate(counts[:most].tolist()):
            shown.add_row(str(i), *(str(c) if c else "·" for c in row), str(sum(row)))
        self._print(shown)
        if len(counts) > most:
            self.say(f"... and {len(counts) - most} more clients")

    def settings(self) -> None:
        """Everything that can be named."""
        if self.quiet:
            return
        for title, names in named().items():
            self.out.print(f"[bold]{title}[/bold]  {'  '.join(names)}")
        shown = Table(title="settings (key=value)", title_justify="left", box=None, pad_edge=False)
        for heading in ("key", "default", "allowed", "meaning"):
            shown.add_column(heading, no_wrap=heading == "key", overflow="fold")
        for key, of in settings().items():
            shown.add_row(key, str(of["default"]) or '""', of["allowed"].replace("[", "\\["), of["text"])
        self.out.print()
        self._print(shown)

    def _print(self, table: Table) -> None:
        if not self.quiet:
            self._still()
            self.out.print(table, soft_wrap=False)


def named() -> dict[str, list[str]]:
    """The values that can be named, by what they are of."""
    models = ["svm", "cnn", "mlp", "package.module:factory"]
    methods, rules = list(METHODS), list(RULES)
    return {"methods": methods, "data": list(NAMES), "models": models, "partitions": rules, "presets": presets()}


def settings() -> dict[str, dict[str, Any]]:
    """Every setting with its default, what is allowed and its line of text."""
    return {
        key: {"default": field.default, "allowed": range_of(field), "text": field.metadata["text"]}
        for key, field in FIELDS.items()
    }


def _short(tau: list[int]) -> str:
    return str(tau) if len(tau) <= 8 else f"{min(tau)}..{max(tau)}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:5.2f} %"


def _said(name: str) -> str:
    """test_absolute_error -> absolute error."""
    return name.removeprefix("test_").replace("_", " ")


def _value(name: str, value: float | None) -> str:
    return _percent(value) if name == "test_accuracy" else _number(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
