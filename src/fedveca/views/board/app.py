"""The board's web application: a page, and what the page asks for, as JSON."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from fedveca.algorithms.registry import is_pooled
from fedveca.errors import UserError
from fedveca.version import __version__
from fedveca.views.board import files
from fedveca.views.board.guard import Guard
from fedveca.views.board.index import RunIndex
from fedveca.views.board.tail import AXES, RunTail
from fedveca.views.report.plotly_bundle import plotly_script

FOLLOWED = 32  # runs whose columns stay in memory
WORKING = 4  # questions that are worked on at a time
SLICE, HELD = 2**16, 2**28  # bytes of an answer that are written at a time, and of all answers that wait to be read
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Desk:
    """The shelf, and the runs that are being looked at."""

    def __init__(self, root: Path) -> None:
        self.shelf, self.root = RunIndex(root), str(root)
        self._followed: OrderedDict[str, RunTail] = OrderedDict()
        self._lock = threading.Lock()

    def follow(self, name: str) -> RunTail:
        """A run's rounds as far as they are read; its lock is for the caller to hold."""
        folder = self.shelf.folder(name)
        with self._lock:
            if name not in self._followed:
                try:
                    settings = files.settings(folder / "experiment.toml")
                except ValueError:
                    settings = {}
                clients = 1 if is_pooled(str(settings.get("method"))) else settings.get("clients", 1)
                self._followed[name] = RunTail(folder / "rounds.jsonl", clients, settings.get("rounds", 1))
            self._followed.move_to_end(name)
            while len(self._followed) > FOLLOWED:
                self._followed.popitem(last=False)
            return self._followed[name]

    def runs(self, query: Query) -> Any:
        return {"root": self.root, "version": __version__, "runs": self.shelf.rows()}

    def run(self, query: Query) -> Any:
        """Settings, environment, summary and faults of one run."""
        name = query.one("run")
        folder, follow = self.shelf.folder(name), self.follow(name)
        out: dict[str, Any] = {"id": name, "path": str(folder)}
        for key, file, read in (
            ("settings", "experiment.toml", files.toml),
            ("environment", "environment.json", files.table),
            ("summary", "summary.json", files.table),
        ):
            try:
                out[key] = read(folder / file)
            except ValueError:
                out[key] = {}
        with follow.lock:
            follow.read()
            out |= {"faults": list(follow.faults), "fault_count": follow.fault_count, "damaged": follow.damaged}
        return out

    def curves(self, query: Query) -> Any:
        """Recorded names of some runs over an axis, within a window of it."""
        axis, width = query.choice("x", AXES), query.whole("width", 500, 10, 4000)
        low, high = query.number("from", -math.inf), query.number("to", math.inf)
        out = {}
        for name in query.many("run", 24):
            follow = self.follow(name)
            with follow.lock:
                follow.read()
                scalars, lists = follow.names()
                out[name] = {
                    "rounds": len(follow.starts),
                    "version": follow.version,
                    "share": follow.share,
                    "names": scalars,
                    "lists": lists,
                    "damaged": follow.damaged,
                    "faults": follow.fault_count,
                    "curves": {n: follow.curve(n, axis, low, high, width) for n in query.many("name", 64)},
                }
        return {"x": axis, "runs": out}

    def heat(self, query: Query) -> Any:
        """One recorded name of one run, by client and round."""
        follow = self.follow(query.one("run"))
        low, high = query.number("from", -math.inf), query.number("to", math.inf)
        rows, columns = query.whole("height", 200, 1, 2000), query.whole("width", 500, 1, 4000)
        with follow.lock:
            follow.read()
            return {"version": follow.version} | follow.heat(query.one("name"), low, high, rows, columns)

    def log(self, query: Query) -> Any:
        """Some lines of rounds.jsonl as they are."""
        follow = self.follow(query.one("run"))
        with follow.lock:
            follow.read()
            before = query.whole("before", len(follow.starts), 0, 2**31)
            first, lines = follow.log(before, query.whole("count", 100, 1, 500))
            return {"first": first, "total": len(follow.starts), "lines": lines}


class Query:
    """What an address asks for, checked; ValueError in one sentence."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs, self.asked = pairs, time.monotonic()

    def many(self, key: str, most: int) -> list[str]:
        given = list(dict.fromkeys(v for k, v in self.pairs if k == key))
        if len(given) > most:
            raise UserError(f"{len(given)} times {key} is too many; at most {most}")
        return given

    def one(self, key: str) -> str:
        given = self.many(key, 1)
        if not given:
            raise UserError(f"{key} is missing")
        return given[0]

    def choice(self, key: str, of: tuple[str, ...]) -> str:
        given = (self.many(key, 1) or [of[0]])[0]
        if given not in of:
            raise UserError(f"{key}={given} is not known; allowed: {' | '.join(of)}")
        return given

    def number(self, key: str, default: float) -> float:
        given = self.many(key, 1)
        try:
            value = float(given[0]) if given else default
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise UserError(f"{key}={given[0]} is not a number")
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self.number(key, default)
        if not low <= value <= high or value != int(value):
            raise UserError(f"{key}={value:g} is out of range; allowed: {low} to {high}")
        return int(value)


class Shared:
    """One answer for all who asked before it was begun: many who look at once cost little more than one."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._began, self._body = -math.inf, b""

    def __call__(self, asked: float) -> bytes:
        with self._lock:
            if self._began <= asked:
                began = time.monotonic()
                self._body, self._began = self._make(), began
            return self._body


def app(root: Path, *, host: str = "127.0.0.1", token: str = "", names: tuple[str, ...] = ()) -> Guard:
    """The board over the runs below `root`, behind its guard."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import Route

    desk, working, held = Desk(root), asyncio.Semaphore(WORKING), [0]

    class Sliced(Response):
        """Sent piece by piece as it is read: what a slow reader holds is the body, which others may share."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
            last = max(0, len(self.body) - 1) // SLICE * SLICE
            for at in range(0, last + 1, SLICE):
                piece = bytes(self.body[at : at + SLICE])
                await send({"type": "http.response.body", "body": piece, "more_body": at < last})

    class Own(Sliced):
        """A body that nobody shares: all that are being sent together are bounded."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if held[0] and held[0] + len(self.body) > HELD:
                busy = {"error": "too many answers are being read slowly; ask again later"}
                await Response(_json(busy), 503, media_type="application/json")(scope, receive, send)
                return
            held[0] += len(self.body)
            try:
                await super().__call__(scope, receive, send)
            finally:
                held[0] -= len(self.body)

    def answers(ask: Callable[[Query], bytes], kind: type[Response]) -> Any:
        def work(query: Query) -> tuple[int, bytes, str]:
            try:
                status, body = 200, ask(query)
            except LookupError as error:
                status, body = 404, _json({"error": str(error.args[0])})
            except (ValueError, OSError) as error:
                status, body = 400, _json({"error": str(error)})
            return status, body, f'"{hashlib.sha256(body).hexdigest()[:24]}"'

        async def endpoint(request: Request) -> Response:
            query = Query(request.query_params.multi_items())
            async with working:
                status, body, tag = await run_in_threadpool(work, query)
            headers = {"etag": tag, "cache-control": "no-cache"}
            if status == 200 and request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return kind(body, status, headers, "application/json")

        return endpoint

    def serves(path: Path) -> Any:
        def endpoint(request: Request) -> Response:
            return FileResponse(path, media_type=TYPES[path.suffix], headers={"cache-control": "no-cache"})

        return endpoint

    def script(request: Request) -> Response:
        headers = {"etag": f'"{len(_script())}"', "cache-control": "max-age=3600"}
        return Sliced(_script(), headers=headers, media_type="text/javascript")

    page = Path(str(resources("fedveca") / "views" / "board" / "page"))
    routes = [Route(f"/{path.name}", serves(path)) for path in sorted(page.iterdir()) if path.suffix in TYPES]
    routes += [Route("/", serves(page / "board.html")), Route("/plotly.js", script)]
    runs = Shared(lambda: _json(desk.runs(Query([]))))
    routes += [Route("/api/runs", answers(lambda query: runs(query.asked), Sliced))]
    asks = (desk.run, desk.curves, desk.heat, desk.log)
    routes += [Route(f"/api/{ask.__name__}", answers(_encoding(ask), Own)) for ask in asks]
    return Guard(Starlette(routes=routes), host, token, names)


def serve(application: Guard, listening: socket.socket) -> None:
    """Until Ctrl-C."""
    from fedveca.views.board.connections import server

    server(application).run(sockets=[listening])


def _encoding(ask: Callable[[Query], Any]) -> Callable[[Query], bytes]:
    return lambda query: _json(ask(query))


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


@cache
def _script() -> bytes:
    return plotly_script().encode()
