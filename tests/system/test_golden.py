"""The code gives the rounds, summaries and models that version 0.1.0 gave: see golden/README.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from golden.cases import (
    FINISHED_FOLDER,
    FOLDERS,
    HERE,
    NAMES,
    RESUMED,
    SLOW,
    STOPPED_FOLDERS,
    Result,
    find_differences,
    matches,
    read_experiment,
    read_golden,
    resume_case,
    run_case,
    run_half,
)

import fedveca

EXACT = matches(HERE / "fingerprint.json")
OTHER_MACHINE = "this machine is not the one of fingerprint.json: floats are compared to a millionth, models not at all"
MOST_BYTES = 1_500_000
slow = pytest.mark.slow


@pytest.fixture
def _data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST for the cases that need it."""
    if "mnist" in request.node.callspec.params["name"]:
        monkeypatch.setenv("FEDVECA_DATA", request.getfixturevalue("mnist_dir"))


def check(name: str, result: Result, exact: bool = EXACT, golden: Result | None = None) -> None:
    """Fails with the name of the case and of the first quantities that differ."""
    found = find_differences(golden or read_golden(name), result, exact)
    assert not found, f"golden run {name}: {len(found)} quantities differ\n" + "\n".join(found[:8])


@pytest.mark.slow
@pytest.mark.usefixtures("_data")
@pytest.mark.parametrize("name", [pytest.param(name, marks=slow) if name in SLOW else name for name in NAMES])
def test_run(name: str, tmp_path: Path) -> None:
    if name in SLOW:
        pytest.importorskip({"flower": "flwr", "ray": "ray"}[name])
    check(name, run_case(name, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_stopped_and_resumed(name: str, tmp_path: Path) -> None:
    done = run_half(name, tmp_path / "run")
    before = fedveca.Run.open(tmp_path / "run")
    assert (len(before.rounds), before.summary) == (done, {})
    check(name, resume_case(name, tmp_path / "run"))


@pytest.mark.parametrize("name", STOPPED_FOLDERS)
def test_a_stopped_folder_of_version_0_1_0(name: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDERS / name, tmp_path / "run")
    before = fedveca.Run.open(tmp_path / "run")
    assert before.experiment == read_experiment(name)
    assert (len(before.rounds), before.summary) == (3, {})
    exact, golden = EXACT and matches(FOLDERS / "fingerprint.json"), read_golden(name)
    golden = golden._replace(rounds=_take_acceptance(golden.rounds, before))
    check(name, resume_case(name, tmp_path / "run"), exact, golden)


def _take_acceptance(rounds: str, before: fedveca.Run) -> str:
    """The golden lines as they go on from a folder: version 0.1.0 compared losses of different clients (`accepted`)."""
    lines = [json.loads(line) for line in rounds.splitlines()]
    for line, record in zip(lines, before.rounds, strict=False):
        line["accepted"] = record["accepted"]
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_finished_folder_of_version_0_1_0(tmp_path: Path) -> None:
    """It opens with all that it says, and goes on to more rounds."""
    name, wanted = FINISHED_FOLDER, read_experiment(FINISHED_FOLDER).rounds
    shutil.copytree(FOLDERS / name, tmp_path / "run")
    before = fedveca.Run.open(tmp_path / "run")
    assert (len(before.rounds), before.summary["rounds"], before.summary["last"]["round"]) == (3, 3, 3)
    result = resume_case(name, tmp_path / "run", wanted)
    check(name, result, EXACT and matches(FOLDERS / "fingerprint.json"))


def test_what_differs_is_named() -> None:
    """A changed number, a missing name and another order are each found; a millionth only where bytes are compared."""
    golden = read_golden("fedveca-digits-mlp")
    lines = golden.rounds.splitlines(keepends=True)
    first = lines[0]
    assert find_differences(golden, golden, exact=True) == []
    steps = golden._replace(rounds="".join([first.replace('"tau": [4,', '"tau": [5,'), *lines[1:]]))
    for exact in (True, False):
        assert find_differences(golden, steps, exact) == ["line 1.tau[0]: 5, not 4"]
    fewer = golden._replace(rounds="".join(lines[:-1]))
    assert find_differences(golden, fewer, exact=False) == ["5 rounds, not 6"]
    other = golden._replace(closing=golden.closing.replace('"kept"', '"best"'))
    assert find_differences(golden, other, False) == [
        "closing.runs[0].summary: the names ['best', 'kept'] are only on one side"
    ]
    for change, seen in ((1e-8, False), (1e-4, True)):
        moved = golden._replace(rounds=_scale_loss(golden.rounds, 1 + change))
        assert bool(find_differences(golden, moved, exact=False)) == seen
        assert find_differences(golden, moved, exact=True)[0].startswith("line 1.train_loss: ")
    turned = golden._replace(
        rounds=golden.rounds.replace('"round": 0, "ids": [0, 1, 2, 3, 4]', '"ids": [0, 1, 2, 3, 4], "round": 0')
    )
    assert find_differences(golden, turned, exact=True) == ["the order or the form of what is written"]


def _scale_loss(rounds: str, factor: float) -> str:
    before, name, after = rounds.partition('"train_loss": ')
    number, comma, rest = after.partition(",")
    return f"{before}{name}{float(number) * factor!r}{comma}{rest}"


def test_the_golden_files_are_whole_and_small() -> None:
    assert {path.stem for path in HERE.glob("*.jsonl")} == set(NAMES)
    assert {path.stem for path in HERE.glob("*.json")} == {*NAMES, "fingerprint"}
    files = [path for path in HERE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


def test_bytes_are_compared_here() -> None:
    """Skipped, not passed, where the comparison above was the weaker one."""
    if not EXACT:
        pytest.skip(OTHER_MACHINE)
