"""How far a tuned run ends below its best round: `python -m studies.rivals.swings rivals.json rivals.svg` draws it."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from fedveca.views.figures.style import INK, QUIET, STYLE, save_figure
from fedveca.views.series import find_look
from studies.rivals.cases import OURS, count_test_rows, keep_complete, list_cases
from studies.rivals.run import RIVALS, Unit

FAR = 1.0  # points


def list_swings(units: list[Unit], case: str, method: str) -> list[float]:
    """Best round minus last model of each seed, in points."""
    (found,) = (unit for unit in units if (unit["case"], unit["method"]) == (case, method))
    return [run["best"] - run["last"] for run in found["runs"].values()]


def count_far(swings: list[float]) -> int:
    return sum(swing > FAR for swing in swings)


def list_rivals() -> list[str]:
    return [method for method in RIVALS if method != OURS]


def make_swing_table(units: list[Unit]) -> str:
    """A line per case, those with the fewest test rows first."""
    lines = [
        "| case | test rows | FedVecaM, mean | runs above 1 point | ten rivals, mean | runs above 1 point |",
        "|---|---|---|---|---|---|",
    ]
    for case in sorted(list_cases(units), key=count_test_rows):
        ours = list_swings(units, case, OURS)
        theirs = [swing for method in list_rivals() for swing in list_swings(units, case, method)]
        lines.append(
            f"| {case} | {count_test_rows(case):,} | {statistics.fmean(ours):.2f} | {count_far(ours)} of {len(ours)} "
            f"| {statistics.fmean(theirs):.2f} | {count_far(theirs)} of {len(theirs)} |"
        )
    return "\n".join(lines)


def draw(units: list[Unit], path: Path) -> None:
    """A line per case: the mean of each rival, and FedVecaM's."""
    cases = sorted(list_cases(units), key=count_test_rows, reverse=True)
    title, colour, _ = find_look(OURS)
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(8.6, 5.4), layout="constrained")
        for y, case in enumerate(cases):
            theirs = [statistics.fmean(list_swings(units, case, method)) for method in list_rivals()]
            label = "each of the ten rivals" if y == 0 else None
            axis.plot(theirs, [y] * len(theirs), "o", color=QUIET, alpha=0.45, markersize=5, mew=0, label=label)
            ours = statistics.fmean(list_swings(units, case, OURS))
            label = title if y == 0 else None
            axis.plot([ours], [y], "D", color=colour, markersize=7, markeredgecolor=INK, mew=0.6, label=label)
        axis.set_yticks(range(len(cases)), [f"{case} ({count_test_rows(case):,})" for case in cases])
        axis.set_xlabel("best round − last model, points of test accuracy, mean of 10 seeds")
        axis.legend(loc="lower right")
        caption = "How far a tuned run ends below its best round, by case (test rows)"
        figure.suptitle(caption)
        about = "With a few hundred test rows every method ends below its best round; with 10,000 mostly by little."
        save_figure(figure, path, caption, about)


def main() -> None:
    source, path = map(Path, sys.argv[1:3])
    draw(keep_complete(json.loads(source.read_text("utf-8"))), path)


if __name__ == "__main__":
    main()
