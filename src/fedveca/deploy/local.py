"""An experiment over real nodes on this machine, from start to end: what `fedveca deploy local` runs."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

from fedveca.deploy.launch import HOST, Federation
from fedveca.deploy.node_process import NODE_DATA
from fedveca.deploy.pace import DEFAULT_POLL, check_poll
from fedveca.deploy.processes import is_alive
from fedveca.deploy.provision import write_app
from fedveca.deploy.server import check_deployable
from fedveca.deploy.superlink import FederationFailed
from fedveca.errors import UserError
from fedveca.monitor.settings import NOTHING_WATCHED, MonitorSettings
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import LineTail, leads_out
from fedveca.runs.folder import Run, line_bytes, require_new
from fedveca.runs.interrupt import LOCAL, Stopped, how_to_resume
from fedveca.runs.observers import Observer, copy_record, observe
from fedveca.runs.secure import find_quorum
from fedveca.runs.validate_records import parse_object, validate_round

SERVER_START_SECONDS = 300.0
_log = logging.getLogger(__name__)


def run_locally(
    e: Experiment,
    out: Path,
    *,
    observers: tuple[Observer, ...] = (),
    resume: bool = False,
    poll: float = DEFAULT_POLL,
    monitor: MonitorSettings = NOTHING_WATCHED,
) -> Run:
    """Runs the experiment over real nodes on loopback.

    Args:
        e: the experiment; it has one node per client.
        out: the run folder to write.
        observers: see each round as its line appears in the folder.
        resume: whether to resume the run in `out`.
        poll: the shortest time between two looks for something new; 0 leaves Flower's intervals.
        monitor: where the server's figures are served, and the log's form; node i serves its own 1 + i ports above.

    Returns:
        The finished run.

    Raises:
        UserError: if the experiment cannot be deployed or the folder cannot be used.
        FederationFailed: if a part of the federation ends early.
        Stopped: at Ctrl-C; the text says how to resume.
    """
    check_deployable(e)
    check_poll(poll)
    if monitor.port:
        monitor._replace(port=monitor.port + e.clients).check()
    if not resume:
        require_new(out)
    if leads_out(out, "deployment"):
        raise UserError(f"{out / 'deployment'} is a link to elsewhere, or holds one; it is not written")
    if e.test_by != "client" or not os.environ.get(NODE_DATA):  # else only the nodes have data
        build(e)  # reports at once what does not fit, and gets the data before every node asks for them
    try:
        with Federation(out / "deployment", e.clients, poll=poll, monitor=monitor) as federation:
            write_app(federation.folder / "app", e)
            federation.pin(federation.folder / "app")
            federation.introduce(find_quorum(e, e.clients)[1] if e.secure == "on" else 0)
            _log.info("a SuperLink at %s:%d and %d SuperNodes are running", HOST, federation.port, e.clients)
            _log.info("their logs are in %s", federation.folder)
            where = json.dumps(str(out.absolute()))
            federation.submit([f"resume={where}" if resume else f"out={where}", f"rounds={e.rounds}"])
            with observe(observers, e, out, []) as done:
                follow(federation, out, e.clients, observers)
                done.append(Run.open(out))
                return done[0]
    except KeyboardInterrupt as error:
        if not (out / "experiment.toml").exists():
            raise  # there is nothing to resume yet
        raise Stopped(
            f"interrupted; all rounds up to the last checkpoint are saved; to resume: {how_to_resume(out, LOCAL)}"
        ) from error


def follow(federation: Federation, out: Path, clients: int, observers: tuple[Observer, ...] = ()) -> None:
    """Shows each round's record to the observers as it appears, until the server has ended."""
    tail = LineTail(out, "rounds.jsonl", line_bytes(clients))
    tail.read()
    shown, until = tail.count, time.monotonic() + SERVER_START_SECONDS
    while True:
        status, lines = federation.read_status(), tail.read()
        shown = min(shown, tail.count)  # a resumed run goes back to its checkpoint
        for k, line in enumerate(lines, tail.count - len(lines)):
            record = parse_object(line, f"line {k + 1} of rounds.jsonl")
            if validate_round(record, k) and k >= shown:
                for observer in observers:
                    observer.round(copy_record(record))
        shown = tail.count
        if status is None:
            if time.monotonic() > until:
                raise FederationFailed(f"the server app did not start; see {federation.folder / 'superlink.log'}")
        elif status["error"]:
            raise UserError(status["error"]) if status["user_error"] else FederationFailed(status["error"])
        elif status["ended"]:
            return
        elif not is_alive(status["pid"]):
            raise FederationFailed(f"the server app was killed; to resume: {how_to_resume(out, LOCAL)}")
        federation.check()
        time.sleep(0.5)
