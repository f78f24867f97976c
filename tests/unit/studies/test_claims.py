"""Every claim of the paper on invented runs, on both sides of what decides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from studies.paper import claims, claims_svm
from studies.paper.claims import Claim, Holds, verdict
from studies.paper.reported import REPORTED

SVM, CNN, CIFAR = "svm-mnist-case3", "cnn-mnist-case3", "cnn-cifar10-case3"
RIVALS = ("fedavg", "fedprox", "fednova")
ALL = ("fedveca", *RIVALS, "scaffold", "centralised")
Make = Callable[..., list[Run]]


def make(
    method: str,
    losses: Sequence[float] = (0.5,),
    accuracies: Sequence[float] = (),
    *,
    kept: float | None = None,
    last: float | None = None,
    seed: int = 0,
    tau_all: int = 100,
    lines: Sequence[dict[str, Any]] = (),
    **settings: Any,
) -> Run:
    """A run whose every round's model was accepted; `kept` and `last` are accuracies."""
    accuracies = accuracies or [1 - loss for loss in losses]
    rounds: list[Any] = [
        {"round": k, "accepted": True, "tau": [1], "test_loss": loss, "test_accuracy": accuracy}
        for k, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]
    for record, more in zip(rounds, lines, strict=False):
        record.update(more)
    final = accuracies[-1]
    summary: Any = {
        "tau_all": tau_all,
        "kept": {"round": len(rounds), "test_loss": losses[-1], "test_accuracy": final if kept is None else kept},
        "last": {"round": len(rounds), "test_loss": losses[-1], "test_accuracy": final if last is None else last},
    }
    return Run(Experiment(method=method, seed=seed, **settings), rounds, summary)


def holds(claim: Claim | None) -> Holds:
    assert claim
    assert claim.claim.endswith(".")
    return claim.holds


def test_a_verdict_is_yes_for_all_no_for_none_and_else_partly() -> None:
    assert [verdict(v) for v in ([True, True], [False, False], [True, False])] == [True, False, "partly"]


# Table I


@pytest.mark.parametrize(("below", "expected"), [(0.0009, True), (0.0011, False)])
def test_paper_value_allows_one_standard_deviation(below: float, expected: bool) -> None:
    middle = REPORTED["svm-mnist"]["fedveca"]["test_accuracy"] - below
    runs = {SVM: [make("fedveca", kept=middle + d, seed=i) for i, d in enumerate((-0.001, 0.0, 0.001))]}
    assert holds(claims.paper_value(runs)) is expected


def ahead(kept: float, last: float, of: Sequence[str], study: str = SVM) -> dict[str, list[Run]]:
    """FedVeca ahead of some rivals by so much in every seed."""
    mine = [make("fedveca", kept=0.9 + s / 100, last=0.8 + s / 100, seed=s) for s in range(3)]
    theirs = [make(m, kept=0.9 + s / 100 - kept, last=0.8 + s / 100 - last, seed=s) for m in of for s in range(3)]
    return {study: [*mine, *theirs]}


def test_mnist_rivals_counts_clear_leads_of_both_models() -> None:
    assert holds(claims.mnist_rivals(ahead(0.01, 0.01, RIVALS))) is True
    assert holds(claims.mnist_rivals(ahead(0.01, -0.01, RIVALS))) == "partly"
    assert holds(claims.mnist_rivals(ahead(-0.01, -0.01, RIVALS))) is False
    assert claims.mnist_rivals(ahead(0.01, 0.01, RIVALS, CIFAR)) is None


@pytest.mark.parametrize(
    ("kept", "last", "expected"),
    [(-0.0099, -0.0001, True), (-0.0101, -0.005, "partly"), (0.0001, -0.005, "partly"), (0.001, -0.02, False)],
)
def test_mnist_scaffold_is_less_than_a_point(kept: float, last: float, expected: Holds) -> None:
    assert holds(claims.mnist_scaffold(ahead(kept, last, ("scaffold",)))) == expected


def test_cifar_all_asks_for_loss_and_accuracy() -> None:
    def runs(mine: float, theirs: float, lead: float) -> dict[str, list[Run]]:
        found = [make("fedveca", (mine + s / 100,), kept=0.5, last=0.5, seed=s) for s in range(3)]
        rest = [
            make(m, (theirs + s / 100,), kept=0.5 - lead, last=0.5 - lead, seed=s)
            for m in (*RIVALS, "scaffold")
            for s in range(3)
        ]
        return {CIFAR: found + rest}

    assert holds(claims.cifar_all(runs(1.0, 1.1, 0.01))) is True
    assert holds(claims.cifar_all(runs(1.1, 1.0, 0.01))) == "partly"  # ahead in accuracy, behind in loss
    assert holds(claims.cifar_all(runs(1.1, 1.0, -0.01))) is False
    assert claims.cifar_all({SVM: []}) is None
    behind_one = runs(1.0, 1.1, 0.01)
    behind_one[CIFAR][-3:] = [make("scaffold", (0.9 + s / 100,), kept=0.6, last=0.6, seed=s) for s in range(3)]
    assert holds(claims.cifar_all(behind_one)) == "partly"


# curves

LINE = REPORTED["svm-mnist"]["centralised"]["test_loss"]


def falls(at: int, length: int = 30, low: float = LINE - 0.01, high: float = 0.9) -> list[float]:
    """A loss that reaches the centralised line in round `at`, counted from 1; 0: never."""
    return [high if not at or k + 1 < at else low for k in range(length)]


def curves(study: str = SVM, length: int = 30, **at: int) -> dict[str, list[Run]]:
    accuracy = REPORTED["svm-mnist"]["centralised"]["test_accuracy"]
    runs = []
    for method in ALL:
        losses = falls(at.get(method, 0), length)
        runs.append(make(method, losses, [accuracy if loss < 0.9 else 0.1 for loss in losses]))
    return {study: runs}


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ({"fedveca": 5, "fedavg": 6, "fedprox": 7, "fednova": 0}, True),
        ({"fedveca": 5, "fedavg": 5}, False),  # as many seeds, not sooner
        ({"fedveca": 0}, False),
        ({"fedveca": 0, "fedavg": 6}, False),
    ],
)
def test_centralised_line_is_reached_before_the_rivals(at: dict[str, Any], expected: Holds) -> None:
    assert holds(claims.centralised_line(curves(**at))) == expected


def test_centralised_line_holds_partly_where_more_seeds_arrive() -> None:
    other = curves(fedveca=5, fedavg=4)[SVM]  # FedAvg is sooner there
    both = curves(fedveca=5)[SVM]
    for seed, runs in enumerate((other, both)):
        for run in runs:
            object.__setattr__(run, "experiment", Experiment(method=run.experiment.method, seed=seed))
    never = curves(CNN)[CNN]
    assert holds(claims.centralised_line({SVM: other + both, CNN: never})) == "partly"


@pytest.mark.parametrize(("at", "expected"), [(15, True), (16, False), (0, False)])
def test_scaffold_line_is_within_ten_rounds(at: int, expected: bool) -> None:
    assert holds(claims.scaffold_line(curves(fedveca=5, scaffold=at))) is expected
    if at:
        assert holds(claims.scaffold_line(curves(fedveca=at, scaffold=5))) is expected


@pytest.mark.parametrize(
    ("ours", "expected"),
    [(9, True), (10, False), (11, False)],
)
def test_faster_is_sooner_at_fedavgs_last_loss(ours: int, expected: bool) -> None:
    assert holds(claims.faster(curves(fedveca=ours, fedavg=10, fedprox=10, fednova=10))) is expected
    if ours == 9:
        assert holds(claims.faster(curves(fedveca=9, fedavg=10, fedprox=9, fednova=10))) == "partly"


@pytest.mark.parametrize(("svm", "expected"), [(0.049, True), (0.051, False)])
def test_steadier_svm_swings_less_than_half(svm: float, expected: bool) -> None:
    def swing(study: str, by: float) -> list[Run]:
        losses = [1.0 + by * (k % 2) for k in range(59)]  # ends at 1
        return [make(method, losses, [0.5] * 59) for method in ALL]

    assert holds(claims.steadier_svm({SVM: swing(SVM, svm), CNN: swing(CNN, 0.1)})) is expected
    assert claims.steadier_svm({SVM: swing(SVM, svm)}) is None


def premise(study: str, values: Sequence[float]) -> dict[str, list[Run]]:
    lines = [{"premise": value} for value in values]
    return {study: [make("fedveca", [0.5] * len(values), lines=lines)]}


@pytest.mark.parametrize(
    ("study", "below", "expected"),
    [
        (SVM, 0, True),  # round 0 has no premise
        (SVM, 10, True),  # the first ten rounds are let pass
        (SVM, 11, "partly"),  # no CNN here, whose later rounds could contradict
        (CNN, 1, "partly"),  # only the first one
        (CNN, 2, False),
    ],
)
def test_premise_holds_from_one_on(study: str, below: int, expected: Holds) -> None:
    values = [1.0] * 20
    values[below] = 0.99
    assert holds(claims.premise_holds(premise(study, values))) == expected


@pytest.mark.parametrize(
    ("svm", "cnn", "expected"),
    [((2, 2.1), (2, 2.2), True), ((2, 2.2), (2, 2.1), False), ((20, 20.3), (2, 2.2), "partly")],
)
def test_premise_steady_in_value_and_in_share(svm: Sequence[float], cnn: Sequence[float], expected: Holds) -> None:
    runs = premise(SVM, [9, 9, *svm]) | premise(CNN, [2, 9, *cnn])
    assert holds(claims.premise_steady(runs)) == expected


# the SVM's distributions


def cases(**losses: Sequence[float]) -> dict[str, list[Run]]:
    """By case, every method with the same loss, unless named: case1_fedveca=[...]."""
    found = {}
    for n, study in claims_svm.CASE.items():
        found[study] = [make(m, losses.get(f"case{n}_{m}", losses.get(f"case{n}", [0.5] * 20))) for m in ALL]
    return found


@pytest.mark.parametrize(
    ("gap", "at", "expected"),
    [(0.0099, 15, True), (0.0101, 15, False), (-0.0101, 15, False), (0.5, 9, True), (0.5, 10, False)],
)
def test_case1_overlaps_within_a_hundredth_after_round_ten(gap: float, at: int, expected: bool) -> None:
    losses = [0.5] * 20
    losses[at] += gap
    assert holds(claims_svm.case1_overlaps(cases(case1_scaffold=losses))) is expected


@pytest.mark.parametrize("gap", [0.0101, -0.0101])
def test_case1_overlaps_asks_for_both_signs_of_loss_and_of_accuracy(gap: float) -> None:
    runs = cases()
    for losses, accuracies in (([0.5 + gap] * 20, [0.5] * 20), ([0.5] * 20, [0.5 + gap] * 20)):
        runs[claims_svm.CASE[1]][4] = make("scaffold", losses, accuracies)
        assert holds(claims_svm.case1_overlaps(runs)) is False


@pytest.mark.parametrize(("end", "expected"), [(0.5049, True), (0.5051, "partly")])
def test_case1_converges_within_one_per_cent(end: float, expected: Holds) -> None:
    assert holds(claims_svm.case1_converges(cases(case1_fednova=[end] * 20))) == expected


@pytest.mark.parametrize(("ours", "expected"), [(9, True), (10, False)])
def test_case2_first_is_sooner_than_all(ours: int, expected: bool) -> None:
    slow = falls(10, 20)
    assert holds(claims_svm.case2_first(cases(case2=slow, case2_fedveca=falls(ours, 20)))) is expected


@pytest.mark.parametrize(
    ("third", "theirs", "expected"),
    [(10, 30, True), (11, 30, "partly"), (17, 30, "partly"), (18, 30, "partly"), (19, 30, False), (11, 13, False)],
)
def test_same_rate_is_within_a_quarter(third: int, theirs: int, expected: Holds) -> None:
    """FedVeca takes 8 rounds in Cases 1 and 2; FedAvg 9 there, so that half of its range is the bound of `partly`."""
    runs = cases(
        case1_fedveca=falls(8, 40),
        case2_fedveca=falls(8, 40),
        case3_fedveca=falls(third, 40),
        case1_fedavg=falls(9, 40),
        case2_fedavg=falls(9, 40),
        case3_fedavg=falls(theirs, 40),
    )
    assert holds(claims_svm.same_rate(runs)) == expected


def test_worse_case3_compares_both_with_the_third() -> None:
    assert holds(claims_svm.worse_case3(cases(case3=[0.6] * 20))) is True
    assert holds(claims_svm.worse_case3(cases(case3_fedavg=[0.6] * 20))) == "partly"
    assert holds(claims_svm.worse_case3(cases(case3=[0.6] * 20, case2=[0.61] * 20))) is False


# one run in detail


def detail(**columns: Sequence[Any]) -> dict[str, list[Run]]:
    length = len(next(iter(columns.values())))
    lines = [{name: values[k] for name, values in columns.items()} for k in range(length)]
    return {SVM: [make("fedveca", [0.5] * length, lines=lines)]}


@pytest.mark.parametrize(("high", "expected"), [(31, True), (29, False)])
def test_tau_swings_where_its_deviation_is_half_its_mean(high: int, expected: bool) -> None:
    """A tau of 10 or `high` in turn varies by (high - 10) / (high + 10); the first two rounds do not count."""
    tau = [[900, 900], [1, 1], *([[10, 10], [high, high]] * 20)]
    assert holds(claims_svm.tau_swings(detail(tau=tau))) is expected
    one = [[10, 10], [10, 10], *([[10, 10], [31, 10]] * 20)]
    assert holds(claims_svm.tau_swings(detail(tau=one))) == "partly"


def most(*counts: int) -> dict[str, list[Run]]:
    """Each client has the largest tau so often."""
    tau = [[1] * len(counts)] * 2
    for client, count in enumerate(counts):
        tau += [[9 if i == client else 1 for i in range(len(counts))]] * count
    return detail(tau=tau)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((10, 12, 9), True), ((16, 4, 6), False), ((24, 24, 0), "partly"), ((47, 1, 0), False), ((0, 0, 48), False)],
)
def test_most_in_turn_is_a_test_of_evenness(counts: tuple[int, ...], expected: Holds) -> None:
    """chi-square: 10, 12, 9 has p = 0.8; 16, 4, 6 has p = 0.01."""
    assert holds(claims_svm.most_in_turn(most(*counts))) == expected


@pytest.mark.parametrize(("swing", "expected"), [(4.9, True), (5.1, False)])
def test_tau_k_steady_varies_less_than_half_of_a_client(swing: float, expected: bool) -> None:
    """A client varies by one half (5 or 15 about 10), tau_k by `swing` / 20."""
    tau = [[9, 9], [9, 9], *([[5, 9], [15, 9]] * 10)]
    tau_k = [9.0, 9.0, *([10 - swing / 2, 10 + swing / 2] * 10)]
    assert holds(claims_svm.tau_k_steady(detail(tau=tau, tau_k=tau_k))) is expected


@pytest.mark.parametrize(("last", "expected"), [(39, "partly"), (41, False)])
def test_L_settles_where_its_last_rise_is_before_round_forty(last: int, expected: Holds) -> None:
    L = [1.0 if k < last else 2.0 for k in range(50)]
    claim = claims_svm.L_settles(detail(L=L))
    assert holds(claim) == expected
    assert f"last in round {last}," in claim.evidence


@pytest.mark.parametrize(("A", "expected"), [(15.1, True), (14.9, "partly"), (9.9, False)])
def test_apart_is_one_and_a_half_times_the_others(A: float, expected: Holds) -> None:
    rows = [[1, 1, 10, A, 30]] * 10
    assert holds(claims_svm.apart(detail(A=rows, beta=rows, delta=rows))) == expected


# alpha


def alphas(**losses: Sequence[float]) -> dict[str, list[Run]]:
    """Losses by alpha: slow is 0.5, default 0.95, fast 0.995."""
    alpha = {"slow": 0.5, "default": 0.95, "fast": 0.995}
    return {name: [make("fedveca", losses[name], alpha=alpha[name])] for name in alpha}


def wave(rough: float, at: int, last: float, length: int = 100) -> list[float]:
    """At 2 until round `at`, then at `last`, or `rough` above it in every second round; ends at `last`."""
    return [2.0 if k + 1 < at else last + rough * ((length - 1 - k) % 2) for k in range(length)]


def test_slow_and_smooth() -> None:
    default, fast = wave(0.02, 21, 0.5), wave(0.04, 21, 0.5)
    assert holds(claims_svm.slow_and_smooth(alphas(slow=wave(0.01, 41, 0.6), default=default, fast=fast))) is True
    assert holds(claims_svm.slow_and_smooth(alphas(slow=wave(0.03, 41, 0.6), default=default, fast=fast))) == "partly"
    assert holds(claims_svm.slow_and_smooth(alphas(slow=wave(0.03, 11, 0.6), default=default, fast=fast))) is False


@pytest.mark.parametrize(
    ("rough", "dip", "last", "expected"),
    [
        (0.04, 21, 0.5, True),  # it has the other's last loss, 0.5, one round sooner
        (0.04, 21, 0.5049, True),  # its own may be one per cent higher
        (0.04, 21, 0.5051, "partly"),
        (0.04, 22, 0.5, "partly"),  # in the same round
        (0.019, 21, 0.5, "partly"),  # not as rough
        (0.019, 22, 0.5051, False),
    ],
)
def test_first_and_rough(rough: float, dip: int, last: float, expected: Holds) -> None:
    fast = wave(rough, dip, last)
    fast[dip - 1] = 0.5
    found = claims_svm.first_and_rough(alphas(slow=wave(0.01, 41, 0.6), default=wave(0.02, 22, 0.5), fast=fast))
    assert holds(found) == expected


@pytest.mark.parametrize(
    ("at", "rough", "expected"),
    [(24, 0.0049, True), (26, 0.0049, "partly"), (24, 0.0051, "partly"), (26, 0.0051, False)],
)
def test_both_is_fast_and_smooth(at: int, rough: float, expected: Holds) -> None:
    """Six tenths of 40 rounds are 24; one hundredth of 0.5 is 0.005."""
    losses = alphas(slow=wave(0.001, 40, 0.6), default=wave(rough, at, 0.5), fast=wave(0.1, 9, 0.5))
    assert holds(claims_svm.both(losses)) == expected


# the number of clients


def clients(**at: int) -> dict[str, list[Run]]:
    """The rounds that each needs until FedAvg's last loss with fifty clients."""
    steps = at.pop("steps", 30)
    few = {f"svm-mnist-case3-clients{n}": [make("fedveca", falls(at[f"n{n}"]), clients=n)] for n in (5, 30)}
    many = [
        make(m, falls(at[m]), clients=50, tau_all=30 if m == "fedveca" else steps)
        for m in ("fedveca", "fedavg", "fednova")
    ]
    return few | {claims_svm.FIFTY: many}


@pytest.mark.parametrize(
    ("at", "expected"),
    [((5, 5, 6), True), ((5, 7, 6), "partly"), ((9, 7, 6), False)],
)
def test_not_faster_with_more_clients(at: tuple[int, int, int], expected: Holds) -> None:
    runs = clients(n5=at[0], n30=at[1], fedveca=at[2], fedavg=10, fednova=10)
    assert holds(claims_svm.not_faster(runs)) == expected


def test_ahead_at_fifty_in_rounds_and_in_steps() -> None:
    def runs(ours: int, fednova: int, steps: int) -> dict[str, list[Run]]:
        found = clients(n5=9, n30=9, fedveca=ours, fedavg=10, fednova=fednova, steps=steps)
        found[claims_svm.FIFTY][0] = make("fedveca", falls(ours, low=LINE - 0.02), clients=50, tau_all=30)
        return found

    assert holds(claims_svm.ahead_at_fifty(runs(9, 10, 9))) is True  # one step per round: it has spent 9 in round 9
    assert holds(claims_svm.ahead_at_fifty(runs(9, 10, 8))) == "partly"  # in round 8 its loss is still high
    assert holds(claims_svm.ahead_at_fifty(runs(9, 9, 9))) == "partly"
    assert holds(claims_svm.ahead_at_fifty(runs(10, 10, 9))) is False
