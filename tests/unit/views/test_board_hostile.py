"""The board against run folders and requests that are made to harm it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from test_board import Client, ask, line, written

from fedveca.cli import main
from fedveca.views.board import connections
from fedveca.views.board.app import make_app
from fedveca.views.board.responses import SharedAnswer
from fedveca.views.board.tail import RunTail

pytestmark = pytest.mark.slow

DEEP = "[" * 900 + "]" * 900
GOOD = 'method = "fedavg"\n'


def api(client: Client, what: str, *runs: str) -> dict[str, Any]:
    """A JSON answer of status 200."""
    answer = client.get(f"/api/{what}", params=[*(("run", run) for run in runs), ("name", "tau")])
    assert answer.status_code == 200, answer.text[:500]
    return dict(answer.json())


def peak_bytes(tail: RunTail) -> int:
    """The most memory that reading a run and showing it takes at a time."""
    tracemalloc.start()
    try:
        tail.read(600)
        for name in tail.list_names()[1]:
            tail.read_heat_map(name, 0, 1e9, 200, 500)
        for name in tail.list_names()[0]:
            tail.read_curve(name, "round", 0, 1e9, 500)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# run folders


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("summary.json", f'{{"kept": {{}}, "x": {DEEP}}}', "summary.json is nested more than 32 deep"),
        ("summary.json", f'{{"kept": {{}}, "x": {DEEP * 100}', "summary.json is "),
        ("summary.json", '{"stopped": ' + "[" * 100 + "]" * 100 + "}", "summary.json is nested more than 32 deep"),
        ("summary.json", '{"x": [' + "[]," * 2**17 + "[]]}", "summary.json has more than 131072"),
        ("rounds.jsonl", '{"round": 0, "x": [' + "[]," * 2**17 + "[]]}\n", "rounds.jsonl cannot be read: none of"),
        ("experiment.toml", ".".join("a" * 30_000) + " = 1", "experiment.toml has more than"),
        ("experiment.toml", ".".join("a" * 900) + " = 1", "experiment.toml is nested more than 32 deep"),
        ("experiment.toml", f'method = "{"a" * 2**16}"', "experiment.toml is too large"),
        ("experiment.toml", f'"{"b" * 9999}" = 1\n' * 2, "experiment.toml is not TOML: "),
        ("experiment.toml", f"{GOOD}clients = {10**18}", "clients = 1000000000000000000 is not allowed; allowed: 1 to"),
        ("experiment.toml", f"{GOOD}rounds = {10**308}", "rounds = 1000"),
        ("experiment.toml", f"{GOOD}rounds = 0", "rounds = 0 is not allowed"),
        ("experiment.toml", f'{GOOD}clients = "many"', "clients = many is not allowed"),
        ("experiment.toml", f"{GOOD}clients = [[1]]", "clients = a list or a table is not allowed"),
        ("rounds.jsonl", f'{{"round": 0, "x": {DEEP}}}\n', "rounds.jsonl cannot be read: none of its last lines"),
        ("rounds.jsonl", "\0" * 1000 + "\n", "rounds.jsonl cannot be read: none of its last lines"),
    ],
)
def test_a_bad_run_folder_is_a_damaged_row_and_all_others_stay(
    tmp_path: Path, file: str, content: str, why: str
) -> None:
    written(tmp_path / "good", [line(0, [1, 2])], clients=2)
    bad = written(tmp_path / "bad", [line(0, [1, 2])], clients=2)
    (bad / file).write_text(content)
    client = Client(tmp_path)
    rows = {row["id"]: row for row in api(client, "runs")["runs"]}
    assert (rows["good"]["state"], rows["good"]["clients"], rows["good"]["rounds"]) == ("running", 2, 1)
    assert rows["bad"]["state"] == "damaged"
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
    tail = RunTail(folder / "rounds.jsonl", clients, rounds)
    assert peak_bytes(tail) < 2**22 + 2 * (folder / "rounds.jsonl").stat().st_size
    z = [v for row in tail.read_heat_map("tau", 0, 1e9, 50, 1)["z"] for v in row if v is not None]
    assert z == [1.5]


def test_short_lines_after_one_of_many_names_take_little(tmp_path: Path) -> None:
    many = {f"n{i}": i for i in range(60)}
    lines = [many | {"round": 0}, *({"round": k} for k in range(1, 10_000)), many | {"round": 10_000}]
    folder = written(tmp_path / "a", lines)
    tail = RunTail(folder / "rounds.jsonl", 1, 1)
    assert peak_bytes(tail) < 8 * (folder / "rounds.jsonl").stat().st_size
    assert tail.read_curve("n7", "round", 0, 1e9, 500) == [[1, 10_001], [7, 7]]


def test_the_numbers_of_one_run_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveca.views.board.tail.NUMBERS", 100)
    folder = written(tmp_path / "a", [line(k, [1, 2, 3]) for k in range(500)], clients=3)
    tail = RunTail(folder / "rounds.jsonl", 3, 500)
    tail.read()
    assert (tail.kept < 120, len(tail.starts) + tail.damaged, tail.share) == (True, 500, 1.0)


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
    monkeypatch.setattr("fedveca.views.board.tail._LINE_BYTES", 2000)
    folder = written(tmp_path / "a", [line(0, [1]), "x" * 9000, line(1, [1])], "y" * 5000)
    tail = RunTail(folder / "rounds.jsonl", 1, 9)
    tail.read()
    assert (len(tail.starts), tail.damaged, tail.share) == (2, 2, 1.0)
    with open(folder / "rounds.jsonl", "a") as rounds:
        rounds.write("\n" + json.dumps(line(2, [1])) + "\n")
    tail.read()
    assert (len(tail.starts), tail.damaged) == (3, 2)
    lines: list[Any] = tail.read_log(9, 9)[1]
    assert [entry["round"] for entry in lines] == [0, 1, 2]


def test_the_log_reads_its_lines_and_not_what_lies_between_them(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [line(0, [1]), *["#" * 2**20] * 20, line(1, [1]), *["#" * 2**20] * 20])
    tail = RunTail(folder / "rounds.jsonl", 1, 9)
    tail.read(600)
    tracemalloc.start()
    try:
        first, lines = tail.read_log(2, 10)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert (first, [cast("Any", entry)["round"] for entry in lines], tail.damaged) == (0, [0, 1], 40)


def test_a_heat_map_has_a_bounded_number_of_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveca.views.board.tail._SENT", 600)
    folder = written(tmp_path / "a", [line(k, [1, 2]) for k in range(300)], clients=1000)
    tail = RunTail(folder / "rounds.jsonl", 1000, 300)
    tail.read()
    heat = tail.read_heat_map("tau", 0, 1e9, 2000, 4000)
    assert (len(heat["z"]), len(heat["z"][0]), heat["clients"]) == (2, 300, 500)


# requests


class Board:
    """`fedveca board` in a process of its own that may open few files."""

    def __init__(self, root: Path, files: int) -> None:
        command = [sys.executable, "-m", "fedveca.cli", "board", str(root), "--port", "0"]
        limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        found = re.search(r":(\d+)/", self.process.stdout.readline())
        assert found
        self.port = int(found[1])

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(sent)
        return connection

    def status(self, path: str = "/api/runs") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def megabytes(self) -> float:
        """Resident memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    root = tmp_path_factory.mktemp("runs")
    written(root / "a", [line(0, [1])])
    started = Board(root, 256)
    try:
        yield started
    finally:
        started.process.terminate()
        _, said = started.process.communicate(timeout=60)
    assert said == ""  # no traceback, and no line for each bad request


def request(path: str, *headers: str) -> bytes:
    return "".join(f"{text}\r\n" for text in (f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "")).encode()


def closed(connection: socket.socket) -> bool:
    """Whether the other side closes the connection, after what it sent."""
    try:
        while connection.recv(2**16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("start", [request("/")[:-2] + b"x: ", b"GET /" + b"a" * 9])
def test_a_header_without_end_is_rejected(board: Board, start: bytes) -> None:
    with board.connect(start) as connection:
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 2**26:
                sent += connection.send(b"a" * 2**16)
        assert sent < 2**24  # what sockets hold
        assert closed(connection)
    assert board.status() == 200


def test_an_address_that_the_page_can_ask_for_passes(board: Board) -> None:
    assert board.status("/api/curves?" + "&".join(f"run={'r' * 1000}{i}" for i in range(24))) == 404


def test_half_requests_keep_nobody_out(board: Board) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(board.connect(b"GET / HTTP/1.1\r\nHo")) for _ in range(300)]
        assert [board.status() for _ in range(5)] == [200] * 5
        assert all(map(closed, held[:200]))  # the oldest made room


def test_answers_that_are_not_read_take_little_memory(board: Board) -> None:
    assert board.status("/plotly.js") == 200
    before = board.megabytes()
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(board.connect(request("/plotly.js") * 20))
        time.sleep(1)
        assert board.megabytes() - before < 60  # 4.6 MB each would be 230
        assert board.status("/plotly.js") == 200


def test_two_host_headers_are_rejected(board: Board) -> None:
    with board.connect(request("/api/runs", "Host: evil.example", "Connection: close")) as connection:
        assert connection.recv(2**16).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("hosts", [["127.0.0.1", "evil.example"], ["evil.example", "127.0.0.1"], ["127.0.0.1"] * 2])
def test_the_guard_rejects_two_host_headers_of_any_server(tmp_path: Path, hosts: list[str]) -> None:
    answer = Client(tmp_path).get("/api/runs", headers=[("Host", host) for host in hosts])
    assert (answer.status_code, answer.text) == (400, "a request has one Host header")


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Any]]:
    """A port of a server with short limits, and its connections."""
    monkeypatch.setattr(connections, "_REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(connections, "_STALL_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = connections.make_server(make_app(tmp_path))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1], server.server_state.connections
        finally:
            server.should_exit = True
            thread.join(60)


def test_a_request_that_drips_is_closed(near: tuple[int, Any]) -> None:
    with socket.create_connection(("127.0.0.1", near[0]), timeout=10) as connection:
        connection.sendall(request("/")[:-2])
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(b"x: y\r\n")
                time.sleep(0.05)
            pytest.fail("a request may take for ever")


def test_a_body_that_drips_is_closed(near: tuple[int, Any]) -> None:
    with socket.create_connection(("127.0.0.1", near[0]), timeout=10) as connection:
        connection.sendall(request("/", "Content-Length: 1000000"))
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(b"y")
                time.sleep(0.05)
            pytest.fail("a request may take for ever")


def test_an_answer_that_is_not_read_is_ended(near: tuple[int, Any]) -> None:
    port, there = near
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request("/plotly.js") * 9)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        end = time.monotonic() + 30
        while there:
            assert time.monotonic() < end, "a reader may take for ever"
            time.sleep(0.05)


def test_a_slow_reader_gets_all(near: tuple[int, Any]) -> None:
    with socket.create_connection(("127.0.0.1", near[0]), timeout=10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**15)
        connection.sendall(request("/plotly.js", "Connection: close"))
        answer = b""
        while piece := connection.recv(2**15):
            answer += piece
            time.sleep(0.02)
    head, _, body = answer.partition(b"\r\n\r\n")
    size = re.search(rb"content-length: (\d+)", head)
    assert size
    assert int(size[1]) == len(body)


def test_one_look_answers_all_who_asked_before_it() -> None:
    looks: list[int] = []

    def look() -> bytes:
        looks.append(1)
        return bytes(len(looks))

    shared = SharedAnswer(look)
    early = time.monotonic()
    assert [len(shared(early)) for _ in range(3)] == [1, 1, 1]
    assert len(shared(time.monotonic())) == 2  # a later question gets a later look


def test_bodies_that_wait_for_their_readers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveca.views.board.responses._WAITING_BYTES", 100)
    written(tmp_path / "a", [line(0, [1])])
    board, read, statuses = make_app(tmp_path), asyncio.Event(), list[int]()
    scope = {"type": "http", "method": "GET", "path": "/api/run", "query_string": b"run=a", "root_path": ""}
    scope |= {"headers": [(b"host", b"127.0.0.1")], "server": ("127.0.0.1", 1)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        elif statuses[-1] == 200:
            await read.wait()

    async def receive() -> Any:
        return {"type": "http.request"}

    async def asked() -> None:
        first = asyncio.create_task(board(dict(scope), receive, send))
        while not statuses:
            await asyncio.sleep(0.01)
        for _ in range(3):
            await board(dict(scope), receive, send)
        read.set()
        await first
        await board(dict(scope), receive, send)

    asyncio.run(asyncio.wait_for(asked(), 60))
    assert statuses == [200, 503, 503, 503, 200]


# the command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", ""], "--host is empty; allowed: an address or a name, such as 127.0.0.1"),
        (["--host", " "], "--host is empty; allowed: an address or a name, such as 127.0.0.1"),
        (["--name", ""], "--name is empty; allowed: an address or a name, such as board.example"),
        (["--host", "a" * 300], "--host aaa"),
    ],
)
def test_an_address_that_is_none_is_rejected(words: list[str], said: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["board", str(tmp_path), "--port", "0", *words]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"fedveca: {said}")
    assert errors.count("\n") == 1
