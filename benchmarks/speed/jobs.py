"""The four jobs of the speed benchmark, their data, and the one line that a run of them prints.

Linux only: the age of the process and its peak memory are read from /proc.
"""

import argparse
import gzip
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

LR = 0.01
DECAY = 0.05  # squared SVM: DECAY * |w|^2 + mean of 0.5 * max(0, 1 - y * (w . x))^2
CLASSES = 10


class Job(NamedTuple):
    """FedAvg with all clients every round and the same number of local steps for each."""

    name: str
    model: str  # "svm" or "cnn"
    clients: int
    batch: int
    steps: int
    rounds: int


JOBS = {
    job.name: job
    for job in (
        Job("svm-5", "svm", clients=5, batch=100, steps=10, rounds=50),
        Job("svm-1000", "svm", clients=1000, batch=20, steps=5, rounds=5),
        Job("cnn-5", "cnn", clients=5, batch=100, steps=5, rounds=6),
        Job("cnn-50", "cnn", clients=50, batch=20, steps=5, rounds=3),
    )
}


class Shards(NamedTuple):
    """The clients' data, sorted by label: client i holds rows i*n to (i+1)*n."""

    x: np.ndarray  # svm [60000, 784], cnn [60000, 1, 28, 28], float32 in [0, 1], or uint8 if asked
    y: np.ndarray  # svm float32: +1 for even digits, -1 for odd ones; cnn int64 in 0..9
    clients: int

    def part(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Client i's rows, as views."""
        n = len(self.y) // self.clients
        rows = slice(i * n, (i + 1) * n)
        return self.x[rows], self.y[rows]

    def probe(self) -> tuple[np.ndarray, np.ndarray]:
        """Every 60th row, for the loss before and after, outside the timing."""
        return self.x[::60], self.y[::60]


def read_idx(path: Path) -> np.ndarray:
    """One idx file of unsigned bytes, gzipped."""
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def load(job: Job, folder: Path, *, raw: bool = False) -> Shards:
    """MNIST's training set as the job wants it; `raw` for an engine that divides by 255 itself."""
    labels = read_idx(folder / "train-labels-idx1-ubyte.gz")
    order = np.argsort(labels, kind="stable")
    digits = labels[order]
    images = read_idx(folder / "train-images-idx3-ubyte.gz")[order]
    images = images if raw else images / np.float32(255)
    if job.model == "svm":
        return Shards(images.reshape(-1, 784), 1 - 2 * (digits % 2).astype(np.float32), job.clients)
    return Shards(images[:, None], digits.astype(np.int64), job.clients)


def arguments(*extra: str) -> tuple[Job, Path, argparse.Namespace]:
    """JOB, --data DIR (or the variable FEDVECA_DATA) and any further options, all strings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--data", default=os.environ.get("FEDVECA_DATA"), help="folder of the idx.gz files")
    for option in extra:
        parser.add_argument(option)
    given = parser.parse_args()
    if given.data is None:
        parser.error("say where MNIST is: --data DIR or FEDVECA_DATA")
    return JOBS[given.job], Path(given.data).resolve(), given


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (the state) on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def age(pid: int) -> float:
    """Seconds since a process began, the interpreter's start and all imports included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat(pid)[19]) / os.sysconf("SC_CLK_TCK")


def peak_mb(root: int) -> float:
    """The peak resident memory of a process and of each of its living descendants, added up."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(stat(int(entry.name))[1])
        except OSError:  # gone meanwhile
            continue
    family, grown = {root}, True
    while grown:
        new = {pid for pid, parent in parents.items() if parent in family} - family
        family |= new
        grown = bool(new)
    kilobytes = 0
    for pid in family:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return kilobytes / 1024


class Stopwatch:
    """Started before the first round and stopped after the last one.

    `root` is the run's first process, where the clock runs in another one.
    """

    def __init__(self, root: int | None = None) -> None:
        self.root = root or os.getpid()

    def start(self) -> None:
        """The set-up is over."""
        self.setup = age(self.root)
        self._began = time.perf_counter()

    def stop(self) -> None:
        """The rounds are over; other processes of this run must still be alive."""
        self.seconds = time.perf_counter() - self._began
        self.memory = peak_mb(self.root)

    def line(self, job: Job, before: float, after: float) -> str:
        """The one line: times in seconds, memory in MB, the probe's loss before and after."""
        record = {
            "job": job.name,
            "seconds": round(self.seconds, 4),
            "setup": round(self.setup, 2),
            "memory": round(self.memory),
            "loss": [round(before, 5), round(after, 5)],
        }
        return json.dumps(record)

    def report(self, job: Job, before: float, after: float) -> None:
        """Print the one line."""
        print(self.line(job, before, after), flush=True)
