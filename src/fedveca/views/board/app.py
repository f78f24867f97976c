"""The board's web application: a page, and what the page asks for, as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from typing import TypedDict

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from fedveca.errors import UserError
from fedveca.runs.files import read_directions, read_object
from fedveca.runs.folder_types import Json
from fedveca.runs.interrupt import how_to_resume
from fedveca.runs.schema import SCHEMA, describe_quantity, find_quantity
from fedveca.version import __version__
from fedveca.views.board.downsample import average_runs, find_window, thin_band
from fedveca.views.board.export import BoardBusy, MadeFile, make_report, write_csv
from fedveca.views.board.files import get_count, read_settings, to_plain_json
from fedveca.views.board.guard import Guard
from fedveca.views.board.index import RunIndex, share_settings
from fedveca.views.board.query import Query
from fedveca.views.board.responses import BoundedResponse, SharedAnswer, SlicedResponse, encode_json
from fedveca.views.board.tail import BOARD_AXES, NUMBERS, ClientBand, FaultRow, HeatMap, RunTail, round_digits
from fedveca.views.report.plotly_bundle import plotly_script

MOST_RUNS = 64  # of one question
_TAILS, _KEPT = MOST_RUNS, 2 * NUMBERS  # runs whose columns stay in memory, and their numbers in total
_POINTS = 2**21  # of all curves of an answer; where more are asked for, each is thinned further
_FAMILIES = 200  # names of the list that are described with it
_WORKING = 4  # requests that are worked on at a time
_MEDIA = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class RunDetails(TypedDict):
    """One run's files, as far as they can be read."""

    id: str
    folder: str
    resume: str
    settings: Json
    environment: Json
    summary: Json
    faults: list[FaultRow]
    fault_count: int
    damaged: int


class RunCurves(TypedDict):
    """One run's recorded names, those that the schema does not know described, and the curves asked for."""

    rounds: int
    share: float
    names: list[str]
    lists: list[str]
    custom: dict[str, dict[str, Json]]
    damaged: int
    faults: int
    curves: dict[str, list[list[float | None]]]


class MethodLook(TypedDict):
    """How a method is called and drawn; the dash is lengths on and off, in line widths."""

    title: str
    colour: str
    dash: list[float]


class LogPage(TypedDict):
    """Some lines of rounds.jsonl."""

    first: int
    total: int
    lines: list[Json]


class BoardApi:
    """Answers the page's requests about the runs below a folder."""

    def __init__(self, root: Path) -> None:
        self.index, self.root = RunIndex(root), str(root)
        self._tails: OrderedDict[str, RunTail] = OrderedDict()
        self._lock = threading.Lock()

    def get_tail(self, name: str) -> RunTail:
        """A run's rounds as far as they are read; the caller takes its lock."""
        folder = self.index.find_folder(name)
        with self._lock:
            if name not in self._tails:
                clients, rounds = 1, 1
                with contextlib.suppress(ValueError, OSError):
                    settings = read_settings(folder)
                    rounds = get_count(settings, "rounds") or 1
                    clients = get_count(settings, "clients") or 1
                with contextlib.suppress(ValueError, OSError):
                    clients = get_count(read_object(folder, "partition.json"), "all") or clients  # one of pooled rows
                self._tails[name] = RunTail(folder / "rounds.jsonl", clients, rounds)
            self._tails.move_to_end(name)
            while len(self._tails) > _TAILS or (
                len(self._tails) > 1 and sum(tail.kept for tail in self._tails.values()) > _KEPT
            ):
                self._tails.popitem(last=False)
            return self._tails[name]

    def list_runs(self, query: Query) -> dict[str, object]:
        """One row per run; of the settings only what differs from `common`."""
        rows = self.index.list_runs()
        common = share_settings(rows)
        return {
            "root": self.root,
            "version": __version__,
            "common": common,
            "quantities": _describe_families({name for row in rows for name in (*row.values, row.metric)}),
            "runs": [vars(row) for row in rows],
        }

    def get_schema(self, query: Query) -> dict[str, dict[str, Json]]:
        """What a run can record: labels, units, directions, symbols."""
        return {name: quantity._asdict() for name, quantity in SCHEMA.items()}

    def get_looks(self, query: Query) -> dict[str, MethodLook]:
        """Title, colour and dash of some methods, as reports and figures have them."""
        from fedveca.algorithms.registry import DASHES  # PyTorch comes with it, which the list does not wait for
        from fedveca.views.series import find_look

        looks: dict[str, MethodLook] = {}
        for name in query.many("method", MOST_RUNS):
            title, colour, dash = find_look(name)
            looks[name] = {"title": title, "colour": colour, "dash": list(DASHES[dash])}
        return looks

    def describe_run(self, query: Query) -> RunDetails:
        """Settings, environment, summary and faults of one run."""
        name = query.one("run")
        folder, tail = self.index.find_folder(name), self.get_tail(name)
        with tail.lock:
            tail.read()
            return {
                "id": name,
                "folder": str(folder),
                "resume": how_to_resume(folder),
                "settings": _read_or_empty(lambda: read_settings(folder)),
                "environment": _read_or_empty(lambda: read_object(folder, "environment.json")),
                "summary": _read_or_empty(lambda: _drop_lists(read_object(folder, "summary.json"))),
                "faults": list(tail.faults),
                "fault_count": tail.fault_count,
                "damaged": tail.damaged,
            }

    def read_curves(self, query: Query) -> dict[str, str | dict[str, RunCurves]]:
        """Recorded names of some runs over an axis, within a window of it."""
        axis, width = query.choice("x", BOARD_AXES), query.whole("width", 500, 10, 4000)
        low, high = query.number("from", -math.inf), query.number("to", math.inf)
        wanted, runs = query.many("name", 64), query.many("run", MOST_RUNS)
        width = _fit_width(width, len(wanted) * len(runs))
        out: dict[str, RunCurves] = {}
        for name in runs:
            tail = self.get_tail(name)
            with tail.lock:
                tail.read()
                scalars, lists = tail.list_names()
                custom = [n for n in (*scalars, *lists) if n not in SCHEMA]
                directions = read_directions(self.index.find_folder(name)) if custom else {}
                out[name] = {
                    "rounds": len(tail.starts),
                    "share": tail.share,
                    "names": scalars,
                    "lists": lists,
                    "custom": {n: describe_quantity(n, directions)._asdict() for n in custom},
                    "damaged": tail.damaged,
                    "faults": tail.fault_count,
                    "curves": {n: tail.read_curve(n, axis, low, high, width) for n in wanted},
                }
        return {"x": axis, "runs": out}

    def read_bands(self, query: Query) -> dict[str, str | dict[str, dict[str, list[list[float | None]]]]]:
        """Recorded names averaged over groups of runs: all x, means, standard deviations and numbers of runs."""
        axis, width = query.choice("x", BOARD_AXES), query.whole("width", 500, 10, 4000)
        low, high = query.number("from", -math.inf), query.number("to", math.inf)
        wanted, groups = query.many("name", 64), dict[str, list[str]]()
        for member in query.many("group", MOST_RUNS):
            group, colon, run = member.partition(":")
            if not colon or not group.isdecimal() or len(group) > 4:
                raise UserError(
                    f"group={member:.100} is not a group; allowed: a number, a colon and a run, such as 0:R"
                )
            groups.setdefault(group, []).append(run)
        width = _fit_width(width, len(wanted) * len(groups))
        tails = {run: self.get_tail(run) for members in groups.values() for run in members}
        for tail in tails.values():
            with tail.lock:
                tail.read()

        def average(name: str, members: list[str]) -> list[list[float | None]]:
            points = []
            for run in members:
                with tails[run].lock:
                    points.append(tails[run].read_points(name, axis, -math.inf, math.inf))
            columns = average_runs(points)
            part = find_window(columns[0], low, high)
            return [round_digits(values) for values in thin_band([values[part] for values in columns], width)]

        out = {group: {name: average(name, members) for name in wanted} for group, members in groups.items()}
        return {"x": axis, "groups": out}

    def export_csv(self, query: Query) -> MadeFile:
        """A recorded name of some runs as a file."""
        axis, runs = query.choice("x", BOARD_AXES), query.many("run", MOST_RUNS)
        low, high = query.number("from", -math.inf), query.number("to", math.inf)
        return write_csv(query.one("name"), axis, ((run, self.get_tail(run)) for run in runs), low, high)

    def export_report(self, query: Query) -> MadeFile:
        """The report of some runs: a page in a sandbox, or with file=1 a file."""
        runs = query.many("run", MOST_RUNS)
        if not runs:
            raise UserError("run is missing")
        return make_report([self.index.find_folder(run) for run in runs], query.whole("file", 0, 0, 1) == 1)

    def read_heat_map(self, query: Query) -> HeatMap:
        """One recorded name of one run, by client and round."""
        tail = self.get_tail(query.one("run"))
        low, high = query.number("from", -math.inf), query.number("to", math.inf)
        rows, columns = query.whole("height", 200, 1, 2000), query.whole("width", 500, 1, 4000)
        with tail.lock:
            tail.read()
            return tail.read_heat_map(query.one("name"), low, high, rows, columns)

    def read_clients(self, query: Query) -> ClientBand:
        """How a value of one run is distributed over the clients that tested it, by an axis."""
        tail, axis = self.get_tail(query.one("run")), query.choice("x", BOARD_AXES)
        low, high = query.number("from", -math.inf), query.number("to", math.inf)
        with tail.lock:
            tail.read()
            return tail.read_distribution(query.one("name"), axis, low, high, query.whole("width", 500, 10, 4000))

    def read_log(self, query: Query) -> LogPage:
        """Some lines of rounds.jsonl as they are."""
        tail = self.get_tail(query.one("run"))
        with tail.lock:
            tail.read()
            before = query.whole("before", len(tail.starts), 0, 2**31)
            first, lines = tail.read_log(before, query.whole("count", 100, 1, 500))
            return {"first": first, "total": len(tail.starts), "lines": lines}


def make_app(root: Path, *, host: str = "127.0.0.1", token: str = "", names: tuple[str, ...] = ()) -> Guard:
    """The board of the runs below `root`, behind its guard."""
    api, working = BoardApi(root), asyncio.Semaphore(_WORKING)

    def answer(ask: Callable[[Query], object], kind: type[Response]) -> Callable[[Request], Awaitable[Response]]:
        def work(query: Query) -> tuple[int, MadeFile, str]:
            content: object
            try:
                status, content = 200, ask(query)
            except LookupError as error:
                status, content = 404, {"error": str(error.args[0])}
            except BoardBusy as error:
                status, content = 503, {"error": str(error)}
            except (ValueError, OSError) as error:
                status, content = 400, {"error": str(error)}
            if not isinstance(content, MadeFile):
                body = content if isinstance(content, bytes) else encode_json(content)
                content = MadeFile(body, "application/json", {})
            return status, content, f'"{hashlib.sha256(content.content).hexdigest()[:24]}"'

        async def endpoint(request: Request) -> Response:
            query = Query(request.query_params.multi_items())
            async with working:
                status, made, tag = await run_in_threadpool(work, query)
            headers = {"etag": tag, "cache-control": "no-cache"} | made.headers
            if status == 200 and request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return kind(made.content, status, headers, made.media)

        return endpoint

    runs = SharedAnswer(lambda: encode_json(api.list_runs(Query([]))))
    asks = {
        "schema": api.get_schema,
        "looks": api.get_looks,
        "run": api.describe_run,
        "curves": api.read_curves,
        "bands": api.read_bands,
        "heat": api.read_heat_map,
        "clients": api.read_clients,
        "log": api.read_log,
        "csv": api.export_csv,
        "report": api.export_report,
    }
    page = Path(str(resources("fedveca") / "views" / "board" / "page"))
    routes = [Route(f"/{path.name}", _serve_file(path)) for path in sorted(page.iterdir()) if path.suffix in _MEDIA]
    routes += [Route("/", _serve_file(page / "board.html")), Route("/plotly.js", _serve_plotly)]
    routes += [Route("/api/runs", answer(lambda query: runs(query.asked), SlicedResponse))]
    routes += [Route(f"/api/{name}", answer(ask, BoundedResponse)) for name, ask in asks.items()]
    return Guard(Starlette(routes=routes), host, token, names)


def _fit_width(width: int, curves: int) -> int:
    return max(10, min(width, _POINTS // max(1, curves)))


def _serve_file(path: Path) -> Callable[[Request], Response]:
    headers = {"cache-control": "no-cache"}
    return lambda request: FileResponse(path, media_type=_MEDIA[path.suffix], headers=headers)


def _serve_plotly(request: Request) -> Response:
    headers = {"etag": f'"{len(_read_plotly())}"', "cache-control": "max-age=3600"}
    return SlicedResponse(_read_plotly(), headers=headers, media_type="text/javascript")


@cache
def _read_plotly() -> bytes:
    return plotly_script().encode()


def _describe_families(names: Iterable[str]) -> dict[str, dict[str, Json]]:
    """Those of the names that the schema describes without having them one by one.

    They are of a family, such as clients_accuracy_worst, or custom metrics that stated their unit.
    """
    found: dict[str, dict[str, Json]] = {}
    for name in names:
        if name not in SCHEMA and name not in found and len(found) < _FAMILIES:
            quantity = describe_quantity(name)
            if quantity.unit or find_quantity(name):
                found[name] = quantity._asdict()
    return found


def _drop_lists(summary: Mapping[str, object]) -> dict[str, object]:
    """The summary without the lists over clients of its models, which may be long; their aggregates stay."""
    out = dict(summary)
    for which in ("kept", "last"):
        if isinstance(model := out.get(which), dict):
            out[which] = {name: value for name, value in model.items() if not isinstance(value, list)}
    return out


def _read_or_empty(read: Callable[[], object]) -> Json:
    try:
        return to_plain_json(read())
    except (OSError, ValueError):
        return {}
