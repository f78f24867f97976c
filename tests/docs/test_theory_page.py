"""What docs/paper.md and docs/methods/scaffold.md say about the theory is what theory.json holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedveca.runs.statistics import paired_difference
from studies.theory.run import Content

ROOT = Path(__file__).parents[2]
PAPER = (ROOT / "docs/paper.md").read_text("utf-8")
CONTENT: Content = json.loads((ROOT / "docs/results/theory.json").read_text("utf-8"))


@pytest.mark.parametrize("name", ["premise", "condition_alpha", "condition_step", "condition_drift"])
def test_each_condition_is_met_as_often_as_the_page_says(name: str) -> None:
    held = CONTENT["conditions"][name]
    (line,) = (
        line
        for line in PAPER.splitlines()
        if line.startswith("|") and f"| {held['met']} of {held['rounds']} rounds |" in line
    )
    sign = "+" if name == "condition_step" else ""
    high = f"{held['highest']:.2f}" if held["highest"] < 10 else f"{held['highest']:.0f}"
    assert f"from {sign}{held['lowest']:.2f} to {sign}{high}" in line
    if name == "condition_alpha":
        assert f"with a median of {held['median']:.1f}" in line


def test_the_first_rounds_are_those_of_the_figure() -> None:
    """Theorem 2's condition and Theorem 1's bracket follow from what instant.json has recorded, too."""
    first = CONTENT["conditions_of_first_rounds"]
    alpha, step = first["condition_alpha"], first["condition_step"]
    assert f"Theorem 2's condition is met in {alpha['met']} of {alpha['rounds']} rounds" in PAPER
    assert f"is between +{step['lowest']:.1f} and +{step['highest']:.1f}" in PAPER
    recorded = json.loads((ROOT / "docs/results/instant.json").read_text("utf-8"))["results"]
    rounds = [k for k, L in enumerate(recorded["L"]) if L]
    assert len(rounds) == alpha["rounds"]
    alphas = [0.95 * min(recorded["A"][k]) / (2 * recorded["L"][k]) for k in rounds]
    assert (min(alphas), max(alphas)) == (pytest.approx(alpha["lowest"], 1e-3), pytest.approx(alpha["highest"], 1e-3))


def test_beta_is_the_pages() -> None:
    beta = CONTENT["beta"]
    for values in (beta["recorded"], beta["full"], beta["paired"]):
        assert " | ".join(f"{v:.1f}" for v in values) in PAPER
    assert f"Of the {beta['maxima']} recorded maxima from round 2 on, {beta['at_first']} are at" in PAPER
    assert f"In {beta['same_client']} of the {beta['rounds']} rounds, the client with the smallest A" in PAPER
    assert min(beta["recorded"][:3]) > max(beta["recorded"][3:])  # the order is reversed
    assert max(beta["full"][:3]) < min(beta["full"][3:])


def test_the_weights_of_scaffold_are_the_pages() -> None:
    page = (ROOT / "docs/methods/scaffold.md").read_text("utf-8")
    for weights, values in CONTENT["weights"].items():
        cells = []
        for name in ("kept_test_accuracy", "last_test_accuracy", "kept_test_loss", "last_test_loss"):
            mean, std = values[name]["mean"], values[name]["std"]
            assert mean is not None
            cells.append(f"{100 * mean:.2f} ±{100 * std:.2f}")
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `weights={weights}`"))
        assert line.endswith(f"| {' | '.join(cells)} |")
        kept = values["kept_test_accuracy"]["mean"], values["kept_test_loss"]["mean"]
        assert f"{100 * (kept[0] or 0):.2f}" in PAPER
        assert f".{10000 * (kept[1] or 0):.0f}" in PAPER


def test_leads_with_exactly_as_many_steps_are_the_pages() -> None:
    rows = json.loads((ROOT / "docs/results/exact.json").read_text("utf-8"))["rows"]
    kept = {row["method"]: row["kept"]["test_accuracy"]["values"] for row in rows}
    assert len({row["tau_all"] for row in rows}) == 1
    assert f"all five methods take {rows[0]['tau_all']:,.0f} local steps on average" in PAPER
    for method, said in (
        ("fedavg", "ahead of FedAvg's by {:.2f} points (95 % interval {:+.2f} to {:+.2f})"),
        ("fednova", "and of FedNova's by {:.2f} ({:+.2f} to {:+.2f})"),
        ("scaffold", "and behind SCAFFOLD's by {:.2f} ({:.2f} to {:.2f})"),
    ):
        first, second = ("scaffold", "fedveca") if method == "scaffold" else ("fedveca", method)
        lead = paired_difference(kept[first], kept[second])
        assert lead.interval
        assert said.format(*(100 * v for v in (lead.mean, *lead.interval))) in PAPER
