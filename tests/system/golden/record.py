"""Records golden runs: `python tests/system/golden/record.py [NAME...]`; see README.md for when one may."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import fedveca
from golden.cases import (
    FINISHED_FOLDER,
    FOLDERS,
    HERE,
    NAMES,
    STOPPED_FOLDERS,
    describe_machine,
    matches,
    read_experiment,
    run_case,
    run_half,
    use_recorded_operations,
)


def main(names: list[str]) -> None:
    """Records the cases named, or all of them."""
    if unknown := set(names) - set(NAMES):
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such case; they are {', '.join(NAMES)}")
    fingerprint = HERE / "fingerprint.json"
    if names and fingerprint.exists() and not matches(fingerprint):
        raise SystemExit("the other cases were recorded on another machine: record all of them, without names")
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            result = run_case(name, Path(folder) / "run")
        (HERE / f"{name}.jsonl").write_text(result.rounds)
        (HERE / f"{name}.json").write_text(result.closing)
        print(f"{name}  {time.perf_counter() - began:.1f} s", flush=True)
    fingerprint.write_text(json.dumps(describe_machine(), indent=1) + "\n")
    if not FOLDERS.exists():  # they stay as the version that wrote them left them
        record_folders()


def record_folders() -> None:
    for name in STOPPED_FOLDERS:
        run_half(name, FOLDERS / name)
    e = read_experiment(FINISHED_FOLDER)
    with use_recorded_operations():
        fedveca.run(dataclasses.replace(e, rounds=e.rounds // 2), FOLDERS / FINISHED_FOLDER, device="cpu")
    for path in FOLDERS.glob("*/environment.json"):
        about = json.loads(path.read_text()) | {"platform": platform.system()}  # without the kernel of the machine
        path.write_text(json.dumps(about, indent=2))
    shutil.copy(HERE / "fingerprint.json", FOLDERS)


if __name__ == "__main__":
    main(sys.argv[1:])
