"""Processes of a deployment: which run, which have a mark, and which are killed when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("psutil")
from fedveca.deploy.processes import find_marked, is_alive, kill_marked

MARK = "FEDVECA_TEST_MARK"


def start(mark: str, code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {MARK: mark}, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.read(1)  # it prints one character when it is ready
    return process


def test_a_process_that_has_ended_is_not_alive_even_before_its_parent_noticed() -> None:
    process = start("zombie", "print('x', end='', flush=True)")
    until = time.monotonic() + 30
    while is_alive(process.pid) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, 0)  # the system still knows it
    assert not is_alive(process.pid)
    process.communicate()
    assert not is_alive(process.pid)
    assert is_alive(os.getpid())
    assert is_alive(1)


@pytest.mark.slow
def test_only_what_has_the_mark_is_killed_and_not_before_its_time() -> None:
    sleep = "import time; print('x', end='', flush=True); time.sleep({})"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + sleep.format(300)
    first, quick, other = start("mine", deaf), start("mine", sleep.format(0.5)), start("mine-too", sleep.format(300))
    try:
        assert {process.pid for process in find_marked(MARK, "mine")} == {first.pid, quick.pid}
        began = time.monotonic()
        kill_marked(MARK, "mine", 2.0)
        assert 2.0 <= time.monotonic() - began < 5.0
        assert (first.wait(30), quick.wait(30)) == (-signal.SIGKILL, 0)  # one had the time to end by itself
        assert find_marked(MARK, "mine") == []
        assert is_alive(other.pid)
    finally:
        for process in (first, quick, other):
            process.kill()
            process.communicate()
