"""The board against run folders and requests that are made to harm it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from test_board import Client, ask, line, written

from fedveca.views.board.follow import Follow

DEEP = "[" * 900 + "]" * 900
GOOD = 'method = "fedavg"\n'


def api(client: Client, what: str, *runs: str) -> dict[str, Any]:
    """A JSON answer of status 200."""
    answer = client.get(f"/api/{what}", params=[*(("run", run) for run in runs), ("name", "tau")])
    assert answer.status_code == 200, answer.text[:500]
    return dict(answer.json())


def peak_bytes(follow: Follow) -> int:
    """The most memory that reading a run and showing it takes at a time."""
    tracemalloc.start()
    try:
        follow.read(600)
        for name in follow.names()[1]:
            follow.heat(name, 0, 1e9, 200, 500)
        for name in follow.names()[0]:
            follow.curve(name, "round", 0, 1e9, 500)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# run folders


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("summary.json", f'{{"kept": {{}}, "x": {DEEP}}}', "summary.json cannot be read: it is nested"),
        ("summary.json", f'{{"kept": {{}}, "x": {DEEP * 100}', "summary.json cannot be read: "),
        ("summary.json", '{"stopped": ' + "[" * 100 + "]" * 100 + "}", "summary.json cannot be read: it is nested"),
        ("experiment.toml", ".".join("a" * 30_000) + " = 1", "experiment.toml cannot be read: it has more than"),
        ("experiment.toml", ".".join("a" * 900) + " = 1", "experiment.toml cannot be read: it is nested"),
        ("experiment.toml", f'method = "{"a" * 2**16}"', "experiment.toml cannot be read: it is larger than"),
        ("experiment.toml", f'"{"b" * 9999}" = 1\n' * 2, "experiment.toml cannot be read: "),
        ("experiment.toml", f"{GOOD}clients = {10**18}", "clients = 1000000000000000000 is not allowed; allowed: 1 to"),
        ("experiment.toml", f"{GOOD}rounds = {10**308}", "rounds = 1000"),
        ("experiment.toml", f"{GOOD}rounds = 0", "rounds = 0 is not allowed"),
        ("experiment.toml", f'{GOOD}clients = "many"', "clients = many is not allowed"),
        ("experiment.toml", f"{GOOD}clients = [[1]]", "clients = that is not allowed"),
        ("rounds.jsonl", f'{{"round": 0, "x": {DEEP}}}\n', "rounds.jsonl cannot be read: none of its last lines"),
        ("rounds.jsonl", "\0" * 1000 + "\n", "rounds.jsonl cannot be read: none of its last lines"),
    ],
)
def test_a_bad_run_folder_is_an_invalid_row_and_all_others_stay(
    tmp_path: Path, file: str, content: str, why: str
) -> None:
    written(tmp_path / "good", [line(0, [1, 2])], clients=2)
    bad = written(tmp_path / "bad", [line(0, [1, 2])], clients=2)
    (bad / file).write_text(content)
    client = Client(tmp_path)
    rows = {row["id"]: row for row in api(client, "runs")["runs"]}
    assert (rows["good"]["state"], rows["good"]["clients"], rows["good"]["rounds"]) == ("running", 2, 1)
    assert rows["bad"]["state"] == "invalid"
    assert rows["bad"]["why"].startswith(why) or f": {why}" in rows["bad"]["why"]
    assert len(rows["bad"]["why"]) <= 600
    for what in ("run", "heat", "log"):
        api(client, what, "bad")
    assert api(client, "curves", "bad", "good")["runs"]["good"]["rounds"] == 1


def test_long_settings_are_cut_in_the_list(tmp_path: Path) -> None:
    bad = written(tmp_path / "bad", [])
    (bad / "experiment.toml").write_text(f'method = "{"m" * 60_000}"\n')
    assert len(ask(tmp_path, "/api/runs").content) < 2000


@pytest.mark.parametrize(
    ("clients", "rounds", "lines"),
    [(2**23, 1, 1), (2**22, 1, 1), (10**6, 1, 300), (10**18, 10**18, 1), (2**31 - 1, 2**31 - 1, 100)],
)
def test_memory_is_that_of_the_lines_and_not_of_the_settings(
    tmp_path: Path, clients: int, rounds: int, lines: int
) -> None:
    names = {f"x{i}": [0.5, 1.5] for i in range(15)}
    folder = written(tmp_path / "a", [line(k, [1, 2], **names) for k in range(lines)])
    follow = Follow(folder / "rounds.jsonl", clients, rounds)
    assert peak_bytes(follow) < 2**22 + 2 * (folder / "rounds.jsonl").stat().st_size
    z = [v for row in follow.heat("tau", 0, 1e9, 50, 1)["z"] for v in row if v is not None]
    assert z == [1.5]


def test_short_lines_after_one_of_many_names_take_little(tmp_path: Path) -> None:
    many = {f"n{i}": i for i in range(60)}
    lines = [many | {"round": 0}, *({"round": k} for k in range(1, 10_000)), many | {"round": 10_000}]
    folder = written(tmp_path / "a", lines)
    follow = Follow(folder / "rounds.jsonl", 1, 1)
    assert peak_bytes(follow) < 8 * (folder / "rounds.jsonl").stat().st_size
    assert follow.curve("n7", "round", 0, 1e9, 500) == ([1, 10_001], [7, 7])


def test_the_numbers_of_one_run_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveca.views.board.follow.MOST", 100)
    folder = written(tmp_path / "a", [line(k, [1, 2, 3]) for k in range(500)], clients=3)
    follow = Follow(folder / "rounds.jsonl", 3, 500)
    follow.read()
    assert (follow.kept < 120, len(follow.starts) + follow.damaged, follow.share) == (True, 500, 1.0)


def test_numbers_that_json_does_not_have_are_null_in_the_log(tmp_path: Path) -> None:
    odd = ['{"round": 0, "L": NaN}', '{"round": 1, "L": 1e999, "tau": [-Infinity]}', f'{{"round": 2, "L": {10**400}}}']
    written(tmp_path / "a", [*odd, line(3, [1])])
    lines = api(Client(tmp_path), "log", "a")["lines"]
    assert [entry.get("L") for entry in lines] == [None] * 4
    assert (lines[1]["tau"], [entry["round"] for entry in lines]) == ([None], [0, 1, 2, 3])


def test_faults_and_names_that_are_no_text_harm_nobody(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(25):
        deep = [deep]
    odd = {"": 1, " steps": 5, " bytes": 5, "n" * 5000: 1, "seconds": 1e308, "bytes_up": 1.7e308}
    faults = [{"client": deep, "what": deep}, {"client": "c" * 9000, "what": "w" * 9000}]
    written(tmp_path / "a", [line(k, [2, 3], faults=faults, left_out=[deep, {}], **odd) for k in range(3)], clients=2)
    client = Client(tmp_path)
    told = api(client, "run", "a")
    assert told["faults"][0] == {"round": 1, "client": "invalid", "what": "invalid"}
    assert {len(fault["client"]) for fault in told["faults"]} == {7, 80}
    for axis in ("round", "steps", "bytes", "seconds"):
        answer = client.get(f"/api/curves?run=a&name=test_accuracy&x={axis}")
        assert answer.status_code == 200
        assert answer.json()["runs"]["a"]["names"] == ["test_accuracy"]
    x, _ = client.get("/api/curves?run=a&name=test_accuracy&x=steps").json()["runs"]["a"]["curves"]["test_accuracy"]
    assert x == [5, 10, 15]


def test_a_line_without_end_is_skipped_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveca.views.board.follow.LONGEST", 2000)
    folder = written(tmp_path / "a", [line(0, [1]), "x" * 9000, line(1, [1])], "y" * 5000)
    follow = Follow(folder / "rounds.jsonl", 1, 9)
    follow.read()
    assert (len(follow.starts), follow.damaged, follow.share) == (2, 2, 1.0)
    with open(folder / "rounds.jsonl", "a") as rounds:
        rounds.write("\n" + json.dumps(line(2, [1])) + "\n")
    follow.read()
    assert (len(follow.starts), follow.damaged) == (3, 2)
    assert [entry["round"] for entry in follow.log(9, 9)[1]] == [0, 1, 2]


def test_the_log_reads_its_lines_and_not_what_lies_between_them(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [line(0, [1]), *["#" * 2**20] * 20, line(1, [1]), *["#" * 2**20] * 20])
    follow = Follow(folder / "rounds.jsonl", 1, 9)
    follow.read(600)
    tracemalloc.start()
    try:
        first, lines = follow.log(2, 10)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert (first, [entry["round"] for entry in lines], follow.damaged) == (0, [0, 1], 40)


def test_a_heat_map_has_a_bounded_number_of_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveca.views.board.follow.SENT", 600)
    folder = written(tmp_path / "a", [line(k, [1, 2]) for k in range(300)], clients=1000)
    follow = Follow(folder / "rounds.jsonl", 1000, 300)
    follow.read()
    heat = follow.heat("tau", 0, 1e9, 2000, 4000)
    assert (len(heat["z"]), len(heat["z"][0]), heat["clients"]) == (2, 300, 500)
