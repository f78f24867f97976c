"""Runs that go on side by side in one process, in turns: each is as it is alone, with its own folder and checkpoints.

A run goes on until it needs what others may need too, and waits. When all wait, that is done once for all of them
(`fedveca.cohorts.local.meeting`), and they go on. Only one run is awake at any time, so that nothing else differs from
runs one after another.

On a CUDA device each run has a stream of its own and waits where it would wait for the device: meanwhile the others
give the device their work. On any device they continue while a run waits for the disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from fedveca.cohorts.local.joint import Failure
from fedveca.cohorts.local.meeting import Meeting, MeetingRequest, Pause, answer_requests
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.runs.experiment import Experiment, count_probe_rows
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import Stopped, StopRequest

MOST_MEMBERS = 16  # runs of a population: each holds its clients' memory and a few models
_LINEAR = ("svm", "logistic")  # models for which preparing a row takes as long as evaluating it
_LAYERED = ("mlp", "logistic")  # models of small layers: what surrounds a local step takes as long as its arithmetic
_SMALL = ("svm", "logistic", "mlp", "cnn", "lenet")  # models of which a few clients do not fill a CUDA device
_MANY_ROWS = 2048  # of a client's probe
_CONNECTIONS = "32"  # queues between host and CUDA device: with 8, streams of different runs wait for each other
MemberRun = Callable[[StopRequest], Run]


def is_shared(e: Experiment, device: str) -> bool:
    """Whether runs like this one are quicker side by side.

    On the CPU they are where the time goes into the clients' probe rows, and where it goes into what surrounds a local
    step of small layers; on a CUDA device, where one run does not keep the device busy. On Ray and in the debug engine,
    runs are one after another. So are tracked ones: some trackers have one run at a time.
    """
    probed = count_probe_rows(e)
    rows = device == "cpu" and e.model in _LINEAR and (probed == 0 or probed >= _MANY_ROWS)
    return shares_steps(e, device) or (rows and _is_free(e))


def shares_steps(e: Experiment, device: str) -> bool:
    """Whether runs of any seed are quicker side by side: they take their local steps together, or share a device."""
    if device == "cuda":
        return e.model in _SMALL and _is_free(e)
    return e.model in _LAYERED and e.precision == "float32" and not e.augment and _is_free(e)


def _is_free(e: Experiment) -> bool:
    return e.engine == "local" and not e.track


class _Abandoned(BaseException):
    """The population is over; the run ends where it waits."""


class _Member:
    """One run in a thread of its own, which is awake only during its turn."""

    def __init__(
        self, run: MemberRun, stop: StopRequest, threads: int, members: int, device: str, disk: ThreadPoolExecutor
    ) -> None:
        self.run, self.stop, self.threads, self.device = run, stop, threads, device
        self.meeting = Meeting(self._ask, members, device == "cpu", disk)
        self.request: MeetingRequest | None = None
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

    def _ask(self, request: MeetingRequest) -> object:
        precision = torch.get_float32_matmul_precision()  # it is the process's: each run has its own during its turn
        torch.set_float32_matmul_precision(self.precision)
        try:
            return self._wait(request)
        finally:
            torch.set_float32_matmul_precision(precision)

    def _wait(self, request: MeetingRequest) -> object:
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
                if self.device == "cuda":
                    torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
                self.precision = torch.get_float32_matmul_precision()
                self.meeting.enter()
                self.result = self.run(self.stop)
        except BaseException as error:  # it is raised again in the caller's thread
            self.error = error
        finally:
            self.done = True
            self._back.release()


def run_population(runs: Sequence[MemberRun], stop: StopRequest, device: str = "cpu") -> list[Run]:
    """Runs them side by side, and returns them in their order.

    Where one fails, those before it are completed, those behind it that have begun are stopped and saved after their
    round, and the error is raised: the same call resumes them.

    Args:
        runs: Each is called with who says when to stop, and returns a finished run.
        stop: Who says when all of them stop.
        device: Where all of them compute: "cpu" or "cuda".

    Returns:
        The finished runs.

    Raises:
        Stopped: Where `stop` said so.
    """
    members: list[_Member] = []

    def has_failed(before: int) -> bool:
        return any(other.error is not None for other in members[:before])

    if device == "cuda" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", _CONNECTIONS)
    threads, disk = torch.get_num_threads(), ThreadPoolExecutor(max(1, len(runs)))
    for i, run in enumerate(runs):
        may_stop: StopRequest = lambda i=i: stop() or has_failed(i)  # type: ignore[misc]  # noqa: E731
        members.append(_Member(run, may_stop, threads, len(runs), device, disk))
    pool, ready = ThreadPool(), list(members)
    try:
        while ready:
            for member in ready:
                if member.begun or not has_failed(members.index(member)):
                    member.take_turn()
                else:
                    member.done = True  # as in runs one after another, it is never begun
            asking = [(member, member.request) for member in members if member.request is not None]
            paused = [one for one in asking if isinstance(one[1], Pause)]
            asking = paused or asking  # what can be joined waits until all runs ask for it
            answers = answer_requests([request for _, request in asking], pool)
            for (member, _), found in zip(asking, answers, strict=True):
                member.answer = found
            ready = [member for member, _ in asking]
    except BaseException:
        for member in members:
            member.abandon()
        raise
    finally:
        disk.shutdown()
    errors = [member.error for member in members if member.error is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
    return [member.result for member in members if member.result is not None]
