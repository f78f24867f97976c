"""Which blocks make the kernels of the paper's CNN quickest on this CUDA device, compared with PyTorch's convolution.

    python -m benchmarks.scale.kernels --out kernels.json [--seconds 60]

The passes of a convolution are timed for the CNN's four shapes, in a batch of 100 and in one of 4,000, in captured
graphs: each of our variants, PyTorch's, and the one that `fedveca.tasks.kernels` takes. What is not compiled after
--seconds is not tried.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from triton.runtime.errors import OutOfResources

from fedveca.tasks import kernels
from fedveca.tasks.kernels import Blocks, KernelPass, Way, find_blocks

SIZES = ((3, 32), (32, 16), (1, 28), (32, 14))  # channels and height of the inputs
BATCHES = (100, 4000)
PASSES: tuple[KernelPass, ...] = ("forward", "weight")
SPLITS = (1, 16, 33, 66, 132, 264)
WAY = Way(torch.float32, "tf32")


def list_variants(which: KernelPass, inputs: int) -> Iterator[Blocks]:
    """All variants that are compiled anew; the splits of the weight's gradient are not."""
    narrow = inputs < 16
    if which == "forward":
        for pixels, depth, warps in itertools.product((16, 32, 64), (16, 32, 64, 128), (2, 4, 8)):
            for stages in (1, 2) if narrow else (2, 3, 4):
                if not (narrow and depth > 32 * inputs) and pixels * depth <= 4096:
                    yield Blocks(pixels, depth, warps, stages)
    else:
        for pixels, depth, warps in itertools.product((32, 64, 128), (32, 64, 128), (4, 8)):
            for stages, tall in itertools.product((1, 2) if narrow else (2, 3), (False, True)):
                if not (narrow and depth > 32 * inputs + 32):
                    yield Blocks(pixels, depth, warps, stages, 33, tall)


class Layer:
    """One convolution with its inputs, and what is computed from them."""

    def __init__(self, inputs: int, height: int, batch: int) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        order = torch.contiguous_format if inputs < 16 else torch.channels_last  # as in the CNN
        x = torch.randn((batch, inputs, height, height), generator=generator, device="cuda")
        self.x = x.contiguous(memory_format=order)
        self.weight = 0.1 * torch.randn((32, inputs, 5, 5), generator=generator, device="cuda")
        self.bias = 0.1 * torch.randn(32, generator=generator, device="cuda")
        z = conv2d(self.x, self.weight, padding=2)
        self.operations = 2 * z.numel() * 25 * inputs  # of one pass
        y, self.which = kernels.run_pool(z, self.bias)
        self.g = torch.randn(y.shape, generator=generator, device="cuda").contiguous(memory_format=torch.channels_last)
        self.dz = kernels.run_unpool(self.g, self.which)

    def run(self, which: KernelPass, blocks: Blocks | None) -> Tensor:
        """A pass with our blocks, or PyTorch's with what surrounds it."""
        if which == "forward" and blocks:
            return kernels.run_forward(self.x, self.weight, self.bias, WAY, blocks)[0]
        if which == "forward":
            return kernels.run_pool(conv2d(self.x, self.weight, padding=2), self.bias)[0]
        if blocks:
            return kernels.run_weight_gradient(self.g, self.which, self.x, self.weight, WAY, blocks)[0]
        dw = kernels.run_convolution_gradients(self.dz, self.x, self.weight, WAY, False, True)[1]
        assert dw is not None
        return dw


def time_captured(work: Callable[[], object], batch: int) -> float:
    """Microseconds, the median of five replays of a captured graph."""
    repeats = 20 if batch <= 100 else 2
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeats):
                work()
        seconds = []
        for _ in range(6):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            seconds.append(1e3 * begin.elapsed_time(end) / repeats)
    return float(statistics.median(seconds[1:]))


def compile_some(
    jobs: list[tuple[int, int, KernelPass, Blocks]], until: float
) -> list[tuple[int, int, KernelPass, Blocks]]:
    """In a process of its own: runs variants once, so that their machine code is in Triton's cache."""
    done, layers = [], {size: Layer(*size, 4) for size in SIZES}
    for job in jobs:
        if time.time() > until:
            break
        inputs, height, which, blocks = job
        try:
            layers[inputs, height].run(which, blocks)
            torch.cuda.synchronize()
        except OutOfResources:
            continue
        done.append(job)
    return done


def compile_variants(seconds: float, processes: int) -> list[tuple[int, int, KernelPass, Blocks]]:
    jobs = [
        (inputs, height, which, blocks)
        for inputs, height in SIZES
        for which in PASSES
        for blocks in list_variants(which, inputs)
    ]
    random.Random(0).shuffle(jobs)
    until = time.time() + seconds
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        parts = pool.starmap(compile_some, [(jobs[i::processes], until) for i in range(processes)])
    found = [job for part in parts for job in part]
    print(f"{len(found)} of {len(jobs)} variants", flush=True)
    return found


def check(layer: Layer, which: KernelPass, blocks: Blocks) -> float:
    """The relative distance from PyTorch's result in float32."""
    torch.backends.cudnn.allow_tf32 = False
    want = layer.run(which, None)
    torch.backends.cudnn.allow_tf32 = True
    return float((layer.run(which, blocks) - want).norm() / want.norm())


def measure(layer: Layer, which: KernelPass, variants: list[Blocks]) -> dict[str, object]:
    """Microseconds of PyTorch's pass, of our quickest variant, and of the one that is taken."""

    def find_time(blocks: Blocks | None) -> float:
        return time_captured(lambda: layer.run(which, blocks), len(layer.x))

    tried = [v._replace(splits=splits) for v in variants for splits in (SPLITS if which == "weight" else (1,))]
    theirs, taken = find_time(None), find_blocks(which, layer.x)
    best, blocks = min((find_time(one), one) for one in tried)
    now = find_time(taken)
    return {
        "pass": which,
        "shape": list(layer.x.shape),
        "pytorch": theirs,
        "ours": best,
        "blocks": blocks,
        "teraflops": layer.operations / best / 1e6,
        "error": check(layer, which, blocks),
        "taken": now,
        "taken_blocks": taken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=12)
    args = parser.parse_args()
    compiled = compile_variants(args.seconds, args.processes)
    found: list[dict[str, object]] = []
    for batch, size, which in itertools.product(BATCHES, SIZES, PASSES):
        variants = [blocks for *at, name, blocks in compiled if (tuple(at), name) == (size, which)]
        found.append(measure(Layer(*size, batch), which, variants))
        print(found[-1], flush=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
