"""Runs that go on side by side in one process, in turns: each is as it is alone, with its own folder and checkpoints.

A run goes on until it needs what others may need too, and waits. When all wait, that is done once for all of them
(`fedveca.cohorts.local.meeting`), and they go on. Only one run is awake at any time, so that nothing else differs from
runs one after another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from fedveca.cohorts.local.joint import Failure, PassWalk
from fedveca.cohorts.local.meeting import Meeting, ProbeRequest, answer_requests
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.runs.experiment import Experiment, count_probe_rows
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import Stopped, StopRequest

MOST_MEMBERS = 16  # runs of a population: each holds its clients' memory and a few models
_LINEAR = ("svm", "logistic")  # models for which preparing a row takes as long as evaluating it
_LAYERED = ("mlp", "logistic")  # models of small layers: what surrounds a local step takes as long as its arithmetic
_MANY_ROWS = 2048  # of a client's probe
MemberRun = Callable[[StopRequest], Run]


def is_shared(e: Experiment, device: str) -> bool:
    """Whether runs like this one are quicker side by side.

    They are where the time goes into the clients' probe rows, and where it goes into what surrounds a local step of
    small layers. On a CUDA device, on Ray and in the debug engine, runs are one after another. So are tracked ones:
    some trackers have one run at a time.
    """
    probed = count_probe_rows(e)
    rows = e.model in _LINEAR and (probed == 0 or probed >= _MANY_ROWS)
    return shares_steps(e, device) or (rows and _is_free(e, device))


def shares_steps(e: Experiment, device: str) -> bool:
    """Whether runs of any seed are quicker side by side, since they take their local steps together."""
    return e.model in _LAYERED and e.precision == "float32" and not e.augment and _is_free(e, device)


def _is_free(e: Experiment, device: str) -> bool:
    return device == "cpu" and e.engine == "local" and not e.track


class _Abandoned(BaseException):
    """The population is over; the run ends where it waits."""


class _Member:
    """One run in a thread of its own, which is awake only during its turn."""

    def __init__(self, run: MemberRun, stop: StopRequest, threads: int) -> None:
        self.run, self.stop, self.threads = run, stop, threads
        self.request: ProbeRequest | PassWalk[object] | None = None
        self.answer: object = None
        self.result: Run | None = None
        self.error: BaseException | None = None
        self.begun = self.awake = self.done = self.abandoned = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._live, daemon=True)

    def take_turn(self) -> None:
        """Lets the run go on until it waits or is over."""
        if not self.begun:
            self.begun = True
            self._thread.start()
        self.awake = True
        self._go.release()
        self.wait()

    def wait(self) -> None:
        """Until its turn is over."""
        self._back.acquire()
        self.awake = False
        if self.done:
            self._thread.join()

    def abandon(self) -> None:
        """Ends the run where it waits, with its files closed and its folder free."""
        self.abandoned = True
        if self.awake:
            self.wait()
        while self.begun and not self.done:
            self.take_turn()

    def _ask(self, request: ProbeRequest | PassWalk[object]) -> object:
        self.request = request
        self._back.release()
        self._go.acquire()
        self.request = None
        if self.abandoned:
            raise _Abandoned
        if isinstance(self.answer, Failure):
            raise self.answer.error
        return self.answer

    def _live(self) -> None:
        self._go.acquire()
        try:
            if not self.abandoned:
                torch.set_num_threads(self.threads)  # a thread starts with a number of its own: sums would differ
                Meeting(self._ask).enter()
                self.result = self.run(self.stop)
        except BaseException as error:  # it is raised again in the caller's thread
            self.error = error
        finally:
            self.done = True
            self._back.release()


def run_population(runs: Sequence[MemberRun], stop: StopRequest) -> list[Run]:
    """Runs them side by side, and returns them in their order.

    Where one fails, those before it are completed, those behind it that have begun are stopped and saved after their
    round, and the error is raised: the same call resumes them.

    Args:
        runs: Each is called with who says when to stop, and returns a finished run.
        stop: Who says when all of them stop.

    Returns:
        The finished runs.

    Raises:
        Stopped: Where `stop` said so.
    """
    members: list[_Member] = []

    def has_failed(before: int) -> bool:
        return any(other.error is not None for other in members[:before])

    for i, run in enumerate(runs):
        members.append(_Member(run, lambda i=i: stop() or has_failed(i), torch.get_num_threads()))  # type: ignore[misc]
    pool, live = ThreadPool(), list(members)
    try:
        while live:
            for member in live:
                if member.begun or not has_failed(members.index(member)):
                    member.take_turn()
                else:
                    member.done = True  # as in runs one after another, it is never begun
            live = [member for member in live if not member.done]
            waiting = [(member, member.request) for member in live if member.request is not None]
            answers = answer_requests([request for _, request in waiting], pool)
            for (member, _), found in zip(waiting, answers, strict=True):
                member.answer = found
    except BaseException:
        for member in members:
            member.abandon()
        raise
    errors = [member.error for member in members if member.error is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
    return [member.result for member in members if member.result is not None]
