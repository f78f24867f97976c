"""Partitions: METHOD.md's rules to the row, and every row with exactly one owner under all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.partition import RULES, Shares, label_counts, partition

CLASSES = 10


@pytest.fixture(scope="module")
def labels(mnist_dir: str) -> Tensor:
    return load("mnist", mnist_dir).y


def some(rows: int = 6000) -> Tensor:
    return torch.randint(0, CLASSES, (rows,), generator=torch.Generator().manual_seed(0))


def owners(shares: Shares, rows: int) -> Tensor:
    """[D]: who owns each row."""
    owner = torch.full((rows,), -1)
    for i in range(len(shares.sizes)):
        owner[shares.rows[shares.start[i] : shares.start[i + 1]]] = i
    return owner


def of_label(counts: Tensor, labels: int) -> list[set[int]]:
    """The clients that own rows of each label."""
    return [set(counts[:, label].nonzero()[:, 0].tolist()) for label in range(labels)]


# the paper's cases


def test_case1_deals_rows_in_turn(labels: Tensor) -> None:
    shares = partition("case1", labels, CLASSES, 5)
    assert torch.equal(owners(shares, len(labels)), torch.arange(60_000) % 5)


def test_case2_is_label_mod_clients(labels: Tensor) -> None:
    for clients in (1, 3, 5, 10):
        shares = partition("case2", labels, CLASSES, clients)
        assert torch.equal(owners(shares, len(labels)), labels % clients)


@pytest.mark.parametrize("clients", [11, 30, 50])
def test_case2_with_more_clients_than_labels_shares_each_label_evenly(labels: Tensor, clients: int) -> None:
    counts = label_counts(partition("case2", labels, CLASSES, clients), labels, CLASSES)
    for label, who in enumerate(of_label(counts, CLASSES)):
        assert who == set(range(label, clients, 10))
        assert int(counts[sorted(who), label].max() - counts[sorted(who), label].min()) <= 1


def test_case3_with_5_clients_is_the_papers(labels: Tensor) -> None:
    shares = partition("case3", labels, CLASSES, 5)
    assert shares.sizes.tolist() == [10199, 10199, 10198, 11769, 17635]
    assert torch.equal(shares.sizes, shares.start.diff())
    counts = label_counts(shares, labels, CLASSES)
    assert of_label(counts, CLASSES) == [{0, 1, 2}] * 5 + [{4}, {3}, {4}, {3}, {4}]
    assert counts.sum(0).tolist() == labels.bincount().tolist()
    low = (labels < 5).nonzero()[:, 0]  # in turn over the first three
    assert torch.equal(owners(shares, len(labels))[low], torch.arange(len(low)) % 3)


@pytest.mark.parametrize("clients", [2, 3, 9, 10, 11, 30, 50])
def test_case3_for_any_number_of_clients(labels: Tensor, clients: int) -> None:
    first, rest = -(-clients // 2), clients // 2
    shares = partition("case3", labels, CLASSES, clients)
    counts = label_counts(shares, labels, CLASSES)
    assert int(shares.sizes[:first].max() - shares.sizes[:first].min()) <= 1
    assert not counts[:first, 5:].any()
    for label in range(5, 10):
        who = counts[:, label].nonzero()[:, 0]
        if rest <= 5:
            assert who.tolist() == [first + label % rest]
        else:
            assert who.tolist() == list(range(first + label % 5, clients, 5))
            assert int(counts[who, label].max() - counts[who, label].min()) <= 1


# every rule


@given(
    st.sampled_from(sorted(RULES)),
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(0, 3),
    st.sampled_from([0.05, 1.0, 50.0]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([0.0, 1.0, 3.0]),
)
def test_every_row_has_one_owner_and_every_client_a_row(
    kind: str, y: list[int], clients: int, seed: int, concentration: float, shards: int, k: int, exponent: float
) -> None:
    label = torch.tensor(y)
    drawn = {"seed": seed, "concentration": concentration, "shards": shards, "writer": label}
    try:
        shares = partition(kind, label, 5, clients, labels_per_client=k, exponent=exponent, **drawn)  # type: ignore[arg-type]
    except ValueError:
        fits = clients * (shards if kind == "shards" else 1) <= len(y)
        never_empty = ("case1", "iid", "shards", "dirichlet_balanced", *(["power_law"] if exponent == 0 else []))
        assert not (fits and kind in never_empty)
        return
    assert sorted(shares.rows.tolist()) == list(range(len(y)))
    assert (int(shares.start[0]), int(shares.start[-1]), len(shares.start)) == (0, len(y), clients + 1)
    assert bool((shares.sizes > 0).all())
    for i in range(clients):
        mine = shares.rows[shares.start[i] : shares.start[i + 1]]
        assert bool((mine.diff() > 0).all())
    counts = label_counts(shares, label, 5)
    assert counts.sum(1).tolist() == shares.sizes.tolist()
    assert counts.sum(0).tolist() == torch.bincount(label, minlength=5).tolist()


@pytest.mark.parametrize("kind", sorted(set(RULES) - {"case1", "case2", "case3", "writer"}))
def test_chance_is_the_seeds_alone(kind: str) -> None:
    y = some()
    torch.manual_seed(1)
    one = partition(kind, y, CLASSES, 8, seed=3)
    torch.manual_seed(2)
    assert torch.equal(one.rows, partition(kind, y, CLASSES, 8, seed=3).rows)
    assert not torch.equal(one.rows, partition(kind, y, CLASSES, 8, seed=4).rows)


def test_label_counts_by_hand() -> None:
    shares = Shares(torch.tensor([0, 3, 1, 2, 4]), torch.tensor([0, 2, 5]))
    assert label_counts(shares, torch.tensor([0, 2, 2, 1, 0]), 4).tolist() == [[1, 1, 0, 0], [1, 0, 2, 0]]


# the rules beside the paper's


def test_iid_clients_are_alike_in_size_and_labels() -> None:
    y = some()
    shares = partition("iid", y, CLASSES, 7)
    assert int(shares.sizes.max() - shares.sizes.min()) <= 1
    share = label_counts(shares, y, CLASSES) / shares.sizes[:, None]
    assert float((share - 0.1).abs().max()) < 0.04


def test_dirichlet_concentration_moves_labels_apart() -> None:
    y = some()

    def apart(concentration: float) -> float:
        """The mean distance of a client's label shares from all clients' shares."""
        counts = label_counts(partition("dirichlet", y, CLASSES, 10, concentration=concentration), y, CLASSES).double()
        return float((counts / counts.sum(1, keepdim=True) - counts.sum(0) / len(y)).abs().sum(1).mean() / 2)

    assert apart(0.1) > apart(1.0) + 0.1 > apart(100.0) + 0.2
    assert apart(100.0) < 0.1


def test_dirichlet_cuts_follow_its_proportions() -> None:
    """Over many seeds a client's share of a label has Dirichlet's mean 1/N and variance (N-1) / (N^2 (N c + 1))."""
    y, c, n = torch.zeros(1000, dtype=torch.int64), 2.0, 4
    drawn = [partition("dirichlet", y, 1, n, seed=seed, concentration=c).sizes / len(y) for seed in range(300)]
    shares = torch.stack(drawn)
    assert shares.mean(0).tolist() == pytest.approx([0.25] * 4, abs=0.03)
    assert float(shares.var(0).mean()) == pytest.approx((n - 1) / (n**2 * (n * c + 1)), rel=0.15)


def test_quantity_concentration_moves_sizes_and_not_labels() -> None:
    y = some()

    def largest(concentration: float) -> int:
        return int(partition("quantity", y, CLASSES, 10, concentration=concentration).sizes.max())

    assert largest(0.5) > 1.5 * largest(5.0) > 1.5 * 600
    assert largest(5000.0) < 650
    shares = partition("quantity", y, CLASSES, 4)
    share = label_counts(shares, y, CLASSES)[shares.sizes.argmax()] / shares.sizes.max()
    assert float((share - 0.1).abs().max()) < 0.04


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_shards_give_each_client_its_pieces(shards: int) -> None:
    y = torch.arange(10).repeat(60)  # 60 rows a label; with 10 clients a piece lies within one label
    shares = partition("shards", y, CLASSES, 10, shards=shards)
    counts = label_counts(shares, y, CLASSES)
    assert shares.sizes.tolist() == [60] * 10
    assert bool((counts % (60 // shards) == 0).all())
    assert int((counts > 0).sum(1).max()) <= shards


@given(
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(0, 5),
)
def test_labels_gives_each_client_exactly_k_and_divides_each_evenly(
    clients: int, classes: int, k: int, seed: int
) -> None:
    y = torch.arange(classes).repeat(40)[torch.randperm(40 * classes, generator=torch.Generator().manual_seed(seed))]
    if k > classes or clients * k < classes:
        with pytest.raises(ValueError, match="labels_per_client="):
            partition("labels", y, classes, clients, seed=seed, labels_per_client=k)
        return
    counts = label_counts(partition("labels", y, classes, clients, seed=seed, labels_per_client=k), y, classes)
    assert (counts > 0).sum(1).tolist() == [k] * clients
    for i in range(clients):
        assert int(counts[i, i % classes]) > 0  # NIID-Bench gives client i the label i mod C
    for label, who in enumerate(of_label(counts, classes)):
        mine = counts[sorted(who), label]
        assert who
        assert int(mine.max() - mine.min()) <= 1


def test_labels_draws_the_other_labels_at_random() -> None:
    """Over many seeds, client 0 has each of the other labels equally often."""
    y = torch.arange(5).repeat(40)
    seen = torch.zeros(5)
    for seed in range(200):
        seen += label_counts(partition("labels", y, 5, 5, seed=seed, labels_per_client=2), y, 5)[0] > 0
    assert seen[0] == 200
    assert seen[1:].tolist() == pytest.approx([50.0] * 4, abs=25)


def test_labels_that_have_no_rows_are_not_counted() -> None:
    y = torch.tensor([1, 3]).repeat(20)
    counts = label_counts(partition("labels", y, CLASSES, 3, labels_per_client=1), y, CLASSES)
    assert of_label(counts, 4) == [set(), {0, 2}, set(), {1}]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=200),
    st.integers(1, 20),
    st.sampled_from([1e-4, 0.3, 1.0, 100.0]),
    st.integers(0, 3),
)
def test_dirichlet_balanced_gives_all_clients_as_many_rows(y: list[int], clients: int, c: float, seed: int) -> None:
    label = torch.tensor(y)
    clients = min(clients, len(y))
    sizes = partition("dirichlet_balanced", label, 5, clients, seed=seed, concentration=c).sizes
    assert int(sizes.max() - sizes.min()) <= 1
    assert int(sizes.sum()) == len(y)


def test_dirichlet_balanced_moves_labels_apart_at_equal_sizes() -> None:
    y = torch.arange(CLASSES).repeat(600)

    def largest(concentration: float) -> float:
        """The mean share of a client's most frequent label."""
        shares = partition("dirichlet_balanced", y, CLASSES, 10, concentration=concentration)
        return float((label_counts(shares, y, CLASSES).double() / 600).max(1).values.mean())

    assert largest(0.05) > largest(0.5) + 0.05 > largest(5.0) + 0.15
    assert largest(1000.0) < 0.15


def test_dirichlet_balanced_follows_its_mix_while_labels_last() -> None:
    """The mean of a label's share and its variance are the Dirichlet's, less what equal sums take."""
    y, c, n = torch.arange(2).repeat(600), 5.0, 4
    shares = torch.stack(
        [
            label_counts(partition("dirichlet_balanced", y, 2, n, seed=seed, concentration=c), y, 2)[:, 0] / 300
            for seed in range(80)
        ]
    )
    assert float(shares.mean()) == pytest.approx(0.5)  # exactly: the labels are divided among the four
    free = 1 / (4 * (2 * c + 1))  # variance of Dirichlet(c, c); that the four sum to 2 takes a quarter of it
    assert float(shares.var(0).mean()) == pytest.approx(0.75 * free, rel=0.35)


def test_dirichlet_niid_stops_at_the_even_share_and_leaves_at_least_ten_rows() -> None:
    y = some()
    for seed in range(10):
        shares = partition("dirichlet_niid", y, CLASSES, 10, seed=seed, concentration=0.5)
        assert int(shares.sizes.min()) >= 10
        counts = label_counts(shares, y, CLASSES).cumsum(1)
        for label in range(1, CLASSES):
            full = counts[:, label - 1] >= len(y) / 10  # before this label
            assert torch.equal(counts[full, label], counts[full, label - 1])


def test_dirichlet_niid_without_full_clients_is_dirichlet() -> None:
    """One label: no client is full before it, so that its shares have Dirichlet's mean and variance."""
    y, c, n = torch.zeros(1000, dtype=torch.int64), 2.0, 4
    drawn = [partition("dirichlet_niid", y, 1, n, seed=seed, concentration=c).sizes / len(y) for seed in range(300)]
    shares = torch.stack(drawn)
    assert shares.mean(0).tolist() == pytest.approx([0.25] * 4, abs=0.03)
    assert float(shares.var(0).mean()) == pytest.approx((n - 1) / (n**2 * (n * c + 1)), rel=0.2)


def test_quantity_sizes_are_one_draw_of_dirichlet() -> None:
    """q ~ Dir(c) over the clients, as in NIID-Bench: mean 1/N and variance (N-1) / (N^2 (N c + 1))."""
    y, c, n = some(1000), 2.0, 4
    shares = torch.stack(
        [partition("quantity", y, CLASSES, n, seed=s, concentration=c).sizes / 1000 for s in range(300)]
    )
    assert shares.mean(0).tolist() == pytest.approx([0.25] * 4, abs=0.03)
    assert float(shares.var(0).mean()) == pytest.approx((n - 1) / (n**2 * (n * c + 1)), rel=0.15)


@given(st.integers(1, 30), st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.integers(0, 3))
def test_power_law_sizes_fall_by_rank(clients: int, exponent: float, seed: int) -> None:
    y = some(3000)
    weight = torch.arange(1, clients + 1, dtype=torch.float64) ** -exponent
    sizes = partition("power_law", y, CLASSES, clients, seed=seed, exponent=exponent).sizes
    assert float((sizes - 3000 * weight / weight.sum()).abs().max()) <= 1


def test_power_law_clients_have_all_labels_alike() -> None:
    y = some()
    shares = partition("power_law", y, CLASSES, 4)
    share = label_counts(shares, y, CLASSES) / shares.sizes[:, None]
    assert float((share - 0.1).abs().max()) < 0.05


def test_writers_keep_their_rows_together() -> None:
    data = load("synthetic", clients=6)
    assert data.writer is not None
    alone = partition("writer", data.y, CLASSES, 6, writer=data.writer)
    assert torch.equal(owners(alone, len(data.y)), data.writer)
    pairs = partition("writer", data.y, CLASSES, 4, writer=data.writer)
    assert torch.equal(owners(pairs, len(data.y)), data.writer % 4)


# refusals


@pytest.mark.parametrize(
    ("kind", "clients", "said"),
    [
        ("case7", 5, "partition=case7 is not known; it is one of case1, case2, "),
        ("case1", 7, "clients=7 is more than the 6 training rows"),
        ("case2", 4, "partition=case2 leaves 2 of 4 clients without a row; take fewer clients$"),
        ("case3", 1, "clients=1 does not fit partition=case3; it needs at least 2"),
        ("shards", 4, "clients=4 with shards=2 asks for more pieces than 6 rows"),
        ("labels", 4, "partition=labels gives label 0 to 4 clients, and it has 3 rows; take fewer clients"),
        ("power_law", 6, r"partition=power_law leaves \d of 6 clients without a row; .* or a smaller exponent"),
        (
            "dirichlet_niid",
            2,
            "partition=dirichlet_niid leaves 2 of 2 clients without 10 rows; .* larger concentration",
        ),
        ("writer", 2, "partition=writer needs data that know who wrote each row"),
    ],
)
def test_refused(kind: str, clients: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        partition(kind, torch.tensor([0, 1, 0, 1, 0, 1]), CLASSES, clients)


@pytest.mark.parametrize("kind", ["dirichlet", "quantity"])
def test_a_draw_that_leaves_a_client_empty_is_drawn_again_and_then_refused(kind: str) -> None:
    y = some(100)
    with pytest.raises(ValueError, match=rf"partition={kind} leaves \d+ of 50 clients .* or a larger concentration"):
        partition(kind, y, CLASSES, 50, concentration=0.01)
    for seed in range(20):
        assert partition(kind, y, CLASSES, 9, seed=seed, concentration=2.0).sizes.min() > 0


def test_more_clients_than_writers_are_refused() -> None:
    who = torch.tensor([0, 0, 1, 1, 2])
    with pytest.raises(ValueError, match="clients=4 is more than the 3 writers"):
        partition("writer", who, CLASSES, 4, writer=who)
