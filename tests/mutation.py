"""Changes one formula or one wire at a time and sees that a test fails which names the quantity.

    python tests/mutation.py              # all
    python tests/mutation.py beta tau_all # those whose name holds a word

Each change is made in a copy of `src`; the working tree is not touched. It takes minutes and is not part of CI; the
last result of each change is in tests/mutation.json, which is committed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "tests" / "mutation.json"
SECONDS = 400  # of one test file
PROCESSES = os.cpu_count() or 2


class Mutation(NamedTuple):
    """One change: `old` occurs once in `file` and becomes `new`; a test of `tests` must fail."""

    quantity: str
    file: str  # below the root
    old: str
    new: str
    tests: str  # what pytest is given


class Outcome(NamedTuple):
    quantity: str
    change: str
    caught_by: str  # the test that failed; empty where none did
    seconds: float


def load_mutations() -> list[Mutation]:
    """The list in tests/mutations.toml."""
    import tomllib

    table = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text("utf-8"))
    return [Mutation(**entry) for entry in table["mutation"]]


def check_texts(mutations: list[Mutation]) -> list[str]:
    """What is wrong with the list itself: a text that is not there exactly once changes nothing, or too much."""
    wrong = []
    for m in mutations:
        count = (ROOT / m.file).read_text("utf-8").count(m.old) if (ROOT / m.file).exists() else 0
        if count != 1 or m.old == m.new:
            wrong.append(f"{m.quantity}: {m.old!r} occurs {count} times in {m.file}")
    return wrong


def find_failure(tests: str, m: Mutation | None = None) -> str:
    """The first test that fails against a copy of the sources, with one change or none; empty where all pass."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "studies"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        if m:
            changed = copy / m.file
            changed.write_text(changed.read_text("utf-8").replace(m.old, m.new, 1), "utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()]
        command += ["-o", f"pythonpath={copy / 'src'} {copy} tests/helpers"]  # before the working tree's own
        paths = os.pathsep.join(map(str, (copy / "src", copy)))
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            lines = done.stdout.splitlines()
            if m is None and done.returncode:
                lines.append(f"FAILED {tests}")  # also where nothing could be collected
        except subprocess.TimeoutExpired:
            lines = []
    failed = [line.removeprefix("FAILED ").split(" - ")[0] for line in lines if line.startswith("FAILED ")]
    return failed[0] if failed else ""


def try_mutation(m: Mutation) -> Outcome:
    """One change and the test that notices it."""
    start = time.monotonic()
    caught = find_failure(m.tests, m)
    return Outcome(m.quantity, f"{m.file}: {m.old} -> {m.new}", caught, round(time.monotonic() - start, 1))


def main(words: list[str]) -> int:
    """Exit code 0 where every change was caught."""
    mutations = [m for m in load_mutations() if not words or any(word in m.quantity for word in words)]
    if wrong := check_texts(mutations):
        print("\n".join(wrong), file=sys.stderr)
        return 2
    with ThreadPoolExecutor(PROCESSES) as pool:
        different = sorted({m.tests for m in mutations})
        for tests, failure in zip(different, pool.map(find_failure, different), strict=True):
            if failure:
                print(f"{failure} fails without any change, so {tests} shows nothing", file=sys.stderr)
                return 2
        outcomes = []
        for outcome in pool.map(try_mutation, mutations):
            outcomes.append(outcome)
            print(f"{outcome.seconds:6.1f} s  {outcome.quantity}: {outcome.caught_by or 'SURVIVED'}", flush=True)
    survived = [outcome for outcome in outcomes if not outcome.caught_by]
    print(f"{len(outcomes) - len(survived)} of {len(outcomes)} changes were caught")
    write_result(outcomes)
    return 1 if survived else 0


def write_result(outcomes: list[Outcome]) -> None:
    """Puts the outcomes in the place of earlier ones of the same changes; changes that are not listed any more go."""
    earlier = json.loads(RESULT.read_text("utf-8"))["outcomes"] if RESULT.exists() else []
    found = {entry["quantity"]: entry for entry in earlier}
    found |= {o.quantity: {"quantity": o.quantity, "change": o.change, "caught_by": o.caught_by} for o in outcomes}
    listed = [found[m.quantity] for m in load_mutations() if m.quantity in found]
    caught = sum(bool(entry["caught_by"]) for entry in listed)
    result = {"listed": len(load_mutations()), "tried": len(listed), "caught": caught, "outcomes": listed}
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
