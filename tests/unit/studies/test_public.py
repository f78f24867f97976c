"""The public tables: settings that can run, published numbers that are numbers, and what their summary says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedveca.tasks.datasets.dataset import Request
from fedveca.tasks.datasets.heart import load_heart
from studies.public.heart import load_rows, make_model, rate_hospitals, read_rows
from studies.public.run import TABLES, Outcome, call_all, make_experiment, read_table, run_one, run_table, summarise

FEW = {"rounds": 2, "tau_0": 3}


@pytest.mark.parametrize("name", TABLES)
def test_every_method_of_a_table_is_an_experiment(name: str) -> None:
    table = read_table(name)
    assert table["title"]
    assert table["measure"]
    for method in table["methods"]:
        made = make_experiment(table, method, 1, {})
        assert (made.method, made.seed) == (method, 1)
        expected = table["settings"] | table.get(method, {})
        assert {key: getattr(made, key) for key in expected} == expected


@pytest.mark.parametrize("name", TABLES)
def test_published_numbers_are_per_cents_of_methods_with_a_source(name: str) -> None:
    table = read_table(name)
    assert set(table["published"]) <= set(table["methods"])
    assert all(isinstance(number, float) and 1 < number < 100 for number in table["published"].values())
    assert bool(table["published"]) == bool(table["source"])


def test_heart_rows_are_flambys() -> None:
    """Training and test rows per hospital as its README has them, and training rows as the embedded data set."""
    rows = read_rows()
    assert [int(part.train.sum()) for part in rows] == [199, 172, 30, 85]
    assert [int((~part.train).sum()) for part in rows] == [104, 89, 16, 45]
    embedded, ours = load_heart(Request()), load_rows("fedavg")
    torch.testing.assert_close(ours.x, embedded.x, rtol=0, atol=0)
    torch.testing.assert_close(ours.y, embedded.y, rtol=0, atol=0)
    pooled = torch.cat([part.pooled[part.train] for part in rows])
    torch.testing.assert_close(pooled.mean(0), torch.zeros(13), rtol=0, atol=1e-5)
    torch.testing.assert_close(pooled.std(0), torch.ones(13), rtol=0, atol=1e-5)


def test_one_score_is_a_sigmoid() -> None:
    model, x, y = make_model((13,), 2), torch.randn(6, 13), torch.tensor([0, 1, 1, 0, 1, 0])
    wanted = torch.nn.functional.binary_cross_entropy(model.linear(x).sigmoid()[:, 0], y.float())
    torch.testing.assert_close(torch.nn.functional.cross_entropy(model(x), y), wanted)


def test_hospitals_are_tested_on_their_own_scale() -> None:
    """A model that always says ill is right on the share of the ill."""
    found = rate_hospitals({"linear.weight": torch.zeros(1, 13), "linear.bias": torch.ones(1)})
    assert found == pytest.approx([float(part.y[~part.train].float().mean()) for part in read_rows()], abs=1e-6)


def test_heart_runs_end_to_end() -> None:
    outcome = run_one("heart", "fedadam", 0, "cpu", FEW)
    assert len(outcome["accuracy"]) == 2
    assert outcome["tau_all"] == 2 * 4 * 3
    assert len(outcome["hospitals"]) == 4
    (line,) = summarise("heart", [outcome])
    assert line["published"] == 77.87
    assert line["last"] == pytest.approx(100 * outcome["accuracy"][-1], abs=0.005)


def test_a_table_continues_where_it_stopped(tmp_path: Path) -> None:
    """What the file holds is not run again."""
    path = tmp_path / "heart.json"
    first = run_table("heart", [0], "cpu", 1, path, ["fedavg"], FEW)
    both = run_table("heart", [0], "cpu", 1, path, ["fedavg", "centralised"], FEW)
    assert [outcome["method"] for outcome in both] == ["fedavg", "centralised"]
    assert both[:1] == first
    assert json.loads(path.read_text()) == both


def test_summary_is_mean_and_deviation_over_seeds() -> None:
    def invent(seed: int, *accuracy: float) -> Outcome:
        return {
            "method": "fedavg",
            "seed": seed,
            "accuracy": list(accuracy),
            "loss": [],
            "tau_all": 10,
            "seconds": 1.0,
            "device": "cpu",
            "stopped": "",
        }

    (line,) = summarise("niid_labels", [invent(0, 0.5, 0.4), invent(1, 0.3, 0.6)])
    assert (line["best"], line["best_sd"], line["last"], line["last_sd"]) == (55.0, 7.07, 50.0, 14.14)
    assert (line["seeds"], line["steps"], line["published"]) == (2, 10, 51.17)
    assert "hospitals" not in line


def test_a_table_that_ran_out_of_time_says_so_and_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "heart.json"
    (cut,) = run_table("heart", [0], "cpu", 1, path, ["fedavg"], FEW, until=0.0)
    assert (len(cut["accuracy"]), cut["cut"]) == (1, 2)
    (full,) = run_table("heart", [0], "cpu", 1, path, ["fedavg"], FEW)
    assert len(full["accuracy"]) == 2
    assert "cut" not in full


def test_a_job_that_fails_does_not_stop_the_others() -> None:
    with pytest.raises(ZeroDivisionError):
        list(call_all(lambda number: 6 // number, [1, 0, 2], 1))
    seen = call_all(lambda number: 6 // number, [1, 0, 2], 1)
    assert [next(seen), next(seen)] == [6, 3]
