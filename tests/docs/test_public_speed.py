"""The speed benchmarks of other frameworks: cases that can run, loops that train, and the page's table."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.public import __main__ as command
from benchmarks.public import cases
from benchmarks.public.cases import CASES, STAND_INS, Case, draw_sizes, make_case
from benchmarks.public.loops import LOOPS, make_work, time_loop
from benchmarks.public.networks import NETWORKS
from benchmarks.public.peers.answer import MARK, find_answer
from benchmarks.public.table import make_table, show_ratio, show_time
from fedveca import Experiment

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {"rows": 60, "test": 12, "clients": 12, "participation": 0.5, "hidden": 4, "rounds": 2}
WORDS = [f"{key}={value}" for key, value in TINY.items()]


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


def test_random_rows_have_the_size_and_the_preparation_of_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "load", lambda *_: pytest.fail("files were looked for"))
    case = make_case("pfl-cifar10", more={"rows": 100, "test": 20, "clients": 10}, random=True)
    assert not case.is_real
    data = case.build("cpu").data
    assert (data.x.shape, data.x_test.shape) == ((100, 3, 32, 32), (20, 3, 32, 32))
    assert data.pixels == "channels:0.4914,0.4822,0.4465:0.247,0.2435,0.2616"
    assert STAND_INS["cifar10"]["rows"] == 50_000


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
    out = tmp_path / "speed.json"
    call_main(monkeypatch, out, "flute-shakespeare", *WORDS)
    (times,) = json.loads(out.read_text("utf-8")).values()
    assert (times["rounds"], times["of"], times["rows"], times["failed"]) == (2, 2, "random", [])
    assert times["measured_seconds"] == times["seconds"]
    assert [peer["label"] for peer in times["peers"]] == ["the core loop of FLUTE, rewritten"]
    assert "accuracy" not in times


def test_ours_ends_when_its_seconds_are_over() -> None:
    found = command.time_ours(make_case("flute-shakespeare", more=TINY | {"rounds": 50}), "cpu", 0.0, 0)
    assert (found["rounds"], found["of"]) == (2, 50)
    assert found["seconds"] > found["measured_seconds"]


def call_main(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["public", *words, "--loop-seconds", "0.05", "--out", str(out)])
    command.main()


def test_a_case_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def time_ours(case: Case, *plan: Any) -> dict[str, Any]:
        if case.name == "flute-femnist":
            raise RuntimeError("no\nmemory")
        return {"rounds": 2, "of": 2, "seconds": 1.0, "measured_seconds": 1.0}

    monkeypatch.setattr(command, "time_ours", time_ours)
    with pytest.raises(SystemExit, match="1"):
        call_main(monkeypatch, tmp_path / "speed.json", "flute-femnist", "flute-shakespeare", *WORDS)
    assert list(json.loads((tmp_path / "speed.json").read_text("utf-8"))) == ["flute-shakespeare cpu"]
    assert "  failed: RuntimeError: no memory\n" in capsys.readouterr().out


def test_results_are_written_before_the_framework_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call_loop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "call_loop", call_loop)
    with pytest.raises(KeyboardInterrupt):
        call_main(monkeypatch, tmp_path / "speed.json", "flute-shakespeare", *WORDS)
    (times,) = json.loads((tmp_path / "speed.json").read_text("utf-8")).values()
    assert (times["rounds"], times["peers"], len(times["plain_passes"])) == (2, [], 2)


def test_no_case_begins_when_the_time_of_all_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        call_main(monkeypatch, tmp_path / "speed.json", "flute-shakespeare", *WORDS, "--limit", "0")
    assert "not measured, since the time of all cases is over" in capsys.readouterr().out
    assert not (tmp_path / "speed.json").exists()


def test_a_framework_is_asked_in_a_process_that_finds_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package with a file of data next to its module stands for the framework."""
    with zipfile.ZipFile(tmp_path / "peer-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("peer/__init__.py", "")
        wheel.writestr("peer/seconds.txt", "7")
    script = """
import json, pathlib, sys, peer
seconds = float(pathlib.Path(peer.__file__).with_name("seconds.txt").read_text())
print("PEER " + json.dumps({"label": " ".join(sys.argv[1:]), "seconds": seconds, "rounds": 1.0, "accuracy": None}))
"""
    run_apart = command.run_apart

    def ask(words: list[str], *more: Any) -> tuple[int, str, str]:
        return run_apart([sys.executable, "-c", script, *words[3:]], *more)

    monkeypatch.setattr(command, "run_apart", ask)
    words = ["pfl-cifar10", "rows=100", "test=20", "clients=10", "rounds=2", "--random", "--wheels", str(tmp_path)]
    call_main(monkeypatch, tmp_path / "speed.json", *words)
    (times,) = json.loads((tmp_path / "speed.json").read_text("utf-8")).values()
    (answer,) = times["peers"]
    assert answer["seconds"] == 7.0
    assert answer["label"].startswith("pfl-cifar10 default rows=100 test=20 clients=10 rounds=2 --device cpu")
    assert answer["label"].endswith("--random")


def test_a_framework_that_takes_too_long_is_ended_with_its_processes() -> None:
    with pytest.raises(RuntimeError, match=r"^not done after 0 s$"):
        command.run_apart(["sh", "-c", "sleep 600 & sleep 600"], {}, 0.2)


def test_an_answer_is_found_among_other_lines() -> None:
    answer = {"label": "x", "seconds": 1.0, "rounds": 2.0, "accuracy": None}
    assert find_answer(f"a\n{MARK}{json.dumps(answer)}\nb\n") == answer
    assert find_answer("a\nb\n") is None


def test_the_page_shows_the_table_of_its_results() -> None:
    found = json.loads((ROOT / "docs/results/public-speed.json").read_text("utf-8"))
    assert {key.rpartition(" ")[0] for key in found} <= set(CASES)
    assert make_table(found) in (ROOT / "docs/speed.md").read_text("utf-8")


def test_a_row_says_what_is_extrapolated_and_random() -> None:
    times: dict[str, Any] = {"device": "NVIDIA H200", "rows": "random", "rounds": 390, "of": 1500, "seconds": 57.5}
    times |= {"plain_seconds": 1060.0, "peers": [], "machine": {"cores": 16}}
    slow, fast = ({"label": label, "seconds": seconds} for label, seconds in (("slow", 900.0), ("fast", 575.0)))
    table = make_table({"pfl-cifar10 cuda": times | {"peers": [slow, fast]}})
    cells = "one NVIDIA H200 | 17:40 | 9:35 (fast) | **57.5 s**, from 390 of 1,500 rounds, random rows | 18 | 10 |"
    assert cells in table
    assert "| not measured | **57.5 s**" in make_table({"pfl-cifar10 cuda": times})
    assert "random" not in make_table({"pfl-cifar10 cuda": times | {"rows": "real"}})
    assert "`pfl-cifar10`" not in table.rpartition("Not measured yet")[2]


def test_times_are_shown_as_they_are_published() -> None:
    assert [show_time(value) for value in (1.26, 99.9, 502.0, 6121.0)] == ["1.3 s", "99.9 s", "8:22", "1:42:01"]
    assert [show_ratio(value) for value in (0.84, 9.94, 31.4)] == ["0.8", "9.9", "31"]
