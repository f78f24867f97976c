"""What a terminal shows of devices: fitted profiles, predicted and measured times, and plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from fedveca.cohorts.clock.profiles import DeviceProfile
from fedveca.errors import count_noun, printable
from fedveca.runs.device_fit import ClientTime, RoundTime
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder_types import Json
from fedveca.runs.plan import SIMULATED, PastRun, Plan
from fedveca.runs.schema import Round
from fedveca.views.terminal.lines import format_seconds

_MOST_ROUNDS = 40  # of a table; a longer run shows its first and last ones
_MOST_CLIENTS = 40


def make_device_table(profiles: Sequence[DeviceProfile], samples: Sequence[ClientTime]) -> Table:
    """One line per device."""
    table = Table(box=None, pad_edge=False)
    for heading in ("device", "answers", "ms per row", "latency", "down", "up", "spread"):
        table.add_column(heading, justify="left" if heading == "device" else "right")
    for i, p in enumerate(profiles[:_MOST_CLIENTS]):
        answers = sum(sample.client == i for sample in samples)
        rates = (f"{rate:.3g} Mbit/s" if math.isfinite(rate) else "-" for rate in (p.down_mbit, p.up_mbit))
        row = f"{p.forward_ms + p.backward_ms:.3g}"
        spreads = f"{100 * p.spread:.0f} / {100 * p.network_spread:.0f} %"
        table.add_row(p.name, str(answers), row, f"{p.latency_ms:,.0f} ms", *rates, spreads)
    if len(profiles) > _MOST_CLIENTS:
        table.add_row(f"and {len(profiles) - _MOST_CLIENTS} more")
    table.caption = "spread: of computing / of messages, from round to round"
    table.caption_justify = "left"
    return table


def make_time_table(times: Sequence[RoundTime], records: Sequence[Round]) -> Table:
    """Each round's seconds as measured and as predicted."""
    table = Table(box=None, pad_edge=False)
    for heading in ("round", "answered", "measured s", "predicted s", "error"):
        table.add_column(heading, justify="right")
    shown = list(range(len(times)))
    if len(times) > _MOST_ROUNDS:
        shown = [*shown[: _MOST_ROUNDS // 2], *shown[-_MOST_ROUNDS // 2 :]]
    for n, k in enumerate(shown):
        if n and k != shown[n - 1] + 1:
            table.add_row("...")
        time = times[k]
        asked = len(records[k]["ids"]) + len(records[k]["left_out"]) if k < len(records) else 0
        answered = f"{len(records[k]['ids'])} of {asked}" if k < len(records) else "-"
        table.add_row(str(k + 1), answered, f"{time.measured:,.2f}", f"{time.predicted:,.2f}", _sign(time.error))
    return table


def describe_errors(times: Sequence[RoundTime], by: str = "from other rounds") -> Text:
    """How right predictions were, over rounds and in all; `by` says what they are made of."""
    errors = [abs(time.error) for time in times]
    measured, predicted = (math.fsum(t) for t in zip(*((t.measured, t.predicted) for t in times), strict=True))
    mean = 100 * math.fsum(errors) / len(errors)
    return Text(
        f"rounds are predicted {by}: {mean:.0f} % off on average, {100 * max(errors):.0f} % at the most\n"
        f"all rounds: {measured:,.1f} s, predicted {predicted:,.1f} s ({_sign(predicted / measured - 1)})"
    )


def make_plan_table(plan: Plan, e: Experiment) -> Table:
    """What an experiment will take, one line per quantity."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    rounds = count_noun(plan.rounds, "round")
    if plan.target:
        said = "reached" if plan.reached else "not reached"
        rounds = f"{rounds} ({said}: target {plan.target:g})"
    table.add_row("rounds", rounds)
    each = plan.seconds / plan.rounds if plan.rounds else 0.0
    table.add_row(
        "seconds",
        f"{plan.seconds:,.1f} ({format_seconds(plan.seconds)}); {each:,.2f} per round, {plan.longest:,.2f} the longest",
    )
    if plan.other_seconds is not None:
        more = f"{plan.other_seconds:,.1f} more, for the server's own work and evaluations as in the past runs"
        table.add_row("", more)
    both = plan.bytes_down + plan.bytes_up
    table.add_row("bytes", f"{both:,} ({plan.bytes_down:,} down, {plan.bytes_up:,} up)")
    table.add_row("joules", "-" if plan.joules is None else f"{plan.joules:,.4g}")
    if plan.epsilon is not None:
        table.add_row("epsilon", f"{plan.epsilon:.4g} (delta {e.dp_delta:g})")
    memory = plan.memory
    table.add_row("memory", f"device {memory.device / 1e6:,.0f} MB, server {memory.server / 1e6:,.0f} MB")
    way = "the experiment was simulated" if plan.way == SIMULATED else "computed from the settings, without training"
    table.add_row("how", way)
    return table


def make_past_table(past: Sequence[PastRun]) -> Table:
    """What would have been said before runs that have happened."""
    table = Table(box=None, pad_edge=False, title_justify="left", title_style="")
    table.title = "what would have been said before these runs"
    for heading in ("run", "rounds", "seconds", "predicted", "error", "bytes", "error"):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for p in past:
        table.add_row(
            Text(printable(Path(p.folder).name, 24)),
            str(p.rounds),
            f"{p.seconds:,.1f}",
            f"{p.predicted_seconds:,.1f}",
            _sign(p.seconds_error),
            f"{p.bytes:,}",
            _sign(p.bytes_error),
        )
    return table


def list_plan(plan: Plan, devices: str) -> dict[str, Json]:
    """A plan as JSON."""
    return {
        "devices": devices,
        "way": plan.way,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "longest_round_seconds": plan.longest,
        "other_seconds": plan.other_seconds,
        "bytes_down": plan.bytes_down,
        "bytes_up": plan.bytes_up,
        "joules": plan.joules,
        "epsilon": plan.epsilon,
        "memory": {
            "process": plan.memory.process,
            "device": plan.memory.device,
            "devices": list(plan.memory.devices),
            "server": plan.memory.server,
        },
        "target": plan.target or None,
        "reached": plan.reached if plan.target else None,
        "past": [
            {
                "run": p.folder,
                "rounds": p.rounds,
                "seconds": p.seconds,
                "predicted_seconds": p.predicted_seconds,
                "seconds_error": p.seconds_error,
                "bytes": p.bytes,
                "predicted_bytes": p.predicted_bytes,
                "bytes_error": p.bytes_error,
            }
            for p in plan.past
        ],
    }


def _sign(share: float) -> str:
    return f"{100 * share:+.1f} %" if math.isfinite(share) else "-"
