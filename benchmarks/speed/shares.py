"""Where our engine spends the time of a job of the speed benchmark, in one thread.

    python -m benchmarks.speed.shares svm-5 --data FOLDER_OF_MNIST

PyTorch's profiler says how long each operation takes; it does not see the SVM's kernel in C, which is timed here. The
shares are of the time that the rounds take with it; what is left is Python and the dispatch of operations, to which the
profiler adds. On a busy machine the shares mean little.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.speed.jobs import arguments, load
from benchmarks.speed.peers.ours import Fixed, build
from fedveca.runs.federate import federate
from fedveca.tasks.native.squared_svm import SvmKernel

PASSES = 5
IN_C = "kernels in C"
KINDS = {
    "picking rows": ("index_select",),
    "bytes to floats": ("copy_",),
    "convolutions": ("convolution",),
    "products of matrices": ("bmm", "baddbmm", "addmm", "mm"),
    "pooling": ("max_pool2d", "fill_"),
    IN_C: ("PooledConvolution",),
}
OTHER = "other operations"
REST = "Python and dispatch"
SHORT = 2.0  # microseconds: an operation's time below it is its dispatch


def find_kind(name: str) -> str:
    """The row of the table that an operation belongs to."""
    short = name.removeprefix("aten::")
    for kind, parts in KINDS.items():
        if short in parts or any(len(part) > 5 and part in short for part in parts):
            return kind
    return OTHER


def time_kernel() -> list[float]:
    """From now on, the seconds of each call of the SVM's kernel for a local step."""
    seconds = list[float]()
    find_slopes = SvmKernel.find_slopes

    def timed(kernel: SvmKernel, w: Tensor, index: Tensor) -> Tensor:
        start = time.perf_counter()
        g = find_slopes(kernel, w, index)
        seconds.append(time.perf_counter() - start)
        return g

    SvmKernel.find_slopes = timed  # type: ignore[method-assign, assignment]
    return seconds


def main() -> None:
    """Prints the table."""
    job, folder, _ = arguments()
    torch.set_num_threads(1)
    algorithm, cohort = build(job, load(job, folder, raw=True))
    steps = torch.full((job.clients,), job.steps)

    def run() -> float:
        start = time.process_time()
        for _ in federate(algorithm, Fixed(cohort, steps), algorithm.init(cohort.problem.init(), steps), job.rounds):
            pass
        return time.process_time() - start

    run()
    seconds = min(run() for _ in range(PASSES))
    in_c = time_kernel()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        start = time.perf_counter()
        run()
        profiled = time.perf_counter() - start
    shares = dict.fromkeys([*KINDS, OTHER], 0.0) | {IN_C: sum(in_c) / profiled}
    for event in seen.key_averages():
        work = max(0.0, event.self_cpu_time_total - SHORT * event.count) / 1e6
        shares[find_kind(event.key)] += work / profiled
    print(f"{job.name}: {seconds:.3f} s of one thread")
    for kind, share in {**shares, REST: max(0.0, 1 - sum(shares.values()))}.items():
        print(f"{100 * share:5.0f} %  {kind}")


if __name__ == "__main__":
    main()
