"""An experiment of a deployment from its start to its end: `python -m fedveca.deploy.runner SERVER APP`, or `run.sh`.

The server may be killed and started again meanwhile, by systemd for example: the run is then resumed from its last
checkpoint, without anybody's help. `current.json` in the server's folder names the last run, so that this program may
be killed and started again as well.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from fedveca.deploy import private_api
from fedveca.deploy.processes import end_with_parent
from fedveca.deploy.superlink import FLOWER_ENVIRONMENT, search_path
from fedveca.errors import UserError, printable
from fedveca.runs.experiment import name_folder
from fedveca.runs.files import read_inside, read_object, write_atomic
from fedveca.runs.folder import FILE_BYTES
from fedveca.runs.lock import InUse, lock_folder

CURRENT = "current.json"  # names the last run
RESTART_SECONDS = 600.0  # for a server that was killed to be there again
ATTEMPTS = 5  # in a row without a single new round
PAUSE_SECONDS = 2.0


class ExperimentRunner:
    """Starts an experiment, or resumes it, until it is finished.

    Args:
        server: the server's folder, as `deploy init` wrote it.
        app: the folder of the app.
        settings: overrides of the app's settings, as `flwr run` takes them; `out` and `resume` name the run folder.
        others: further options of `flwr run`.
    """

    def __init__(self, server: Path, app: Path, settings: list[str], others: list[str]) -> None:
        self.server, self.app, self.others = server.absolute(), app.absolute(), others
        given = _parse_settings(settings)
        self.named = next((name for name in ("resume", "out") if given.get(name)), "")
        self.out = Path(str(given[self.named])) if self.named else None
        self.settings = {key: value for key, value in given.items() if key not in ("out", "resume")}

    def run(self, once: bool = False) -> int:
        """Follows the experiment to its end.

        Args:
            once: whether to do nothing where the last run is finished.

        Returns:
            0 where it is finished, 1 where it is not.

        Raises:
            UserError: if the server does not run, or the app cannot be read.
        """
        last = self._read_current()
        if self.out is None and once and last is not None and is_finished(last):
            print(f"{last} is finished; run.sh without --once starts another experiment", flush=True)
            return 0
        if not private_api.is_listening(self.server):
            raise UserError("the server is not running; start it with start.sh")
        if self.out is None:
            unfinished = last is not None and can_resume(last)
            self.out = last if last is not None and unfinished else self._choose_folder()
        out = self.out if self.out.is_absolute() else self.server / self.out
        resumed = self.named == "resume" or (not self.named and can_resume(out))
        write_atomic(self.server / CURRENT, json.dumps({"out": str(out)}).encode())
        failed, rounds = 0, -1
        while True:
            if resumed:
                wait_until_free(out)
                if self.named != "resume" and is_finished(out):
                    return 0
                print(f"resuming {out}", flush=True)
            self._submit(out, resumed)
            if is_finished(out):
                return 0
            alive, started = private_api.is_listening(self.server), can_resume(out)
            if alive and not started:
                print(f"fedveca: the experiment did not start; see {self.server / 'superlink.log'}", file=sys.stderr)
                return 1
            done = count_rounds(out)
            failed, rounds, resumed = 0 if done > rounds else failed + 1, done, started
            if failed == ATTEMPTS:
                print(f"fedveca: no round was added in {ATTEMPTS} attempts; {out} can be resumed", file=sys.stderr)
                return 1
            time.sleep(PAUSE_SECONDS)
            self._wait_for_server()

    def _submit(self, out: Path, resumed: bool) -> None:
        """One `flwr run`, whose log is this program's output, until it ends for whatever reason."""
        settings = (self._read_changes(out) if resumed else {}) | self.settings
        settings["resume" if resumed else "out"] = str(out)
        config = [word for key, value in settings.items() for word in ("--run-config", f"{key}={json.dumps(value)}")]
        command = [str(self.server / "bin" / "flwr"), "run", str(self.app), "fedveca", "--stream"]
        environment = FLOWER_ENVIRONMENT | {
            "FLWR_HOME": str(self.server / "flower"),
            private_api.API_FOLDER: str(self.server),
            "PATH": search_path(self.server / "bin"),
        }
        subprocess.run(
            [*command, *config, *self.others],
            env=os.environ | environment,
            check=False,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )

    def _wait_for_server(self) -> None:
        until = time.monotonic() + RESTART_SECONDS
        while not private_api.is_listening(self.server):
            if time.monotonic() > until:
                raise UserError(f"the server did not come back within {RESTART_SECONDS:g} s; start it with start.sh")
            time.sleep(0.5)

    def _read_current(self) -> Path | None:
        if not (self.server / CURRENT).exists():
            return None
        out = read_object(self.server, CURRENT).get("out")
        if not isinstance(out, str) or not Path(out).is_absolute():
            raise UserError(f"{self.server / CURRENT} does not name a run folder; remove it")
        return Path(out)

    def _read_config(self) -> dict[str, object]:
        """The app's settings."""
        try:
            project = tomllib.loads((self.app / "pyproject.toml").read_text(encoding="utf-8"))
            return dict(project["tool"]["flwr"]["app"]["config"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.app} is not a Flower app: pyproject.toml cannot be read ({error})") from error

    def _read_changes(self, out: Path) -> dict[str, object]:
        """The settings of a run that are not the app's any more: its nodes need those that it was started with."""
        config, run = self._read_config(), tomllib.loads(read_inside(out, "experiment.toml", FILE_BYTES).decode())
        return {key: value for key, value in run.items() if key in config and config[key] != value}

    def _choose_folder(self) -> Path:
        """What the app's settings name, else a new folder."""
        config = self._read_config()
        if config.get("out"):
            return self.server / str(config["out"])
        base = self.server / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{name_folder(str(config['method']))}-flower"
        return next(p for n in range(1, 10_000) if not (p := base if n == 1 else Path(f"{base}-{n}")).exists())


def is_finished(out: Path) -> bool:
    """Whether the run in a folder has ended."""
    return (out / "summary.json").exists()


def can_resume(out: Path) -> bool:
    """Whether the folder holds a run that has not ended."""
    return not is_finished(out) and (out / "experiment.toml").exists()


def count_rounds(out: Path) -> int:
    """How many rounds of a run are recorded."""
    path = out / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_until_free(out: Path) -> None:
    """Returns when no process has the run folder: until then the server is still at it."""
    said = False
    while True:
        try:
            with lock_folder(out):
                return
        except InUse as error:
            if not said:
                print(f"{error}", flush=True)
            said = True
            time.sleep(0.5)


def _parse_settings(settings: list[str]) -> dict[str, object]:
    """The values of overrides as Flower reads them; UserError where it cannot."""
    from flwr.common.config import parse_config_args

    try:
        return dict(parse_config_args(settings))
    except Exception as error:  # Flower raises several kinds
        words = printable(" ".join(settings))
        raise UserError(f"{words} is not a list of settings such as rounds=50 or method='\"fedavg\"'") from error


def _main() -> None:
    parser = argparse.ArgumentParser(prog="run.sh", description="Start or resume the experiment of a deployment.")
    parser.add_argument("server", type=Path)
    parser.add_argument("app", type=Path)
    parser.add_argument("-c", "--run-config", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--once", action="store_true", help="start nothing after an experiment that is finished")
    args, others = parser.parse_known_args()
    os.umask(0o077)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends what it started
    try:
        sys.exit(ExperimentRunner(args.server, args.app, args.run_config, others).run(args.once))
    except (ValueError, OSError) as error:
        sys.exit(f"fedveca: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    _main()
