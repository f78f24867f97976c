"""An experiment over real nodes on this machine, from start to end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from fedveca.deploy.launch import HOST, Federation
from fedveca.deploy.node import alive
from fedveca.deploy.provision import write_app
from fedveca.deploy.server import check_deployable
from fedveca.deploy.superlink import Failed
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import leads_out
from fedveca.runs.folder import Run, require_new
from fedveca.runs.interrupt import LOCAL, Stopped, how_to_resume
from fedveca.runs.schema import Round

Watch = Callable[[Round], None]


def run_locally(
    e: Experiment, out: Path, *, watch: Watch | None = None, say: Callable[[str], None] = print, again: bool = False
) -> Run:
    """Runs the experiment over real nodes on loopback; `again` goes on with the run in `out`."""
    needs_flower()
    check_deployable(e)
    if not again:
        require_new(out)
    if leads_out(out, "deployment"):
        raise UserError(f"{out / 'deployment'} is a link to elsewhere, or holds one; it is not written")
    build(e)  # says at once what does not fit, and has the data at hand before every node asks for them
    try:
        with Federation(out / "deployment", e.clients) as federation:
            write_app(federation.folder / "app", e)
            federation.pin(federation.folder / "app")
            say(f"a SuperLink behind {HOST}:{federation.port} and {e.clients} SuperNodes, with TLS and node keys")
            say(f"their logs: {federation.folder}")
            where = json.dumps(str(out.absolute()))
            federation.submit([f"resume={where}" if again else f"out={where}", f"rounds={e.rounds}"])
            follow(federation, out, watch)
    except KeyboardInterrupt as error:
        if not (out / "experiment.toml").exists():
            raise  # there is nothing to resume yet
        raise Stopped(
            f"interrupted; all up to its last checkpoint is whole; to resume: {how_to_resume(out, LOCAL)}"
        ) from error
    return Run.open(out)


def needs_flower() -> None:
    if find_spec("flwr") is None:
        raise UserError("deploy needs the extra fedveca[flower]: pip install 'fedveca[flower]'")


def follow(federation: Federation, out: Path, watch: Watch | None = None) -> None:
    """Shows each round as its line appears, until the server has ended."""
    told, until = len(Run.open(out).rounds) if (out / "rounds.jsonl").exists() else 0, time.monotonic() + 300
    while True:
        now = federation.server()
        if (out / "rounds.jsonl").exists() and (out / "experiment.toml").exists():
            lines = Run.open(out).rounds
            told = min(told, len(lines))
            for line in lines[told:]:
                if watch:
                    watch(line)
            told = len(lines)
        if now.get("wrong"):
            raise UserError(now["error"])
        if now.get("error"):
            raise Failed(now["error"])
        if now.get("ended"):
            return
        if now and not alive(now["pid"]):
            raise Failed(f"the server app was killed; to resume: {how_to_resume(out, LOCAL)}")
        if not now and time.monotonic() > until:
            raise Failed(f"the server app did not start; see {federation.folder / 'superlink.log'}")
        federation.check()
        time.sleep(0.5)
