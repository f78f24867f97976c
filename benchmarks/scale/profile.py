"""Where the time of a population goes on a CUDA device: kernels, how long the device is busy, and what the host does.

    python -m benchmarks.scale.profile cnn-mnist-case3 --out profile.json [--methods fedavg,fedveca] [--seeds 3]

The runs go on side by side in one process. After a few rounds a window of rounds is traced with PyTorch's profiler,
and a second one of the same length, without it, says how long the rounds take and where the host is meanwhile: a
thread looks every 5 ms at which line each run is.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import fedveca
from fedveca import Experiment, run
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import StopRequest
from fedveca.runs.observers import Observer
from fedveca.runs.population import run_population
from fedveca.runs.schema import Round
from fedveca.tasks.datasets.dataset import load

WARM_UP = 3  # rounds of each run
KINDS = {  # of kernels, by what their names contain; the first that fits
    "convolution, forward": ("convolve_and_pool", "fprop", "implicit_convolve", "conv2d_forward"),
    "convolution, gradient of the input": ("dgrad",),
    "convolution, gradient of the weight": ("find_weight_gradient", "add_parts", "wgrad"),
    "pooling": ("pool",),
    "matrix product": ("gemm", "cutlass", "splitk", "gemv", "cublas"),
    "copies and fills": ("memcpy", "memset", "copy", "fill", "index", "gather", "cat"),
}
SOURCE = str(Path(fedveca.__file__).parent)


def name_kind(kernel: str) -> str:
    """The kind of a kernel.

    Examples:
        >>> name_kind("sm90_xmma_wgrad_implicit_gemm_tf32")
        'convolution, gradient of the weight'
        >>> name_kind("vectorized_elementwise_kernel")
        'other'
    """
    low = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(word in low for word in words)), "other")


def join_times(times: list[tuple[int, int]]) -> int:
    """How long at least one of the intervals (start, end) is under way.

    Examples:
        >>> join_times([(0, 4), (2, 6), (8, 9)])
        7
    """
    total, until = 0, 0
    for start, end in sorted(times):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


class HostSamples:
    """Every 5 ms, in which function of the package each thread that is awake is."""

    def __init__(self) -> None:
        self.found, self.looks, self._over = Counter[str](), 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        me = threading.get_ident()
        while not self._over.wait(0.005):
            self.looks += 1
            for thread, frame in sys._current_frames().items():
                names = [] if thread == me else list_functions(frame)
                if names and names[0] not in ("population._wait", "population.wait"):
                    self.found[names[0]] += 1


def list_functions(frame: Any) -> list[str]:
    """The package's functions on a thread's stack, the innermost first."""
    names = []
    while frame:
        if frame.f_code.co_filename.startswith(SOURCE):
            names.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    return names


class Window(Observer):
    """Seen by every run; the first one opens and closes the two windows between its rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.seen, self.found = rounds, 0, dict[str, Any]()
        self._prof = profile(activities=[ProfilerActivity.CUDA])

    def count(self) -> None:
        self.seen += 1

    def lead(self, done: int) -> None:
        """After `done` rounds of the first run."""
        if done == WARM_UP:
            torch.cuda.synchronize()
            self._prof.start()
            self._begin()
        elif done == WARM_UP + self.rounds:
            seconds, rounds = self._close()
            self._prof.stop()
            self.found["traced"] = {"seconds": seconds, "rounds": rounds}
            self._samples = HostSamples()
            self._begin()
        elif done == WARM_UP + 2 * self.rounds:
            seconds, rounds = self._close()
            self._samples.end()
            host = {name: count / self._samples.looks for name, count in self._samples.found.most_common(25)}
            self.found["plain"] = {"seconds": seconds, "rounds": rounds, "host": host}

    def _begin(self) -> None:
        self._from, self._start = self.seen, time.perf_counter()

    def _close(self) -> tuple[float, int]:
        torch.cuda.synchronize()
        return time.perf_counter() - self._start, self.seen - self._from

    def describe(self) -> dict[str, Any]:
        """Seconds per round of one run: by the clock, of the busy device, and by kind of kernel."""
        events = self._prof.profiler.kineto_results.events()  # type: ignore[union-attr]
        kernels = [e for e in events if e.device_type().name == "CUDA" and e.duration_ns() > 0]
        times = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in kernels]
        n, kinds, names = self.found["traced"]["rounds"], Counter[str](), Counter[str]()
        for e in kernels:
            kinds[name_kind(e.name())] += e.duration_ns()
            names[e.name()[:120]] += e.duration_ns()
        ms = 1e6 * n
        return self.found | {
            "ms_per_round": 1e3 * self.found["plain"]["seconds"] / self.found["plain"]["rounds"],
            "traced_ms_per_round": 1e3 * self.found["traced"]["seconds"] / n,
            "busy_ms_per_round": join_times(times) / ms,
            "kernels_per_round": len(kernels) / n,
            "kinds_ms_per_round": {kind: t / ms for kind, t in kinds.most_common()},
            "names_ms_per_round": {name: t / ms for name, t in names.most_common(25)},
        }


class Member(Observer):
    """Of one run."""

    def __init__(self, window: Window, first: bool) -> None:
        self.window, self.first = window, first

    def round(self, record: Round) -> None:
        self.window.count()
        if self.first:
            self.window.lead(record["round"] + 1)


def measure(preset: str, methods: list[str], seeds: int, rounds: int, out: Path) -> dict[str, Any]:
    """The profile of a population of these runs."""
    window = Window(rounds)
    experiments = [
        Experiment.preset(preset, method=method, seed=seed, rounds=WARM_UP + 3 * rounds)
        for seed in range(seeds)
        for method in methods
    ]
    data = load(experiments[0].data, experiments[0].data_dir)

    def start(n: int, e: Experiment, stop: StopRequest) -> Run:
        return run(e, out / str(n), device="cuda", observers=(Member(window, n == 0),), stop=stop, data=data)

    run_population([partial(start, n, e) for n, e in enumerate(experiments)], lambda: False, "cuda")
    return {"preset": preset, "methods": methods, "seeds": seeds} | window.describe()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--methods", default="fedveca,fedavg,fedprox,fednova,scaffold,centralised")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4, help="of each window")
    parser.add_argument("--folder", type=Path, required=True, help="for the runs")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = measure(args.preset, args.methods.split(","), args.seeds, args.rounds, args.folder)
    known = json.loads(args.out.read_text("utf-8")) if args.out.exists() else []
    args.out.write_text(json.dumps([*known, found], indent=1) + "\n", "utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
