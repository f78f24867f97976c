"""What Section V says about the SVM on MNIST: distributions, one run in detail, alpha, the number of clients."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import stats

from studies.paper.claims import METRICS, RIVALS, Claim, Holds, verdict
from studies.paper.measures import (
    Array,
    Runs,
    by_client,
    by_round,
    format_median,
    mean_of_last,
    median,
    roughness,
    rounds_until,
    runs_of,
    title_of,
    variation,
)

CASE = {n: f"svm-mnist-case{n}" for n in (1, 2, 3)}
FIFTY = "svm-mnist-case3-clients50"


# distributions


def case1_overlaps(runs: Runs) -> Claim:
    gaps = []
    for metric in METRICS:
        ours = by_round(runs_of(runs, CASE[1]), metric).mean(0)[10:]
        rivals = (by_round(runs_of(runs, CASE[1], m), metric).mean(0)[10:] for m in (*RIVALS, "scaffold"))
        gaps.append(max(float(np.abs(ours - theirs).max()) for theirs in rivals))
    return Claim(
        "In Case 1 FedVeca's curves overlap with the baselines' (within 0.01 of loss, 1 point of accuracy).",
        gaps[0] < 0.01 and gaps[1] < 0.01,
        f"Largest distance between mean curves after round 10: {gaps[0]:.4f} in loss, {100 * gaps[1]:.2f} points.",
    )


def case1_converges(runs: Runs) -> Claim:
    centre = mean_of_last(runs_of(runs, CASE[1], "centralised"), "test_loss")
    ends = {m: mean_of_last(runs_of(runs, CASE[1], m), "test_loss") for m in ("fedveca", *RIVALS, "scaffold")}
    words = ", ".join(f"{title_of(m)} {end:.4f}" for m, end in ends.items())
    return Claim(
        "In Case 1 all methods converge to the centralised loss (within 1 %) in 100 rounds.",
        verdict([end <= 1.01 * centre for end in ends.values()]),
        f"Last loss: centralised {centre:.4f}, {words}.",
    )


def case2_first(runs: Runs) -> Claim:
    checks, words = [], []
    for metric, name in zip(METRICS, ("loss", "accuracy"), strict=True):
        at = mean_of_last(runs_of(runs, CASE[2], "fedavg"), metric)
        each = {m: rounds_until(runs_of(runs, CASE[2], m), metric, at) for m in ("fedveca", *RIVALS, "scaffold")}
        checks += [median(each["fedveca"]) < median(each[m]) for m in (*RIVALS, "scaffold")]
        part = (f"{title_of(m)} {format_median(each[m])}" for m in ("fedveca", "fedavg", "fednova", "scaffold"))
        words.append(f"{name} ({at:.4f}) {', '.join(part)}")
    return Claim(
        "In Case 2 FedVeca is the first of all to converge, in loss and in accuracy.",
        verdict(checks),
        f"Median rounds until FedAvg's last value: {'; '.join(words)}.",
    )


def _cases(runs: Runs, method: str) -> list[float]:
    """Median rounds until FedAvg's last loss of Case 3, in Cases 1 to 3."""
    at = mean_of_last(runs_of(runs, CASE[3], "fedavg"), "test_loss")
    return [median(rounds_until(runs_of(runs, study, method), "test_loss", at)) for study in CASE.values()]


def same_rate(runs: Runs) -> Claim:
    ours, theirs = _cases(runs, "fedveca"), _cases(runs, "fedavg")
    partly: Holds = "partly" if max(ours) - min(ours) < (max(theirs) - min(theirs)) / 2 else False
    return Claim(
        "FedVeca converges at essentially the same rate in Cases 1, 2 and 3 (within a quarter).",
        True if max(ours) <= 1.25 * min(ours) else partly,
        "Median rounds until FedAvg's last loss of Case 3, in Cases 1, 2 and 3: FedVeca "
        f"{', '.join(f'{k:g}' for k in ours)}; FedAvg {', '.join(f'{k:g}' for k in theirs)}.",
    )


def worse_case3(runs: Runs) -> Claim:
    methods = ("fedavg", "fednova", "fedveca")
    ends = {m: [mean_of_last(runs_of(runs, s, m), "test_accuracy") for s in CASE.values()] for m in methods}
    words = (f"{title_of(m)} {', '.join(f'{100 * v:.2f} %' for v in end)}" for m, end in ends.items())
    return Claim(
        "FedAvg and FedNova do better in Cases 1 and 2 and worse in Case 3.",
        verdict([min(ends[m][:2]) > ends[m][2] for m in ("fedavg", "fednova")]),
        f"Last accuracy in Cases 1, 2 and 3: {'; '.join(words)}.",
    )


# one run, its first 50 rounds


def _detail(runs: Runs, name: str, first: int) -> Array:
    """[rounds, clients] of seed 0's run, or [rounds]."""
    return by_client(runs_of(runs, CASE[3])[0].rounds[first:50], name)


def tau_swings(runs: Runs) -> Claim:
    tau = _detail(runs, "tau", 2)  # the first adapted one
    words = (f"{i + 1}: {low:g} to {high:g}" for i, (low, high) in enumerate(zip(tau.min(0), tau.max(0), strict=True)))
    return Claim(
        "tau_(k,i) swings much from round to round.",
        verdict([bool(v > 0.5) for v in variation(tau)]),
        f"Range of tau from round 2 on, by client: {', '.join(words)}.",
    )


def most_in_turn(runs: Runs) -> Claim:
    tau = _detail(runs, "tau", 2)
    most = np.bincount(tau.argmax(1), minlength=tau.shape[1])
    even = stats.chisquare(most).pvalue > 0.05
    partly: Holds = "partly" if (most > 0).sum() > 1 and stats.chisquare(most[most > 0]).pvalue > 0.05 else False
    return Claim(
        "Each round's largest tau is spread evenly over the clients.",
        True if even else partly,
        f"Rounds of {len(tau)} in which clients 1 to {len(most)} have it: {', '.join(map(str, most))}.",
    )


def tau_k_steady(runs: Runs) -> Claim:
    tau, tau_k = _detail(runs, "tau", 2), _detail(runs, "tau_k", 2)
    ours, theirs = float(variation(tau_k)), float(variation(tau).max())
    return Claim(
        "tau_k does not swing much, however different the clients' tau are.",
        ours < theirs / 2,
        f"From round 2 on tau_k is between {tau_k.min():.2f} and {tau_k.max():.2f}, its standard deviation "
        f"{100 * ours:.0f} % of its mean, against up to {100 * theirs:.0f} % for a client's tau.",
    )


def L_settles(runs: Runs) -> Claim:
    L = _detail(runs, "L", 1)
    rises = np.flatnonzero(np.diff(L) > 0) + 2
    return Claim(
        "L_k shows that neighbouring models differ less and less: the model converges.",
        "partly" if not len(rises) or rises[-1] < 40 else False,
        f"L is a running maximum and cannot fall, so it can only stop rising: it rises in {len(rises)} of {len(L)} "
        f"rounds, last in round {rises[-1] if len(rises) else 0}, to {L[-1]:.1f}.",
    )


def apart(runs: Runs) -> Claim:
    A, beta, delta = (_detail(runs, name, 1) for name in ("A", "beta", "delta"))
    mean = A.mean(0)
    above = float((A[:, 3:].min(1) > A[:, :3].max(1)).mean())
    ratio = float(mean[3:].min() / mean[:3].max())
    return Claim(
        "A of clients 4 and 5 stands well apart from that of the other three.",
        True if ratio > 1.5 else "partly" if ratio > 1 else False,
        f"Mean A of clients 1 to 5: {', '.join(f'{v:.0f}' for v in mean)}; both 4 and 5 are above all others in "
        f"{100 * above:.0f} % of the rounds; mean delta {', '.join(f'{v:.0f}' for v in delta.mean(0))}; mean beta "
        f"{', '.join(f'{v:.0f}' for v in beta.mean(0))}.",
    )


# alpha


class _AlphaRuns(NamedTuple):
    rough: float  # mean change of the loss from round to round
    last: float  # the last loss
    to_slow: float  # median rounds until the last loss of alpha = 0.5
    to_default: float  # and until that of alpha = 0.95


def _alpha(runs: Runs) -> dict[float, _AlphaRuns]:
    """What the claims ask of each alpha."""
    mine = {runs_of(runs, study)[0].experiment.alpha: runs_of(runs, study) for study in runs}
    slow, default = (mean_of_last(mine[alpha], "test_loss") for alpha in (0.5, 0.95))
    return {
        alpha: _AlphaRuns(
            roughness(each, "test_loss"),
            mean_of_last(each, "test_loss"),
            median(rounds_until(each, "test_loss", slow)),
            median(rounds_until(each, "test_loss", default)),
        )
        for alpha, each in mine.items()
    }


def _words(rounds: float) -> str:
    return f"{rounds:g}" if math.isfinite(rounds) else "never"


def slow_and_smooth(runs: Runs) -> Claim:
    seen = _alpha(runs)
    mine, others = seen[0.5], [seen[0.95], seen[0.995]]
    words = (f"{1 - a:.3g}: {v.rough:.5f} a round, {_words(v.to_slow)} rounds" for a, v in sorted(seen.items()))
    return Claim(
        "With 1 - alpha = 0.5 the curves are smooth and slow.",
        verdict([all(mine.rough < o.rough for o in others), all(mine.to_slow > o.to_slow for o in others)]),
        "Mean change of the test loss over the last 50 rounds, and median rounds until the last loss of 0.5 "
        f"({mine.last:.4f}), by 1 - alpha: {'; '.join(words)}.",
    )


def first_and_rough(runs: Runs) -> Claim:
    seen = _alpha(runs)
    mine, other = seen[0.995], seen[0.95]
    checks = [
        mine.rough > max(other.rough, seen[0.5].rough),
        mine.to_default < min(other.to_default, seen[0.5].to_default),
        mine.last <= 1.01 * other.last,
    ]
    return Claim(
        "With 1 - alpha = 0.005 the model reaches convergence first, on a curve that is not smooth.",
        verdict(checks),
        f"Median rounds until the last loss of 0.05 ({other.last:.4f}): {_words(mine.to_default)} against "
        f"{_words(other.to_default)} with 0.05; the loss moves by {mine.rough:.4f} a round against {other.rough:.4f}, "
        f"and the last is {mine.last:.4f}.",
    )


def both(runs: Runs) -> Claim:
    seen = _alpha(runs)
    slow, mine = seen[0.5], seen[0.95]
    return Claim(
        "1 - alpha = 0.05 is fast and smooth.",
        verdict([mine.to_slow <= 0.6 * slow.to_slow, mine.rough < 0.01 * mine.last]),
        f"It reaches the last loss of 0.5 in {_words(mine.to_slow)} rounds instead of {_words(slow.to_slow)}, and "
        f"moves by {100 * mine.rough / mine.last:.1f} % of the loss a round.",
    )


# the number of clients


def not_faster(runs: Runs) -> Claim:
    at = mean_of_last(runs_of(runs, FIFTY, "fedavg"), "test_loss")
    rounds = {runs[s][0].experiment.clients: median(rounds_until(runs_of(runs, s), "test_loss", at)) for s in runs}
    order = sorted(rounds)
    return Claim(
        "More clients do not make FedVeca converge faster.",
        verdict([rounds[a] <= rounds[b] for a, b in pairwise(order)]),
        f"Median rounds until a loss of {at:.4f}, by clients: {', '.join(f'{n}: {_words(rounds[n])}' for n in order)}.",
    )


def ahead_at_fifty(runs: Runs) -> Claim:
    at = mean_of_last(runs_of(runs, FIFTY, "fedavg"), "test_loss")
    each = {m: median(rounds_until(runs_of(runs, FIFTY, m), "test_loss", at)) for m in ("fedveca", "fedavg", "fednova")}
    ours, theirs = runs_of(runs, FIFTY), runs_of(runs, FIFTY, "fedavg")
    at_equal_steps = []
    for a, b in zip(ours, theirs, strict=True):  # FedVeca's loss when it has spent FedAvg's steps
        spent = np.cumsum([sum(line["tau"]) for line in a.rounds])
        k = int(np.searchsorted(spent, min(b.summary["tau_all"], spent[-1])))
        at_equal_steps.append(by_round([a], "test_loss")[0, k])
    loss = float(np.mean(at_equal_steps))
    steps = [statistics.fmean(r.summary["tau_all"] for r in x) for x in (ours, theirs)]
    checks = [each["fedveca"] < each["fedavg"], each["fedveca"] < each["fednova"], loss < at]
    return Claim(
        "With 50 clients FedVeca converges faster than FedAvg and FedNova, in rounds and for the same local steps.",
        verdict(checks),
        f"Median rounds until a loss of {at:.4f}: {', '.join(f'{title_of(m)} {_words(k)}' for m, k in each.items())}; "
        f"FedVeca takes {steps[0]:.0f} local steps and they {steps[1]:.0f} (their tau is rounded down), and when it "
        f"has taken as many as they its loss is {loss:.4f}.",
    )
