"""A node's question for messages, held by a real gateway until there is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_gateway import PATH, Bench

from fedveca.deploy import gateway as module
from fedveca.deploy import http_pieces
from fedveca.deploy.gateway import PULL_BYTES
from fedveca.deploy.long_poll import ASK_SECONDS, HOLD_SECONDS, WakingGrid, wake_nodes

Answer = Future[tuple[int, bytes]]


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def holding(folder: Path, hold: float) -> Iterator[tuple[Bench, Callable[..., Answer]]]:
    """A gateway with nothing to say, and a function that asks it in a thread."""
    bench = Bench(folder, hold)
    bench.answer = b""
    until(lambda: not hold or (folder / "wake.sock").exists())
    with ThreadPoolExecutor(8) as threads:

        def ask(target: str = PATH, body: bytes = b"node 7") -> Answer:
            return threads.submit(bench.ask, "POST", target, bench.signed(), body)

        try:
            yield bench, ask
        finally:
            bench.loop.call_soon_threadsafe(bench.end.set)
            bench.thread.join(30)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the server's word makes the gateway ask again."""
    monkeypatch.setattr(module, "ASK_SECONDS", 600.0)


def test_the_times_fit_flowers() -> None:
    assert ASK_SECONDS == 3.0  # a bare Flower app behind the gateway waits no longer than at Flower's own server
    assert HOLD_SECONDS < 30  # Flower's client gives up then


@pytest.mark.usefixtures("seldom")
def test_a_question_is_held_until_the_server_says_that_there_is_a_message(tmp_path: Path) -> None:
    with holding(tmp_path, 600.0) as (bench, ask):
        answers = [ask() for _ in range(3)]
        until(lambda: len(bench.reached) == 3)
        time.sleep(0.1)
        assert not any(answer.done() for answer in answers)
        assert len(bench.reached) == 3
        wake_nodes(tmp_path)  # about messages of others: asked again, and held again
        until(lambda: len(bench.reached) == 6)
        assert not any(answer.done() for answer in answers)
        bench.answer = b"an order"
        wake_nodes(tmp_path)
        assert [answer.result(30) for answer in answers] == [(200, b"an order")] * 3
        assert {(target, body) for target, _, body in bench.reached} == {(PATH, b"node 7")}


def test_without_a_word_it_is_asked_as_often_as_flower_would_and_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_SECONDS", 0.1)
    with holding(tmp_path, 0.5) as (bench, ask):
        assert ask().result(30) == (200, b"")
        assert 3 <= len(bench.reached) <= 7
        monkeypatch.setattr(bench.gateway, "hold", 600.0)
        answer = ask()
        until(lambda: len(bench.reached) > 9)
        bench.answer = b"an order"
        assert answer.result(30) == (200, b"an order")


def test_hold_0_is_flowers_own_way(tmp_path: Path) -> None:
    with holding(tmp_path, 0.0) as (bench, ask):
        assert ask().result(30) == (200, b"")
        assert len(bench.reached) == 1
        assert not (tmp_path / "wake.sock").exists()


@pytest.mark.usefixtures("seldom")
def test_other_requests_and_long_ones_are_not_held(tmp_path: Path) -> None:
    with holding(tmp_path, 600.0) as (_, ask):
        assert ask("/v1/fleet/push-messages").result(30) == (200, b"")
        assert ask(body=b"x" * (PULL_BYTES + 1)).result(30) == (200, b"")


@pytest.mark.usefixtures("seldom")
def test_no_message_is_fetched_for_a_node_that_has_left(tmp_path: Path) -> None:
    with holding(tmp_path, 600.0) as (bench, ask):
        lines = "".join(f"{name}: {value}\r\n" for name, value in bench.signed().items())
        with bench.connect() as connection:
            connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{lines}\r\n".encode())
            until(lambda: len(bench.reached) == 1)
        until(lambda: not bench.gateway.open)
        bench.answer = b"an order"
        wake_nodes(tmp_path)
        assert ask().result(30) == (200, b"an order")  # it is still there for the node that comes back
        assert len(bench.reached) == 2


@pytest.mark.usefixtures("seldom")
def test_a_key_that_is_removed_ends_a_held_question_too(tmp_path: Path) -> None:
    with holding(tmp_path, 600.0) as (bench, ask):
        answer = ask()
        until(lambda: len(bench.reached) == 1)
        (tmp_path / "keys" / "node-0.pub").unlink()
        bench.answer = b"an order"
        wake_nodes(tmp_path)
        status, text = answer.result(30)
        assert status == 400
        assert b"the key is not registered" in text
        assert len(bench.reached) == 1


@pytest.mark.usefixtures("seldom")
def test_a_wake_between_question_and_wait_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holding(tmp_path, 600.0) as (bench, ask):
        read = http_pieces.read_head

        async def read_late(*args: object) -> object:
            found = await read(*args)  # type: ignore[arg-type]
            bench.gateway.news.datagram_received(b"", None)
            bench.answer = b"an order"
            return found

        monkeypatch.setattr(module, "read_head", read_late)
        assert ask().result(30) == (200, b"an order")


def test_the_servers_grid_wakes_the_gateway_after_it_has_sent(tmp_path: Path) -> None:
    class Grid:
        def __init__(self) -> None:
            self.pushed = list[str]()

        def push_messages(self, messages: list[str]) -> list[str]:
            assert bench.gateway.news.count == 0
            self.pushed += messages
            return ["id"] * len(messages)

        def get_node_ids(self) -> list[int]:
            return [7]

    with holding(tmp_path, 600.0) as (bench, _):
        inner = Grid()
        grid = WakingGrid(inner, tmp_path)  # type: ignore[arg-type]
        assert grid.push_messages([]) == []
        assert grid.push_messages(["an order"]) == ["id"]  # type: ignore[list-item]
        assert inner.pushed == ["an order"]
        assert grid.get_node_ids() == [7]  # type: ignore[operator]
        until(lambda: bench.gateway.news.count == 1)
    wake_nodes(tmp_path / "nowhere")
