"""What the tables of the study of rivals know of its cases and methods: groups, names, labels and test rows."""

from __future__ import annotations

from typing import Any

from fedveca.algorithms.registry import find_method
from fedveca.runs.presets import read_toml
from studies.rivals.run import CASES_FILE, RIVALS, Unit, read_cases

OURS = "fedvecam"
FAMILIES = {"svm": "linear", "logistic": "linear", "mlp": "MLP", "cnn": "CNN", "resnet18": "CNN"}
TEST_ROWS = {"heart": 254, "digits": 359, "synthetic": 402, "mnist": 10_000, "cifar10": 10_000}  # synthetic: mean


def is_fresh(case: str) -> bool:
    """Whether a case's data took no part in the choice of FedVecaM."""
    found: dict[str, Any] = read_toml(str(CASES_FILE))
    return not found["cases"][case].get("chosen_on", False)


def is_partial(case: str) -> bool:
    """Whether only a part of the clients takes part in a round."""
    return bool(read_cases()[case].get("participation", 1.0) < 1)


def find_family(case: str) -> str:
    """What kind of model a case trains."""
    return FAMILIES[read_cases()[case]["model"]]


def find_chance(case: str) -> float:
    """The accuracy of a guess in per cent. The SVM tells even digits from odd ones."""
    given = read_cases()[case]
    return 50.0 if given["model"] == "svm" or given["data"] == "heart" else 10.0


def count_test_rows(case: str) -> int:
    return TEST_ROWS[read_cases()[case]["data"]]


def name_rival(method: str) -> str:
    """As tables call it."""
    name, _, more = method.partition(" ")
    known = find_method(name)
    return f"{known.title if known else name} {more}".strip()


def keep_complete(units: list[Unit]) -> list[Unit]:
    """The units of the cases that every method has run."""
    done = {case: {unit["method"] for unit in units if unit["case"] == case} for case in read_cases()}
    return [unit for unit in units if done[unit["case"]] == set(RIVALS)]


def list_cases(units: list[Unit]) -> list[str]:
    """The cases that FedVecaM has run, in the order of the study."""
    done = {unit["case"] for unit in units if unit["method"] == OURS}
    return [case for case in read_cases() if case in done]


def group_cases(units: list[Unit]) -> dict[str, list[str]]:
    """The rows of the table by situation, those without a case left out."""
    cases = list_cases(units)
    full, part = [c for c in cases if not is_partial(c)], [c for c in cases if is_partial(c)]
    skew = {case: (read_cases()[case]["partition"], read_cases()[case].get("concentration")) for case in cases}
    strong = [case for case in full if skew[case] in (("case3", None), ("dirichlet", 0.1))]
    mild = [case for case in full if skew[case] == ("dirichlet", 0.5)]
    found = {
        **{f"all clients, {kind}": [c for c in full if find_family(c) == kind] for kind in ("linear", "MLP", "CNN")},
        **{f"a fifth, {kind}": [c for c in part if find_family(c) == kind] for kind in ("linear", "MLP", "CNN")},
        "all clients, Case 3 or Dirichlet 0.1": strong,
        "all clients, Dirichlet 0.5": mild,
        "all clients, natural or synthetic clients": [c for c in full if c not in (*strong, *mild)],
        "all clients": full,
        "a fifth": part,
        "data of the choice": [case for case in cases if not is_fresh(case)],
        "other data": [case for case in cases if is_fresh(case)],
        "all": cases,
    }
    return {group: mine for group, mine in found.items() if mine}
