"""What Section V says of the SVM on MNIST: distributions, one run in detail, alpha, the number of clients."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import numpy as np
from scipy import stats

from fedveca.views.claims import METRICS, RIVALS, Claim, Holds, verdict
from fedveca.views.measures import Array, Runs, grid, level, median, of, reached, roughness, said, variation
from fedveca.views.paper_figures import Numbers
from fedveca.views.series import look

CASE = {n: f"svm-mnist-case{n}" for n in (1, 2, 3)}
FIFTY = "svm-mnist-case3-clients50"


# distributions


def case1_overlaps(runs: Runs, paper: Numbers) -> Claim:
    gaps = []
    for metric in METRICS:
        ours = grid(of(runs, CASE[1]), metric).mean(0)[10:]
        rivals = (grid(of(runs, CASE[1], m), metric).mean(0)[10:] for m in (*RIVALS, "scaffold"))
        gaps.append(max(float(np.abs(ours - theirs).max()) for theirs in rivals))
    return Claim(
        "In Case 1 FedVeca's curves overlap with the baselines' (within 0.01 of loss, 1 point of accuracy).",
        gaps[0] < 0.01 and gaps[1] < 0.01,
        f"Largest distance between mean curves after round 10: {gaps[0]:.4f} in loss, {100 * gaps[1]:.2f} points.",
    )


def case1_converges(runs: Runs, paper: Numbers) -> Claim:
    centre = level(of(runs, CASE[1], "centralised"), "test_loss")
    ends = {m: level(of(runs, CASE[1], m), "test_loss") for m in ("fedveca", *RIVALS, "scaffold")}
    words = ", ".join(f"{look(m)[0]} {end:.4f}" for m, end in ends.items())
    return Claim(
        "In Case 1 all methods converge to the centralised loss (within 1 %) in 100 rounds.",
        verdict([end <= 1.01 * centre for end in ends.values()]),
        f"Last loss: centralised {centre:.4f}, {words}.",
    )


def case2_first(runs: Runs, paper: Numbers) -> Claim:
    checks, words = [], []
    for metric, name in zip(METRICS, ("loss", "accuracy"), strict=True):
        at = level(of(runs, CASE[2], "fedavg"), metric)
        each = {m: reached(of(runs, CASE[2], m), metric, at) for m in ("fedveca", *RIVALS, "scaffold")}
        checks += [median(each["fedveca"]) < median(each[m]) for m in (*RIVALS, "scaffold")]
        part = (f"{look(m)[0]} {said(each[m])}" for m in ("fedveca", "fedavg", "fednova", "scaffold"))
        words.append(f"{name} ({at:.4f}) {', '.join(part)}")
    return Claim(
        "In Case 2 FedVeca is the first of all to converge, in loss and in accuracy.",
        verdict(checks),
        f"Median rounds until FedAvg's last value: {'; '.join(words)}.",
    )


def _cases(runs: Runs, method: str) -> list[float]:
    """Median rounds until FedAvg's last loss of Case 3, in Cases 1 to 3."""
    at = level(of(runs, CASE[3], "fedavg"), "test_loss")
    return [median(reached(of(runs, study, method), "test_loss", at)) for study in CASE.values()]


def same_rate(runs: Runs, paper: Numbers) -> Claim:
    ours, theirs = _cases(runs, "fedveca"), _cases(runs, "fedavg")
    partly: Holds = "partly" if max(ours) - min(ours) < (max(theirs) - min(theirs)) / 2 else False
    return Claim(
        "FedVeca converges at essentially the same rate in Cases 1, 2 and 3 (within a quarter).",
        True if max(ours) <= 1.25 * min(ours) else partly,
        "Median rounds until FedAvg's last loss of Case 3, in Cases 1, 2 and 3: FedVeca "
        f"{', '.join(f'{k:g}' for k in ours)}; FedAvg {', '.join(f'{k:g}' for k in theirs)}.",
    )


def worse_case3(runs: Runs, paper: Numbers) -> Claim:
    methods = ("fedavg", "fednova", "fedveca")
    ends = {m: [level(of(runs, s, m), "test_accuracy") for s in CASE.values()] for m in methods}
    words = (f"{look(m)[0]} {', '.join(f'{100 * v:.2f} %' for v in end)}" for m, end in ends.items())
    return Claim(
        "FedAvg and FedNova do better in Cases 1 and 2 and worse in Case 3.",
        verdict([min(ends[m][:2]) > ends[m][2] for m in ("fedavg", "fednova")]),
        f"Last accuracy in Cases 1, 2 and 3: {'; '.join(words)}.",
    )


# one run, its first 50 rounds


def _detail(runs: Runs, name: str, first: int) -> Array:
    """[rounds, clients] of seed 0's run, or [rounds]."""
    return np.array([line[name] for line in of(runs, CASE[3])[0].rounds[first:50]], dtype=float)


def tau_swings(runs: Runs, paper: Numbers) -> Claim:
    tau = _detail(runs, "tau", 2)  # the first adapted one
    words = (f"{i + 1}: {low:g} to {high:g}" for i, (low, high) in enumerate(zip(tau.min(0), tau.max(0), strict=True)))
    return Claim(
        "tau_(k,i) swings much from round to round.",
        verdict([bool(v > 0.5) for v in variation(tau)]),
        f"Range of tau from round 2 on, by client: {', '.join(words)}.",
    )


def most_in_turn(runs: Runs, paper: Numbers) -> Claim:
    tau = _detail(runs, "tau", 2)
    most = np.bincount(tau.argmax(1), minlength=tau.shape[1])
    even = stats.chisquare(most).pvalue > 0.05
    partly: Holds = "partly" if (most > 0).sum() > 1 and stats.chisquare(most[most > 0]).pvalue > 0.05 else False
    return Claim(
        "Each round's largest tau is spread evenly over the clients.",
        True if even else partly,
        f"Rounds of {len(tau)} in which clients 1 to {len(most)} have it: {', '.join(map(str, most))}.",
    )


def tau_k_steady(runs: Runs, paper: Numbers) -> Claim:
    tau, tau_k = _detail(runs, "tau", 2), _detail(runs, "tau_k", 2)
    ours, theirs = float(variation(tau_k)), float(variation(tau).max())
    return Claim(
        "tau_k does not swing much, however different the clients' tau are.",
        ours < theirs / 2,
        f"From round 2 on tau_k is between {tau_k.min():.2f} and {tau_k.max():.2f}, its standard deviation "
        f"{100 * ours:.0f} % of its mean, against up to {100 * theirs:.0f} % for a client's tau.",
    )


def L_settles(runs: Runs, paper: Numbers) -> Claim:
    L = _detail(runs, "L", 1)
    rises = np.flatnonzero(np.diff(L) > 0) + 2
    return Claim(
        "L_k shows that neighbouring models differ less and less: the model converges.",
        "partly" if not len(rises) or rises[-1] < 40 else False,
        f"L is a running maximum and cannot fall, so it can only stop rising: it rises in {len(rises)} of {len(L)} "
        f"rounds, last in round {rises[-1] if len(rises) else 0}, to {L[-1]:.1f}.",
    )


def apart(runs: Runs, paper: Numbers) -> Claim:
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


def _alpha(runs: Runs) -> dict[float, tuple[float, float, float, float]]:
    """By alpha: roughness, last loss, and median rounds until alpha = 0.5's and 0.95's last loss."""
    mine = {of(runs, study)[0].experiment.alpha: of(runs, study) for study in runs}
    ends = {a: level(r, "test_loss") for a, r in mine.items()}
    at = {a: [median(reached(r, "test_loss", ends[x])) for x in (0.5, 0.95)] for a, r in mine.items()}
    return {a: (roughness(r, "test_loss"), ends[a], *at[a]) for a, r in mine.items()}  # type: ignore[misc]


def _words(rounds: float) -> str:
    return f"{rounds:g}" if math.isfinite(rounds) else "never"


def slow_and_smooth(runs: Runs, paper: Numbers) -> Claim:
    seen = _alpha(runs)
    mine, others = seen[0.5], [seen[0.95], seen[0.995]]
    words = (f"{1 - a:.3g}: {v[0]:.5f} a round, {_words(v[2])} rounds" for a, v in sorted(seen.items()))
    return Claim(
        "With 1 - alpha = 0.5 the curves are smooth and slow.",
        verdict([all(mine[0] < o[0] for o in others), all(mine[2] > o[2] for o in others)]),
        "Mean change of the test loss over the last 50 rounds, and median rounds until the last loss of 0.5 "
        f"({mine[1]:.4f}), by 1 - alpha: {'; '.join(words)}.",
    )


def first_and_rough(runs: Runs, paper: Numbers) -> Claim:
    seen = _alpha(runs)
    mine, other = seen[0.995], seen[0.95]
    checks = [mine[0] > max(other[0], seen[0.5][0]), mine[3] < min(other[3], seen[0.5][3]), mine[1] <= 1.01 * other[1]]
    return Claim(
        "With 1 - alpha = 0.005 the model reaches convergence first, on a curve that is not smooth.",
        verdict(checks),
        f"Median rounds until the last loss of 0.05 ({other[1]:.4f}): {_words(mine[3])} against {_words(other[3])} "
        f"with 0.05; the loss moves by {mine[0]:.4f} a round against {other[0]:.4f}, and the last is {mine[1]:.4f}.",
    )


def both(runs: Runs, paper: Numbers) -> Claim:
    seen = _alpha(runs)
    fast, smooth = seen[0.95][2] <= 0.6 * seen[0.5][2], seen[0.95][0] < 0.01 * seen[0.95][1]
    return Claim(
        "1 - alpha = 0.05 is fast and smooth.",
        verdict([fast, smooth]),
        f"It reaches the last loss of 0.5 in {_words(seen[0.95][2])} rounds instead of {_words(seen[0.5][2])}, and "
        f"moves by {100 * seen[0.95][0] / seen[0.95][1]:.1f} % of the loss a round.",
    )


# the number of clients


def not_faster(runs: Runs, paper: Numbers) -> Claim:
    at = level(of(runs, FIFTY, "fedavg"), "test_loss")
    rounds = {runs[s][0].experiment.clients: median(reached(of(runs, s), "test_loss", at)) for s in runs}
    order = sorted(rounds)
    return Claim(
        "More clients do not make FedVeca converge faster.",
        verdict([rounds[a] <= rounds[b] for a, b in pairwise(order)]),
        f"Median rounds until a loss of {at:.4f}, by clients: {', '.join(f'{n}: {_words(rounds[n])}' for n in order)}.",
    )


def ahead_at_fifty(runs: Runs, paper: Numbers) -> Claim:
    at = level(of(runs, FIFTY, "fedavg"), "test_loss")
    each = {m: median(reached(of(runs, FIFTY, m), "test_loss", at)) for m in ("fedveca", "fedavg", "fednova")}
    ours, theirs = of(runs, FIFTY), of(runs, FIFTY, "fedavg")
    equal = []
    for a, b in zip(ours, theirs, strict=True):  # FedVeca's loss when it has spent FedAvg's steps
        spent = np.cumsum([sum(line["tau"]) for line in a.rounds])
        equal.append(a.rounds[int(np.searchsorted(spent, min(b.summary["tau_all"], spent[-1])))]["test_loss"])
    loss, steps = statistics.fmean(equal), [statistics.fmean(r.summary["tau_all"] for r in x) for x in (ours, theirs)]
    checks = [each["fedveca"] < each["fedavg"], each["fedveca"] < each["fednova"], loss < at]
    return Claim(
        "With 50 clients FedVeca converges faster than FedAvg and FedNova, in rounds and for the same local steps.",
        verdict(checks),
        f"Median rounds until a loss of {at:.4f}: {', '.join(f'{look(m)[0]} {_words(k)}' for m, k in each.items())}; "
        f"FedVeca takes {steps[0]:.0f} local steps and they {steps[1]:.0f} (their tau is rounded down), and when it "
        f"has taken as many as they its loss is {loss:.4f}.",
    )
