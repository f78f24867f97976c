"""What Section V says in words about Table I, its curves and its premise, each sentence tested on the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedveca.runs.folder import Run
from fedveca.runs.statistics import is_clear, mean_and_spread
from studies.paper.measures import (
    MODELS,
    Runs,
    Which,
    better,
    by_round,
    final_values,
    format_median,
    kept_so_far,
    lead,
    mean_of_last,
    median,
    reaches_reported,
    roughness,
    rounds_until,
    runs_of,
    title_of,
    variation,
)
from studies.paper.reported import REPORTED, TITLES, task_of

RIVALS = ("fedavg", "fedprox", "fednova")
METRICS = ("test_loss", "test_accuracy")
Holds = bool | Literal["partly"]


class Claim(NamedTuple):
    """A sentence of the paper, whether it holds, and the numbers that decide it."""

    claim: str
    holds: Holds
    evidence: str


def verdict(checks: Sequence[bool]) -> Holds:
    """Yes if all are, no if none is."""
    return True if all(checks) else "partly" if any(checks) else False


# Table I


def _lead(runs: Runs, study: str, rivals: Sequence[str], which: Which) -> str:
    """The smallest lead in accuracy over some rivals, in words."""
    each = {rival: lead(runs, study, rival, which, "test_accuracy") for rival in rivals}
    rival, smallest = min(each.items(), key=lambda item: item[1].mean)
    ends = " to ".join(f"{100 * end:+.2f}" for end in smallest.interval or ())
    against = f" against {title_of(rival)}" if len(rivals) > 1 else ""
    return f"{TITLES[task_of(study)]} {100 * smallest.mean:+.2f}{f' ({ends})' if ends else ''}{against}"


def _is_ahead(runs: Runs, study: str, rival: str, which: Which, name: str) -> bool:
    return is_clear(lead(runs, study, rival, which, name), better(name))


def paper_value(runs: Runs) -> Claim:
    checks, words = [], []
    for study in runs:
        kept, reported = (
            final_values(runs_of(runs, study), "kept", "test_accuracy"),
            REPORTED[task_of(study)]["fedveca"],
        )
        checks.append(reaches_reported(kept, reported["test_accuracy"]))
        last = mean_of_last(runs_of(runs, study), "test_accuracy")
        words.append(
            f"{TITLES[task_of(study)]} {100 * np.mean(kept):.2f} ±{100 * mean_and_spread(kept).std:.2f} % against "
            f"{100 * reported['test_accuracy']:.2f} % (last model {100 * last:.2f} %)"
        )
    return Claim(
        "FedVeca's kept model has the accuracy of Table I, less one standard deviation at most.",
        verdict(checks),
        "; ".join(words) + ".",
    )


def mnist_rivals(runs: Runs) -> Claim | None:
    studies = [study for study in runs if "mnist" in study]
    checks = [
        _is_ahead(runs, study, rival, which, "test_accuracy")
        for study in studies
        for rival in RIVALS
        for which in MODELS
    ]
    words = [f"{w} model: " + "; ".join(_lead(runs, s, RIVALS, w) for s in studies) for w in MODELS]
    evidence = f"Smallest lead in points of accuracy, paired over seeds (95 % interval), {'; '.join(words)}."
    claim = "On MNIST FedVeca is well ahead of FedAvg, FedNova and FedProx."
    return Claim(claim, verdict(checks), evidence) if studies else None


def mnist_scaffold(runs: Runs) -> Claim | None:
    studies = [study for study in runs if "mnist" in study]
    gaps = [lead(runs, s, "scaffold", w, "test_accuracy").mean for s in studies for w in MODELS]
    words = [_lead(runs, s, ("scaffold",), w) + f", {w} model" for s in studies for w in MODELS]
    claim = "On MNIST FedVeca is marginally (less than a point of accuracy) behind SCAFFOLD."
    evidence = f"FedVeca minus SCAFFOLD in points (95 % interval): {'; '.join(words)}."
    return Claim(claim, verdict([-0.01 < gap < 0 for gap in gaps]), evidence) if studies else None


def cifar_all(runs: Runs) -> Claim | None:
    study = next((study for study in runs if "cifar10" in study), None)
    if study is None:
        return None
    rivals = (*RIVALS, "scaffold")
    checks = [_is_ahead(runs, study, r, w, m) for r in rivals for w in MODELS for m in METRICS]
    beaten = [title_of(r) for r in rivals if all(_is_ahead(runs, study, r, "kept", m) for m in METRICS)]
    return Claim(
        "On CIFAR-10 FedVeca's final model beats FedAvg, FedNova, FedProx and SCAFFOLD in loss and accuracy.",
        verdict(checks),
        f"Beyond chance in both, the kept model beats {', '.join(beaten) or 'none'}; smallest lead in points: kept "
        f"model {_lead(runs, study, rivals, 'kept')}; last model {_lead(runs, study, rivals, 'last')}.",
    )


# loss and accuracy over the rounds


def _kept_runs(runs: Runs, study: str, method: str) -> list[Run]:
    return [kept_so_far(run) for run in runs_of(runs, study, method)]


def _count(rounds: Sequence[int | None]) -> int:
    """How many seeds arrive."""
    return sum(k is not None for k in rounds)


def centralised_line(runs: Runs) -> Claim:
    sooner, more, words = [], [], []
    for study in runs:
        text = []
        for metric in METRICS:
            at = REPORTED[task_of(study)]["centralised"][metric]
            ours, *theirs = (rounds_until(_kept_runs(runs, study, m), metric, at) for m in ("fedveca", *RIVALS))
            sooner.append(all(median(ours) < median(rival) for rival in theirs))
            most = max(map(_count, theirs))
            more.append(_count(ours) - most)
            text.append((_count(ours), most))
        (a, b), (c, d) = text
        words.append(f"{TITLES[task_of(study)]} FedVeca {a} ({c}), the best of the three {b} ({d})")
    partly: Holds = "partly" if max(more) > 0 and min(more) >= 0 else False
    return Claim(
        "FedVeca reaches the centralised line before FedAvg, FedNova and FedProx on every task.",
        True if all(sooner) else partly,
        f"Of {len(runs_of(runs, next(iter(runs))))} seeds, those whose kept model has the paper's centralised loss "
        f"(accuracy) by the end: {'; '.join(words)}.",
    )


def scaffold_line(runs: Runs) -> Claim:
    checks, words = [], []
    for study in runs:
        at = REPORTED[task_of(study)]["centralised"]["test_loss"]
        each = [rounds_until(_kept_runs(runs, study, m), "test_loss", at) for m in ("fedveca", "scaffold")]
        both = [median(rounds) for rounds in each]
        checks.append(math.isfinite(both[0]) and abs(both[0] - both[1]) <= 10)
        words.append(f"{TITLES[task_of(study)]} {_count(each[0])} and {_count(each[1])}")
    return Claim(
        "FedVeca reaches the centralised line nearly when SCAFFOLD does (medians within 10 rounds).",
        verdict(checks),
        f"Seeds whose kept model reaches the paper's centralised loss, FedVeca and SCAFFOLD: {'; '.join(words)}.",
    )


def faster(runs: Runs) -> Claim:
    checks, words, curve = [], [], []
    for study in runs:
        at = mean_of_last(runs_of(runs, study, "fedavg"), "test_loss")
        methods = ("fedveca", *RIVALS, "scaffold")
        each = {m: rounds_until(_kept_runs(runs, study, m), "test_loss", at) for m in methods}
        checks.append(all(median(each["fedveca"]) < median(each[rival]) for rival in RIVALS))
        part = (f"{title_of(m)} {format_median(each[m])}" for m in ("fedveca", "fedavg", "fednova", "scaffold"))
        words.append(f"{TITLES[task_of(study)]} (loss {at:.4g}) {', '.join(part)}")
        hit = np.flatnonzero(by_round(runs_of(runs, study), "test_loss").mean(0) <= at)
        checks.append(bool(len(hit)) and hit[0] + 1 < median(each["fedavg"]))
        curve.append(str(hit[0] + 1) if len(hit) else "never")
    return Claim(
        "FedVeca converges faster than FedAvg, FedNova and FedProx.",
        verdict(checks),
        f"Median rounds until the kept model has FedAvg's last loss: {'; '.join(words)}; FedVeca's mean curve of every "
        f"round's model has it in round {', '.join(curve)}.",
    )


def _rough(runs: Runs, study: str, method: str = "fedveca") -> float:
    mine = runs_of(runs, study, method)
    return roughness(mine, "test_loss") / mean_of_last(mine, "test_loss")


def steadier_svm(runs: Runs) -> Claim | None:
    rough = {study: _rough(runs, study) for study in runs}
    if len(rough) < 2:
        return None
    svm = rough.get("svm-mnist-case3", math.inf)
    fedavg = {study: _rough(runs, study, "fedavg") for study in runs}
    words = [f"{TITLES[task_of(s)]} {100 * rough[s]:.1f} % (FedAvg {100 * fedavg[s]:.1f} %)" for s in runs]
    return Claim(
        "FedVeca's curves swing little on the SVM and more on the CNN.",
        all(svm < r / 2 for study, r in rough.items() if "cnn" in study),
        f"Mean change of the test loss from round to round, last 50 rounds, of its last value: {'; '.join(words)}.",
    )


# the premise of Theorem 1


def premise_holds(runs: Runs) -> Claim:
    checks, words = [], []
    for study in runs:
        values = by_round(runs_of(runs, study), "premise")[:, 1:]
        early = 10 if "svm" in study else 0  # the paper lets the SVM's first few rounds pass
        checks.append(bool((values[:, early:] >= 1).all()))
        below = values < 1
        last = int((below.any(0) * np.arange(1, below.shape[1] + 1)).max())
        words.append(
            f"{TITLES[task_of(study)]} {100 * (values >= 1).mean():.1f} % (last round below in any seed: {last})"
        )
    later = all((by_round(runs_of(runs, s), "premise")[:, 2:] >= 1).all() for s in runs if "cnn" in s)
    return Claim(
        "The premise, eta tau_k L >= 1, holds in all rounds, the SVM's first few (10 here) aside.",
        verdict(checks) or ("partly" if later else False),
        f"Share of rounds from round 1 on where it holds: {'; '.join(words)}; in round 1 L is |grad F(w_0)| / |w_0|, a "
        "small number on the CNN and unknown on the SVM, whose w_0 is 0.",
    )


def premise_steady(runs: Runs) -> Claim | None:
    if len(runs) < 2 or "svm-mnist-case3" not in runs:
        return None
    spread = {study: by_round(runs_of(runs, study), "premise")[:, 2:] for study in runs}
    std = {study: float(v.std(1).mean()) for study, v in spread.items()}
    share = {study: float(variation(v.T).mean()) for study, v in spread.items()}
    cnn = [study for study in runs if "cnn" in study]
    checks = [all(x["svm-mnist-case3"] < x[study] for study in cnn) for x in (std, share)]
    words = "; ".join(f"{TITLES[task_of(s)]} {std[s]:.2f} ({100 * share[s]:.0f} %)" for s in runs)
    return Claim(
        "Its value is steadiest on the SVM.",
        verdict(checks),
        f"Standard deviation over rounds 2 and later (and as a share of the mean): {words}.",
    )
