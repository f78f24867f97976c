"""The golden runs: how each is run, what of it is compared, and with what."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy
import sklearn
import torch
from safetensors.torch import load_file

import fedveca
from golden.custom import make_objects

HERE = Path(__file__).parent
FOLDERS = HERE / "folders"  # run folders that version 0.1.0 wrote
NAMES = sorted(path.stem for path in HERE.glob("*.toml"))
SLOW = ("flower", "ray")  # in processes of their own
COMPARED = ("fedveca", "fedavg", "fedprox", "fednova", "scaffold", "centralised", "corrected")
RESUMED = (
    "corrected-partial", "custom-objects", "faults-median", "fedprox-digits-mlp", "fedveca-digits-mlp",
    "fedveca-rollback", "privacy-fedveca", "scaffold-partial", "scaffold-ram",
)  # fmt: skip
STOPPED_FOLDERS = ("fedveca-digits-mlp", "scaffold-partial")  # after half of their rounds
FINISHED_FOLDER = "corrected-digits"  # after half of its rounds, which were all that were wanted
TIMES = ("seconds",)
LATER = (  # recorded since version 0.1.0; the times are those of a deployment
    *("rows", "warnings", "condition_alpha", "condition_step", "condition_drift"),
    *("clock", "client_seconds", "wait_seconds", "work_seconds", "probe_seconds", "step_seconds"),
    *("order_bytes", "answer_bytes"),
)
OPERATIONS = {"FEDVECA_KERNELS": "off"}  # version 0.1.0 had none in C
QUOTIENTS = ("beta", "delta", "A", "L", "premise")  # of differences in float32: elsewhere they agree to fewer digits
VARIABLES = ("MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Result(NamedTuple):
    """What is compared: the text of NAME.jsonl and of NAME.json."""

    rounds: str
    closing: str


def read_experiment(name: str) -> fedveca.Experiment:
    """The settings of a case, in the names of version 0.1.0, through the package's reader of run folders."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / f"{name}.toml", Path(folder) / "experiment.toml")
        (Path(folder) / "rounds.jsonl").touch()
        return fedveca.Run.open(folder).experiment


def run_case(name: str, out: Path) -> Result:
    """Runs the case into the folder `out` from its first round to its last."""
    with use_recorded_operations():
        if name in SLOW:  # a file of all settings, as version 0.1.0 had them
            settings = out.parent / f"{name}.toml"
            settings.write_text(read_experiment(name).toml())
            words = ("deploy", "local") if name == "flower" else ("run", "--device", "cpu")
            run_command(*words, str(settings), "--quiet", "--out", str(out))
        elif name == "compare":
            fedveca.compare(read_experiment(name), 2, out, methods=COMPARED, device="cpu")
        else:
            fedveca.run(read_experiment(name), out, device="cpu", **make_objects(name))
    return read_result(out)


def run_half(name: str, out: Path) -> int:
    """Runs the case as a user does who stops it after half of its rounds; the rounds that are done."""
    half = read_experiment(name).rounds // 2
    asked = iter(range(1, half + 1))
    with use_recorded_operations(), contextlib.suppress(KeyboardInterrupt):
        fedveca.run(
            read_experiment(name), out, device="cpu", stop=lambda: next(asked) == half, **make_objects(name)
        )  # fmt: skip
    return half


def resume_case(name: str, out: Path, rounds: int = 0) -> Result:
    """Resumes the case in the folder `out` to its end."""
    with use_recorded_operations():
        fedveca.resume(out, rounds=rounds, device="cpu", **make_objects(name))
    return read_result(out)


def run_command(*words: str) -> None:
    """Runs the command `fedveca` of this environment."""
    command = Path(sysconfig.get_path("scripts")) / "fedveca"
    environment = os.environ | OPERATIONS | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    environment["RAY_raylet_start_wait_time_s"] = "120"  # a machine may be busy
    done = subprocess.run(
        [command, *words], check=False, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@contextlib.contextmanager
def use_recorded_operations() -> Iterator[None]:
    """PyTorch's operations in one thread, whatever the environment says, so that sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with mock.patch.dict(os.environ, OPERATIONS):
            yield
    finally:
        torch.set_num_threads(before)


def read_result(out: Path) -> Result:
    """What the folder of a run, or of a comparison, holds, without the times."""
    folders = sorted(path.parent for path in out.glob("**/summary.json"))
    rounds, runs = "", []
    for folder in folders:
        for text in (folder / "rounds.jsonl").read_text().splitlines():
            line = json.loads(text)
            assert json.dumps(line) == text, f"{folder / 'rounds.jsonl'} is written in another form"
            rounds += json.dumps({key: value for key, value in line.items() if key not in (*TIMES, *LATER)}) + "\n"
        summary = json.loads((folder / "summary.json").read_text())
        del summary["experiment"], summary["seconds"]
        for name in LATER:
            summary.pop(name, None)
        summary |= {"stopped": True} if "stopped" in summary else {}  # why is a sentence
        runs.append({"run": str(folder.relative_to(out)), "summary": summary, "model": hash_model(folder)})
    closing: dict[str, object] = {"runs": runs}
    if (out / "table.json").exists():
        table = json.loads((out / "table.json").read_text())
        closing["table"] = [{key: value for key, value in row.items() if key not in LATER} for row in table]
    return Result(rounds, json.dumps(closing, indent=1) + "\n")


def hash_model(folder: Path) -> str:
    """sha256 over name, dtype, shape and bytes of the model's tensors, by name."""
    found = hashlib.sha256()
    for name, v in sorted(load_file(folder / "model.safetensors").items()):
        found.update(repr((name, str(v.dtype), tuple(v.shape))).encode())
        found.update(v.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def read_golden(name: str) -> Result:
    return Result((HERE / f"{name}.jsonl").read_text(), (HERE / f"{name}.json").read_text())


def find_differences(golden: Result, result: Result, exact: bool) -> list[str]:
    """Each quantity that differs, with both values: to the byte, or to a millionth where `exact` is false."""
    found = []
    lines, others = golden.rounds.splitlines(), result.rounds.splitlines()
    if len(lines) != len(others):
        found.append(f"{len(others)} rounds, not {len(lines)}")
    for k, (want, got) in enumerate(zip(lines, others, strict=False)):
        found += _compare(f"line {k + 1}", json.loads(want), json.loads(got), exact)
    found += _compare("closing", json.loads(golden.closing), json.loads(result.closing), exact)
    if exact and not found and golden != result:
        found.append("the order or the form of what is written")
    return found


def _compare(where: str, want: Json, got: Json, exact: bool) -> list[str]:
    if isinstance(want, dict) and isinstance(got, dict) and want.keys() == got.keys():
        return [text for key in want if exact or key != "model"
                for text in _compare(f"{where}.{key}", want[key], got[key], exact)]  # fmt: skip
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        return [text for at, (a, b) in enumerate(zip(want, got, strict=True))
                for text in _compare(f"{where}[{at}]", a, b, exact)]  # fmt: skip
    if isinstance(want, float) and isinstance(got, float) and not exact:
        most = 1e-4 if where.split(".")[-1].partition("[")[0] in QUOTIENTS else 1e-6
        return [] if math.isclose(want, got, rel_tol=most, abs_tol=1e-6) else [f"{where}: {got}, not {want}"]
    if isinstance(want, dict) and isinstance(got, dict):
        return [f"{where}: the names {sorted(want.keys() ^ got.keys())} are only on one side"]
    return [] if type(want) is type(got) and want == got else [f"{where}: {got}, not {want}"]


def describe_machine() -> dict[str, Json]:
    """All that the last bits of a float may depend on: processor, PyTorch with its libraries, threads."""
    about: dict[str, str] = {}
    with contextlib.suppress(OSError):
        pairs = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
        about = {key.strip(): value.strip() for key, _, value in reversed(list(pairs))}  # the first processor's
    vectors = re.findall(r"\b(?:avx\w*|fma\w*|f16c|amx\w*|sse\w*|asimd\w*|sve\w*|bf16)\b", about.get("flags", ""))
    return {
        "processor": [platform.machine(), *(about.get(key, "") for key in ("model name", "cpu family", "model"))],
        "flags": sorted(vectors),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "libraries": re.findall(
            r"- (.*(?:MKL|Math Kernel|OpenMP).*)", torch.__config__.show().split("Build settings")[0]
        ),
        "numpy": numpy.__version__,
        "scikit-learn": sklearn.__version__,
        "variables": {name: os.environ.get(name, "") for name in VARIABLES},
        "threads": 1,
    }


def matches(fingerprint: Path) -> bool:
    """Whether this machine computes the same bytes as the one that wrote the fingerprint."""
    return bool(json.loads(fingerprint.read_text()) == json.loads(json.dumps(describe_machine())))
