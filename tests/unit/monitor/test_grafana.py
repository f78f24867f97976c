"""The dashboard: valid JSON as Grafana imports it, and every name it asks for is one that an endpoint serves."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fedveca.deploy.monitoring import GatewayFigures, NodeFigures
from fedveca.monitor.dashboard import read_dashboard
from fedveca.monitor.machine_metrics import make_registry
from fedveca.monitor.run_metrics import RunMetrics
from fedveca.runs.experiment import Experiment

ROOT = Path(__file__).parents[3]
BOARD = json.loads(read_dashboard())
NAME = re.compile(r"fedveca_[a-z_]+")


def list_queries() -> Iterator[str]:
    for panel in BOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in BOARD["templating"]["list"]:
        yield variable["query"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names of all figures and their labels, of every process of a federation."""
    folder = tmp_path_factory.mktemp("figures")
    run = RunMetrics(folder / "run.prom", lambda: {"send": 1.0}, lambda: 2)
    run.start(Experiment(rounds=2), None)
    run.round(
        {"round": 0, "ids": [0], "left_out": [], "tau": [1], "train_loss": 1.0, "test_accuracy": 0.5, "seconds": 1.0}
    )
    GatewayFigures().write(folder / "gateway.prom")
    node = NodeFigures(folder)
    node.count({"round": 0, "tau": 3}, {"fields": {}, "numbers": {}}, 0.5)
    (folder / "ca.pem").write_bytes(_make_certificate(folder))
    registry = make_registry(lambda: {"node": 1}, {"ca": folder / "ca.pem"})
    text = _render(registry) + "".join(path.read_text() for path in folder.glob("*.prom"))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _make_certificate(folder: Path) -> bytes:
    from fedveca.deploy.certificates import write_certificates

    write_certificates(folder / "tls", ["127.0.0.1"])
    return (folder / "tls" / "ca.pem").read_bytes()


def _render(registry: CollectorRegistry) -> str:
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


def test_every_name_that_the_dashboard_asks_for_is_served(served: dict[str, set[str]]) -> None:
    asked = {name for query in list_queries() for name in NAME.findall(query)}
    assert len(asked) > 20
    assert asked <= served.keys(), asked - served.keys()


def test_every_figure_that_is_served_is_on_the_dashboard(served: dict[str, set[str]]) -> None:
    shown = {name for query in list_queries() for name in NAME.findall(query)}
    assert {name for name in served if not name.endswith("_created")} <= shown


def test_every_label_that_a_query_names_is_one_of_its_figure(served: dict[str, set[str]]) -> None:
    always = {"job", "instance", "le"}  # of Prometheus itself
    for query in list_queries():
        names = set(NAME.findall(query))
        known = always.union(*(served[name] for name in names))
        used = set(re.findall(r"([a-z_]+)=~?\"", query))
        for labels in re.findall(r"by \(([^)]*)\)", query):
            used |= {label.strip() for label in labels.split(",")}
        assert used <= known, query


def test_every_label_of_a_legend_is_one_of_its_figure(served: dict[str, set[str]]) -> None:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            known = {"instance"}.union(*(served[name] for name in NAME.findall(target["expr"])))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known, panel["title"]


def test_queries_have_balanced_brackets() -> None:
    for query in list_queries():
        for pair in ("()", "{}", "[]"):
            assert query.count(pair[0]) == query.count(pair[1]), query


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= mine
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_the_page_explains_every_figure(served: dict[str, set[str]]) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    described = set(NAME.findall(page))
    of_histogram = {f"fedveca_round_seconds_{end}" for end in ("bucket", "sum", "count")}
    assert {name for name in served if not name.endswith("_created")} - of_histogram <= described
    assert described <= served.keys() | {"fedveca_round_seconds"}, described - served.keys()


def test_the_dashboard_is_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "monitor/grafana.json" in project["tool"]["setuptools"]["package-data"]["fedveca"]
