"""The committed pages on robustness, privacy, public tables, momentum and the corrected method show their numbers."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from fedveca.runs.statistics import mean_and_spread
from studies.corrected.results import Row, find_lead
from studies.personal import run as personal
from studies.privacy import run as privacy
from studies.public.niid_controls import CONTROLS
from studies.public.rows import VGG, show_control, show_vgg
from studies.public.run import read_table, summarise
from studies.robustness import run as robustness

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def results() -> dict[str, robustness.Values]:
    content: robustness.Content = json.loads((RESULTS / "robustness.json").read_text("utf-8"))
    assert {len(values["accuracy"]) for values in content["results"].values()} == {content["seeds"]}
    assert content["settings"] == robustness.COMMON
    return content["results"]


def test_the_tables_are_those_of_the_results(results: dict[str, robustness.Values]) -> None:
    assert results.keys() == robustness.jobs().keys()
    assert robustness.table(results).strip() in (ROOT / "docs/robustness.md").read_text("utf-8")


def test_a_diverged_run_counts_as_a_guess() -> None:
    assert robustness.mean({"x": {"accuracy": [0.5, None], "steps": [1, 1]}}, "x") == pytest.approx(30)


def test_privacy_page_shows_its_numbers() -> None:
    page = (ROOT / "docs/privacy.md").read_text("utf-8")
    content = json.loads((RESULTS / "privacy.json").read_text("utf-8"))
    assert (content["settings"], content["methods"]) == (privacy.COMMON, privacy.METHODS)
    for row in content["rows"]:
        assert row["epsilon"] is None or f" {row['epsilon']:.3g} " in page or f" {row['epsilon']:.2f} " in page
        assert "accuracy" not in row or f" {100 * row['accuracy']:.0f} % |" in page


def test_the_page_of_methods_shows_the_personalised_accuracy() -> None:
    content = json.loads((RESULTS / "personal.json").read_text("utf-8"))
    assert (content["settings"], content["parts"]) == (personal.COMMON, personal.PARTS)
    assert {len(row["mean"]) for row in content["rows"]} == {content["seeds"]}
    assert personal.make_table(content["rows"]) in (ROOT / "docs/howto/method.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["niid_dirichlet", "niid_labels", "resnet", "fednova_vgg"])
def test_public_tables_show_their_numbers(name: str) -> None:
    page = (ROOT / "docs/tables.md").read_text("utf-8")
    lines = summarise(name, json.loads((RESULTS / f"public-{name}.json").read_text("utf-8")))
    assert len(lines) >= 2
    for line in lines:
        if line["seeds"] > 1:
            ours = f"| {line['best']:.2f} ±{line['best_sd']:.2f} | {line['last']:.2f} ±{line['last_sd']:.2f}"
        else:
            ours = f"| {line['last']:.2f} | {line['best']:.2f} | {line['steps']:,}"
        assert ours in page, line["method"]
    table = read_table(name)
    for value in table["published"].values():
        assert f"| {value} ±" in page
    for value in table.get("published_authors", {}).values():
        assert f"| {value} |" in page


def test_where_two_labels_per_client_agree_with_the_published_numbers() -> None:
    page, table = (ROOT / "docs/tables.md").read_text("utf-8"), read_table("niid_labels")
    runs = json.loads((RESULTS / "public-niid_labels.json").read_text("utf-8"))
    best = {line["method"]: line["best"] for line in summarise("niid_labels", runs)}
    sources = (table["published_authors"], table["published"])
    above = {method: [best[method] - source[method] for source in sources] for method in table["published"]}
    shown = {method: [f"{abs(value):.2f}" for value in values] for method, values in above.items()}
    assert all(0 < value < 2 for method in ("fednova", "scaffold") for value in above[method])
    assert "FedNova's best is {} and {} points above the two sources".format(*shown["fednova"]) in page
    assert "SCAFFOLD's {} and {} points: within 2 points of both".format(*shown["scaffold"]) in page
    assert all(value < -2 for method in ("fedavg", "fedprox") for value in above[method])
    assert "FedAvg is {} and {} points below the two sources".format(*shown["fedavg"]) in page
    assert "FedProx {} and {}.".format(*shown["fedprox"]) in page
    below = [-value for method in ("fedavg", "fedprox") for value in above[method]]
    assert f"FedAvg and FedProx {min(below):.1f} to {max(below):.1f} below them" in page
    assert f"SCAFFOLD's best is {best['scaffold'] - best['fedavg']:.1f} points ahead of FedAvg's" in page
    assert all(source["scaffold"] < min(source["fedavg"], source["fedprox"]) for source in sources)
    scaffold, fedavg = (
        [[100 * value for value in run["accuracy"]] for run in runs if run["method"] == method]
        for method in ("scaffold", "fedavg")
    )
    last = [accuracy[-1] for accuracy in scaffold]
    assert f"its last models differ by {max(last) - min(last):.0f} points between seeds" in page
    late = [statistics.mean(statistics.mean(each[-10:]) for each in some) for some in (scaffold, fedavg)]
    assert "over the last ten rounds its mean is {:.1f}, FedAvg's {:.1f}".format(*late) in page
    (control,) = (
        control["runs"]
        for control in json.loads((RESULTS / "public-niid_controls.json").read_text("utf-8"))
        if control["published"]["fedavg"] == 49.9
    )
    reached = statistics.mean(100 * max(run["accuracy"]) for run in control if run["method"] == "fedavg")
    assert f"ours is {reached - 49.9:.1f} points above it" in page
    assert reached - best["fedavg"] > max(below)


def test_controls_of_the_public_tables_show_their_numbers() -> None:
    page = (ROOT / "docs/tables.md").read_text("utf-8")
    every = json.loads((RESULTS / "public-niid_controls.json").read_text("utf-8"))
    rows = [row for name in CONTROLS for row in show_control(name, every)]
    rows += [row for name in VGG for row in show_vgg(name)]
    assert len(rows) >= 6
    assert [row for row in rows if row not in page] == []
    for run in json.loads((RESULTS / "public-resnet_controls.json").read_text("utf-8")):
        accuracy = run["accuracy"]
        assert f"| {100 * accuracy[-1]:.2f} | {100 * max(accuracy):.2f} | {run['tau_all']:,} |" in page, run["settings"]


def test_momentum_is_shown_as_measured() -> None:
    page = (ROOT / "docs/howto/recipe.md").read_text("utf-8")
    for row in json.loads((RESULTS / "momentum-digits.json").read_text("utf-8"))["rows"]:
        kept = [row["methods"][name]["kept"] for name in ("fedveca", "fedavg", "fednova")]
        shown = " | ".join(f"{100 * each['mean']:.2f} ±{100 * each['std']:.2f}" for each in kept)
        assert f"| {shown} | {row['premise']['median']:.2f} |" in page, row["lr"]


def test_the_corrected_methods_results_add_up() -> None:
    rows: list[Row] = json.loads((RESULTS / "corrected.json").read_text("utf-8"))["rows"]
    ours = {(row["study"], row["task"], row["label"]): row for row in rows if row["method"] == "corrected"}
    assert len(rows) > 100
    for row in rows:
        for values in (row["kept_test_accuracy"], row["kept_test_loss"], row["last_test_accuracy"]):
            mean, std, n = mean_and_spread(values["values"])
            assert n == len(row["seeds"])
            assert (values["mean"], values["std"]) == (pytest.approx(mean), pytest.approx(std))
        if row["method"] != "corrected":
            first = ours[row["study"], row["task"], row["label"]]["kept_test_accuracy"]["values"]
            lead = find_lead(first, row["kept_test_accuracy"]["values"])
            assert row["corrected_minus_this"] == pytest.approx(lead, abs=1e-9)
