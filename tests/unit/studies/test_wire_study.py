"""The study of `wire`: the page shows what the file holds, the bytes add up, and a run becomes an outcome."""

from __future__ import annotations

import json
from pathlib import Path

import fedveca
from studies.wire.run import FORMS, TARGETS, TASKS, Content, describe_run, make_experiment, make_table

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_of_wire_shows_the_committed_results() -> None:
    content: Content = json.loads((DOCS / "results" / "wire.json").read_text("utf-8"))
    page = (DOCS / "wire.md").read_text("utf-8")
    assert content["results"].keys() == TASKS.keys()
    for task, methods in content["results"].items():
        assert make_table(content, task) in page
        assert list(methods) == list(TASKS[task].methods)
        for forms in methods.values():
            assert list(forms) == list(FORMS)
            assert {len(by_seed) for by_seed in forms.values()} == {TASKS[task].seeds}
            assert len({one["bytes_up"] for one in forms["int8"].values()}) == 1


def test_a_run_becomes_an_outcome() -> None:
    e = make_experiment("digits", "scaffold", "topk 1 %", 711).replace(model="svm", rounds=3, tau_0=2)
    done = fedveca.run(e, device="cpu")
    found = describe_run(done, 0.0)
    each = done.rounds[0]["bytes_up"]
    assert (found["bytes_up"], found["bytes_to_target"]) == (3 * each, each)
    assert each == 5 * (2 * (4 + 2) + 8)  # one number of two vectors with its place, and tau
    assert describe_run(done, 1.1)["bytes_to_target"] is None
    assert TARGETS.keys() == TASKS.keys()
