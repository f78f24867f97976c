"""The board's web application: a page, and what the page asks for, as JSON."""

from __future__ import annotations

import hashlib
import json
import math
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from fedveca.version import __version__
from fedveca.views.board import files
from fedveca.views.board.follow import AXES, Follow
from fedveca.views.board.guard import Guard
from fedveca.views.board.shelf import Shelf
from fedveca.views.script import plotly

FOLLOWED = 32  # runs whose columns stay in memory
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Desk:
    """The shelf, and the runs that are being looked at."""

    def __init__(self, root: Path) -> None:
        self.shelf, self.root = Shelf(root), str(root)
        self._followed: OrderedDict[str, Follow] = OrderedDict()
        self._lock = threading.Lock()

    def follow(self, name: str) -> Follow:
        """A run's rounds as far as they are read; its lock is for the caller to hold."""
        folder = self.shelf.folder(name)
        with self._lock:
            if name not in self._followed:
                try:
                    settings = files.settings(folder / "experiment.toml")
                except ValueError:
                    settings = {}
                clients = 1 if settings.get("method") == "centralised" else settings.get("clients", 1)
                self._followed[name] = Follow(folder / "rounds.jsonl", clients, settings.get("rounds", 1))
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
            ("settings", "experiment.toml", files.toml), ("environment", "environment.json", files.table),
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
                    "rounds": len(follow.starts), "version": follow.version, "share": follow.share, "names": scalars,
                    "lists": lists, "damaged": follow.damaged, "faults": follow.fault_count,
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
        self.pairs = pairs

    def many(self, key: str, most: int) -> list[str]:
        given = list(dict.fromkeys(v for k, v in self.pairs if k == key))
        if len(given) > most:
            raise ValueError(f"{len(given)} times {key} is too many; at most {most}")
        return given

    def one(self, key: str) -> str:
        given = self.many(key, 1)
        if not given:
            raise ValueError(f"{key} is missing")
        return given[0]

    def choice(self, key: str, of: tuple[str, ...]) -> str:
        given = (self.many(key, 1) or [of[0]])[0]
        if given not in of:
            raise ValueError(f"{key}={given} is not known; allowed: {' | '.join(of)}")
        return given

    def number(self, key: str, default: float) -> float:
        given = self.many(key, 1)
        try:
            value = float(given[0]) if given else default
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise ValueError(f"{key}={given[0]} is not a number")
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self.number(key, default)
        if not low <= value <= high or value != int(value):
            raise ValueError(f"{key}={value:g} is out of range; allowed: {low} to {high}")
        return int(value)


def app(root: Path, *, host: str = "127.0.0.1", token: str = "", names: tuple[str, ...] = ()) -> Guard:
    """The board over the runs below `root`, behind its guard."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import Route

    desk = Desk(root)

    def answers(ask: Callable[[Query], Any]) -> Any:
        def endpoint(request: Request) -> Response:
            try:
                status, content = 200, ask(Query(request.query_params.multi_items()))
            except LookupError as error:
                status, content = 404, {"error": str(error.args[0])}
            except (ValueError, OSError) as error:
                status, content = 400, {"error": str(error)}
            body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
            tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
            headers = {"etag": tag, "cache-control": "no-cache"}
            if status == 200 and request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(body, status, headers, "application/json")

        return endpoint

    def serves(path: Path) -> Any:
        def endpoint(request: Request) -> Response:
            return FileResponse(path, media_type=TYPES[path.suffix], headers={"cache-control": "no-cache"})

        return endpoint

    def script(request: Request) -> Response:
        headers = {"etag": f'"{len(plotly())}"', "cache-control": "max-age=3600"}
        return Response(plotly(), headers=headers, media_type="text/javascript")

    page = Path(str(resources("fedveca") / "views" / "board" / "page"))
    routes = [Route(f"/{path.name}", serves(path)) for path in sorted(page.iterdir()) if path.suffix in TYPES]
    routes += [Route("/", serves(page / "board.html")), Route("/plotly.js", script)]
    asks = (desk.runs, desk.run, desk.curves, desk.heat, desk.log)
    routes += [Route(f"/api/{ask.__name__}", answers(ask)) for ask in asks]
    return Guard(Starlette(routes=routes), host, token, names)


def serve(application: Guard, listening: socket.socket) -> None:
    """Until Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(
        application, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listening])
