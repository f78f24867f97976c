"""How soon the parts of a federation notice that there is something to do.

Flower 1.41 has three fixed waits that no option changes: a SuperNode that finds no message sleeps 3 s, one that waits
for its app's answer looks every 0.5 s, and whoever finds a half-uploaded object sleeps 1 s. Our programs run Flower's
(deploy/private_api.py), and shorten these waits there: in Flower's module of the SuperNode and of the SuperExec the
name `time` is a stand-in whose `sleep` is ours, and the server's grid gets another first wait. Where Flower's modules
do not look as those of 1.41 do, nothing is changed and one sentence in the log says so. The wait for a message is
shortened without touching Flower at all: the gateway holds the request (deploy/long_poll.py).
"""

from __future__ import annotations

import inspect
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from fedveca.errors import UserError

POLL = "FEDVECA_POLL"  # the setting, for the processes of a federation
DEFAULT_POLL, SHORTEST_POLL, LONGEST_POLL = 0.05, 0.01, 0.5  # seconds
NODE_FOLDER = "FEDVECA_NODE_DIR"  # names a node's folder, in all of its processes
FLOWER_VERSION = "1.41."
NODE_MODULE = "flwr.supernode.start_client_internal"
EXEC_MODULE = "flwr.supercore.superexec.run_superexec"
GRID_MODULE = "flwr.superlink.grid.http_grid"
TASK_SOCKET = "task.sock"  # in a node's folder: the SuperExec listens here for the word that there is a task
EXEC_SECONDS = 1.0  # how often it looks without that word: Flower's own default
WAIT_DIVISOR = 10  # a wait is this part of what was waited so far
_log = logging.getLogger(__name__)
_sentence = ""


def check_poll(seconds: float) -> float:
    """The setting, checked.

    Args:
        seconds: the shortest time between two looks; 0 leaves Flower's intervals as they are.

    Raises:
        UserError: if it is out of range.
    """
    if seconds != 0 and not SHORTEST_POLL <= seconds <= LONGEST_POLL:
        allowed = f"[{SHORTEST_POLL:g}, {LONGEST_POLL:g}] seconds, or 0 for Flower's own intervals"
        raise UserError(f"poll={seconds:g} is out of range; allowed: {allowed}")
    return seconds


def read_poll() -> float:
    """The setting of this process's federation; Flower's own intervals where none is named."""
    return check_poll(float(os.environ.get(POLL) or 0.0))


def find_wait(poll: float, waited: float, longest: float) -> float:
    """The next wait: from `poll` on a tenth of what was waited so far, at most `longest`."""
    return min(max(waited / WAIT_DIVISOR, poll), max(longest, poll))


class NodePace:
    """Stands for the module `time` in Flower's SuperNode, which sleeps 3 s for a message and 0.5 s for an answer.

    Args:
        poll: the shortest wait.
        sleep: how to sleep.
        clock: what time it is.
    """

    def __init__(
        self, poll: float, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._poll, self._sleep, self._clock = poll, sleep, clock
        self._since = self._slept = clock()  # when the wait for an answer began; when the last sleep ended

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)

    def begin_wait(self) -> None:
        """A message has come, and the wait for its answer begins."""
        self._since = self._clock()

    def sleep(self, seconds: float) -> None:
        """Sleeps as long as Flower asks, or less."""
        now = self._clock()
        if seconds < 1:  # for an answer
            self._sleep(find_wait(self._poll, now - self._since, seconds))
        else:  # for a message; where the gateway has held the question that long, that was the sleep
            self._sleep(self._poll if now - self._slept >= seconds else seconds)
        self._slept = self._clock()


class ExecPace:
    """Stands for the module `time` in a node's SuperExec: it sleeps until there is a task."""

    def __init__(self, bell: socket.socket) -> None:
        self._bell = bell
        bell.settimeout(EXEC_SECONDS)

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleeps until the SuperNode announces a task, at most EXEC_SECONDS."""
        with suppress(TimeoutError):
            self._bell.recv(16)


def announce_task(path: str) -> None:
    """Wakes the SuperExec that listens on this socket; nothing happens where none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.setblocking(False)
        sender.sendto(b"task", path)


def set_pace(program: str, bell: str) -> bool:
    """Shortens the waits of one of Flower's programs, in the process that is about to run it.

    Args:
        program: the program's name.
        bell: the path of TASK_SOCKET in the folder of the node.

    Returns:
        Whether they were shortened; if not, Flower's own are in force, and the log says so unless poll=0 asks for it.
    """
    global _sentence
    poll = read_poll()
    change = {"flower-supernode": _pace_node, "flower-superexec": _pace_exec, "flwr-serverapp": _pace_server}
    if not poll or program not in change:
        return False
    try:
        if not version("flwr").startswith(FLOWER_VERSION):
            raise LookupError(f"flwr is {version('flwr')}, not {FLOWER_VERSION}x")
        done = change[program](poll, bell)
    except (ImportError, AttributeError, LookupError, TypeError, OSError) as error:
        _sentence = f"{program} keeps Flower's own intervals: {error}"
        _log.warning("%s", _sentence)
        return False
    if done:
        _sentence = f"{program} looks for something new from every {poll:g} s on"
        _log.info("%s", _sentence)
    return done


def describe_pace() -> str:
    """What set_pace has done in this process, in a sentence; nothing where it changed nothing.

    The server's app says it once more: Flower throws away what it writes before it has begun.
    """
    return _sentence


def _pace_node(poll: float, bell: str) -> bool:
    module = _find_module(NODE_MODULE, "_push_messages", ("time.sleep(3)", "time.sleep(0.5)"))
    pace, push = NodePace(poll), module._push_messages

    def push_messages(**options: object) -> object:
        announce_task(bell)
        pace.begin_wait()
        return push(**options)

    module.__dict__.update(time=pace, _push_messages=push_messages)
    return True


def _pace_exec(poll: float, bell: str) -> bool:
    if NODE_FOLDER not in os.environ:
        return False  # the server's, which starts one task per run
    module = _find_module(EXEC_MODULE, "run_superexec", ("time.sleep(task_poll_interval)",))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    Path(bell).unlink(missing_ok=True)
    listener.bind(bell)
    module.__dict__.update(time=ExecPace(listener))
    return True


def _pace_server(poll: float, bell: str) -> bool:
    module = import_module(GRID_MODULE)
    pull = module.pull_objects
    if not {"initial_backoff", "backoff_cap", "max_tries_per_object"} <= set(inspect.signature(pull).parameters):
        raise LookupError(f"{GRID_MODULE}.pull_objects takes other options")
    patient = partial(pull, initial_backoff=poll, backoff_cap=1.0, max_tries_per_object=None)
    module.__dict__.update(pull_objects=patient)
    return True


def _find_module(name: str, function: str, calls: tuple[str, ...]) -> ModuleType:
    """Flower's module, where it waits as expected; LookupError where it does not."""
    module = import_module(name)
    source = inspect.getsource(module)
    if module.time is not time or not callable(getattr(module, function)) or not all(c in source for c in calls):
        raise LookupError(f"{name} waits in another way")
    return module
