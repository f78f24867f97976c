"""The speed benchmarks of other frameworks: cases that can run, loops that train, and the page's table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.public import __main__ as command
from benchmarks.public.cases import CASES, draw_sizes, make_case
from benchmarks.public.loops import LOOPS, make_work, time_loop
from benchmarks.public.networks import NETWORKS
from benchmarks.public.peers.answer import MARK, find_answer
from benchmarks.public.table import make_table, show_ratio, show_time
from fedveca import Experiment

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {"rows": 60, "test": 12, "clients": 12, "participation": 0.5, "hidden": 4, "rounds": 2}


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_settings_and_what_is_published(name: str) -> None:
    case = CASES[name]
    e = Experiment(method="fedavg", **case["settings"])
    assert case["source"]
    assert case["published"]
    assert f"{e.rounds:,} rounds" in case["settings_text"]
    assert f"batch {e.batch}" in case["settings_text"]
    asked = round(e.participation * e.clients)
    assert (f"{asked} per round" if asked < e.clients else "all of them in each round") in case["settings_text"]
    assert case["peer"] in LOOPS or (ROOT / f"benchmarks/public/peers/{case['peer']}.py").exists()


def test_sizes_are_as_uneven_as_asked() -> None:
    sizes = torch.tensor(draw_sizes(671_585, 3400, 0.4))
    assert int(sizes.sum()) == 671_585
    assert int(sizes.min()) >= 1
    assert float(sizes.double().std() / sizes.double().mean()) == pytest.approx(0.4, abs=0.03)
    assert set(draw_sizes(50_000, 500, 0.0)) == {100}


def test_networks_have_the_published_sizes() -> None:
    count = {name: sum(p.numel() for p in make((3, 32, 32), 10).parameters()) for name, make in NETWORKS.items()}
    assert count["resnet18-batch"] == count["resnet18-group"] == 11_181_642  # torchvision's, with ten outputs
    femnist = NETWORKS["dropout-cnn"]((1, 28, 28), 62)
    assert sum(p.numel() for p in femnist.parameters()) == 1_206_590
    assert NETWORKS["resnet18-group"]((3, 32, 32), 100)(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_trains_and_is_extrapolated(loop: str) -> None:
    work = make_work(make_case("flute-shakespeare", more=TINY), "cpu")
    assert work.asked == 6
    assert int(work.steps.sum()) == sum(-(-size // 4) for size in draw_sizes(60, 12, 1.7))
    made: Any = LOOPS[loop](work)
    before = [p.clone() for p in made.server.parameters()]
    made.take(0)
    made.train()
    made.finish()
    assert all(not torch.equal(a, b) for a, b in zip(before, made.server.parameters(), strict=True))
    done = time_loop(loop, work, 0.05)
    assert done.seconds > 0
    assert done.rounds > 0


def test_both_loops_and_ours_make_one_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["flute-shakespeare", *(f"{key}={value}" for key, value in TINY.items())]
    out = tmp_path / "speed.json"
    monkeypatch.setattr("sys.argv", ["public", *words, "--loop-seconds", "0.05", "--out", str(out)])
    command.main()
    (times,) = json.loads(out.read_text("utf-8")).values()
    assert (times["rounds"], times["of"], times["rows"], times["failed"]) == (2, 2, "random", [])
    assert times["measured_seconds"] == times["seconds"]
    assert [peer["label"] for peer in times["peers"]] == ["the core loop of FLUTE, rewritten"]
    assert "accuracy" not in times


def test_ours_ends_when_its_seconds_are_over() -> None:
    found = command.time_ours(make_case("flute-shakespeare", more=TINY | {"rounds": 50}), "cpu", 0.0, 0)
    assert (found["rounds"], found["of"]) == (2, 50)
    assert found["seconds"] > found["measured_seconds"]


def test_a_case_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_case(name: str, plan: argparse.Namespace) -> dict[str, Any]:
        if name == "flute-femnist":
            raise RuntimeError("no memory")
        return {"seconds": 1.0, "plain_seconds": 2.0, "of": 3}

    monkeypatch.setattr(command, "time_case", time_case)
    monkeypatch.setattr("sys.argv", ["public", "flute-femnist", "pfl-cifar10", "--out", str(tmp_path / "speed.json")])
    with pytest.raises(SystemExit, match="1"):
        command.main()
    assert list(json.loads((tmp_path / "speed.json").read_text("utf-8"))) == ["pfl-cifar10 cpu"]


def test_an_answer_is_found_among_other_lines() -> None:
    answer = {"label": "x", "seconds": 1.0, "rounds": 2.0, "accuracy": None}
    assert find_answer(f"a\n{MARK}{json.dumps(answer)}\nb\n") == answer
    assert find_answer("a\nb\n") is None


def test_the_page_shows_the_table_of_its_results() -> None:
    found = json.loads((ROOT / "docs/results/public-speed.json").read_text("utf-8"))
    assert {key.rpartition(" ")[0] for key in found} <= set(CASES)
    assert make_table(found) in (ROOT / "docs/speed.md").read_text("utf-8")


def test_times_are_shown_as_they_are_published() -> None:
    assert [show_time(value) for value in (1.26, 99.9, 502.0, 6121.0)] == ["1.3 s", "99.9 s", "8:22", "1:42:01"]
    assert [show_ratio(value) for value in (0.84, 9.94, 31.4)] == ["0.8", "9.9", "31"]
