"""Which client owns which rows: labels -> shares, as flat arrays however many the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedveca.errors import UserError

_TURNS = 20  # in which dirichlet_balanced deals the rows, at most


class Shares(NamedTuple):
    """Rows grouped by client: those of client i are rows[start[i]:start[i + 1]], in rising order."""

    rows: Tensor  # [D] int64
    start: Tensor  # [N + 1] int64

    @property
    def sizes(self) -> Tensor:
        return self.start.diff()


class Deal(NamedTuple):
    """What a rule deals from."""

    y: Tensor  # [D] labels
    classes: int
    clients: int
    generator: torch.Generator
    concentration: float  # Dirichlet: small is uneven
    shards: int  # per client
    labels_per_client: int
    exponent: float  # power_law: how fast sizes fall
    writer: Tensor | None  # [D] who wrote each row


class PartitionRule(NamedTuple):
    """A rule that can be named."""

    deal: Callable[[Deal], Tensor]  # -> [D]: the client that owns each row
    text: str
    random: bool  # whether it deals again where a client has fewer rows than `fewest`
    needs: Literal["", "number", "label"]  # what y must hold for each row, where it matters
    fewest: int  # rows of a client


RULES: dict[str, PartitionRule] = {}


def rule(
    text: str, *, random: bool = False, needs: Literal["", "number", "label"] = "", fewest: int = 1
) -> Callable[[Callable[[Deal], Tensor]], Callable[[Deal], Tensor]]:
    """Registers the function below it as the partition of its name."""

    def register(deal: Callable[[Deal], Tensor]) -> Callable[[Deal], Tensor]:
        RULES[deal.__name__] = PartitionRule(deal, text, random, needs, fewest)
        return deal

    return register


def partition(
    kind: str,
    y: Tensor,
    classes: int,
    clients: int,
    *,
    seed: int = 0,
    concentration: float = 0.5,
    shards: int = 2,
    labels_per_client: int = 2,
    exponent: float = 1.0,
    writer: Tensor | None = None,
) -> Shares:
    """Deals rows to clients by a rule; no client is left without one.

    Args:
        kind: One of RULES.
        y: [D] targets of the rows.
        classes: Number of labels.
        clients: Number of clients.
        seed: Of the rules that draw.
        concentration: Of the rules that draw from a Dirichlet distribution: small is uneven.
        shards: Pieces of each client, for shards.
        labels_per_client: Labels of each client, for labels.
        exponent: How fast the clients' sizes fall, for power_law; with 0 they are equal.
        writer: [D] who wrote each row, for writer.

    Returns:
        The rows of each client.

    Raises:
        UserError: Where the rule does not fit the data, or leaves a client without a row.
    """
    if kind not in RULES:
        raise UserError(f"partition={kind} is not known; it is one of {', '.join(RULES)}")
    chosen = RULES[kind]
    if (chosen.needs == "label" and y.is_floating_point()) or (chosen.needs and y.dim() > 1):
        raise UserError(
            f"partition={kind} needs one label per row, and y is {y.dtype} {list(y.shape)}; "
            "take case1, iid, quantity, writer, or custom lists of rows"
            + ("; if y are labels, make them whole numbers" if y.is_floating_point() else "")
        )
    if clients > len(y):
        raise UserError(f"clients={clients} is more than the {len(y)} training rows; at most one client per row")
    for attempt in range(20):  # random rules may give a client too few rows: deal again
        generator = torch.Generator().manual_seed((seed * 1_000_003 + attempt) % 2**63)
        owner = chosen.deal(
            Deal(y, classes, clients, generator, concentration, shards, labels_per_client, exponent, writer)
        )
        sizes = torch.bincount(owner, minlength=clients)
        if bool((sizes >= chosen.fewest).all()):
            start = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
            return Shares(torch.argsort(owner, stable=True), start)
        if not chosen.random:
            break
    few = "a row" if chosen.fewest == 1 else f"{chosen.fewest} rows"
    other = " or a larger concentration" if chosen.random else " or a smaller exponent" if kind == "power_law" else ""
    raise UserError(
        f"partition={kind} leaves {int((sizes < chosen.fewest).sum())} of {clients} clients without {few}; "
        f"take fewer clients{other}"
    )


def from_lists(lists: Any, rows: int) -> Shares:
    """Shares as the user lists them: the rows of client 0, of client 1, ..., of `rows` in all."""
    if isinstance(lists, str | bytes) or not isinstance(lists, Sequence | np.ndarray) or not len(lists):
        raise UserError(f"partition is {type(lists).__name__}; it is a list that holds each client's rows")
    mine = []
    for i, rows_i in enumerate(lists):
        try:
            listed = np.asarray(rows_i)
        except ValueError as error:
            raise UserError(f"partition: client {i} has no list of row numbers: {error}") from error
        if listed.size and listed.dtype.kind not in "buif":
            kind = type(rows_i).__name__
            raise UserError(f"partition: client {i} has {kind} of {listed.dtype}; row numbers [n] are needed")
        index = torch.as_tensor(listed.astype(np.int64) if listed.dtype.kind in "ui" else listed)
        if index.numel() == 0:
            raise UserError(f"partition leaves client {i} without a row")
        if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise UserError(f"partition: client {i} has {index.dtype} {list(index.shape)}; row numbers [n] are needed")
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= rows:
            bad = low if low < 0 else high
            raise UserError(f"partition: client {i} has row {bad}; there are rows 0 to {rows - 1} to train on")
        mine.append(index.long().sort().values)
        if bool((mine[-1].diff() == 0).any()):
            raise UserError(f"partition: client {i} has a row twice")
    sizes = torch.tensor([len(index) for index in mine])
    return Shares(torch.cat(mine), torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))


def label_counts(shares: Shares, y: Tensor, classes: int) -> Tensor:
    """[N, C]: how many rows of each label a client owns; [N, 1] rows where a row does not have one label."""
    if y.dim() > 1 or y.is_floating_point():
        return shares.sizes[:, None]
    clients = len(shares.start) - 1
    owner = torch.repeat_interleave(torch.arange(clients), shares.sizes)
    return torch.bincount(owner * classes + y[shares.rows], minlength=clients * classes).view(clients, classes)


def rank_within(y: Tensor, classes: int) -> Tensor:
    """[D]: how many earlier rows have the same label."""
    order = torch.argsort(y, stable=True)
    counts = torch.bincount(y, minlength=classes)
    first = (counts.cumsum(0) - counts)[y[order]]
    rank = torch.empty_like(y)
    rank[order] = torch.arange(len(y)) - first
    return rank


def by_label(label: Tensor, rank: Tensor, labels: int, clients: int) -> Tensor:
    """Label mod N; with more clients than labels, the clients of one label share its rows in turn."""
    if clients <= labels:
        return label % clients
    first = label % labels
    sharing = (clients - 1 - first) // labels + 1  # clients first, first + labels, ... below N
    return first + labels * (rank % sharing)


@rule("rows in turn to the clients: all alike (the paper's Case 1)")
def case1(d: Deal) -> Tensor:
    return torch.arange(len(d.y)) % d.clients


@rule("each client has its own labels (the paper's Case 2)", needs="label")
def case2(d: Deal) -> Tensor:
    return by_label(d.y, rank_within(d.y, d.classes), d.classes, d.clients)


@rule("half of the clients share the first labels, the others have their own (Case 3)", needs="label")
def case3(d: Deal) -> Tensor:
    if d.clients < 2:
        raise UserError("clients=1 does not fit partition=case3; it needs at least 2")
    half, first = d.classes // 2, (d.clients + 1) // 2
    low = d.y < half
    even = (low.cumsum(0) - 1) % first  # the first half of the labels in turn over the first clients
    rank = rank_within(d.y, d.classes)
    return torch.where(low, even, first + by_label(d.y, rank, d.classes - half, d.clients - first))


@rule("rows at random")
def iid(d: Deal) -> Tensor:
    return torch.randperm(len(d.y), generator=d.generator) % d.clients


@rule("the shares of each label are drawn from Dirichlet(concentration)", random=True, needs="label")
def dirichlet(d: Deal) -> Tensor:
    """Each label's rows are cut among the clients in proportions drawn from Dirichlet(concentration)."""
    shares = _dirichlet(d.concentration, (d.classes, d.clients), d.generator)
    rank, count = rank_within(d.y, d.classes), torch.bincount(d.y, minlength=d.classes)
    at = (rank.double() + 0.5) / count[d.y]  # the row's place in its label, in (0, 1)
    owner = torch.empty_like(d.y)
    for label in range(d.classes):
        mine = d.y == label
        order = torch.randperm(int(mine.sum()), generator=d.generator)
        owner[mine] = torch.searchsorted(shares[label].cumsum(0), at[mine][order]).clamp(max=d.clients - 1)
    return owner


@rule("dirichlet as NIID-Bench draws it: a full client gets no further label", random=True, needs="label", fewest=10)
def dirichlet_niid(d: Deal) -> Tensor:
    """Label after label, a client that has its even share D / N of the rows gets none of the labels that follow."""
    owner, sizes = torch.empty_like(d.y), torch.zeros(d.clients, dtype=torch.int64)
    for label in range(d.classes):
        mine = (d.y == label).nonzero()[:, 0]
        room = (sizes * d.clients < len(d.y)).double()
        shares = _dirichlet(d.concentration, (d.clients,), d.generator) * room
        shares = shares if float(shares.sum()) > 0 else room
        edges = (shares / shares.sum().clamp(min=1e-300)).cumsum(0)
        at = (torch.randperm(len(mine), generator=d.generator).double() + 0.5) / len(mine)
        owner[mine] = torch.searchsorted(edges, at).clamp(max=d.clients - 1)
        sizes += torch.bincount(owner[mine], minlength=d.clients)
    return owner


@rule("clients of equal size, the labels of each drawn from Dirichlet(concentration)", needs="label")
def dirichlet_balanced(d: Deal) -> Tensor:
    """Each client draws its mix of labels and takes its rows by it, in turns: so no client is left with the rest."""
    mix = _dirichlet(d.concentration, (d.clients, d.classes), d.generator)
    left = torch.bincount(d.y, minlength=d.classes)
    sizes = len(d.y) // d.clients + (torch.arange(d.clients) < len(d.y) % d.clients).long()
    counts = torch.zeros(d.clients, d.classes, dtype=torch.int64)
    turns = max(1, min(_TURNS, int(sizes[0])))
    for turn in range(turns):
        wanted = sizes * (turn + 1) // turns - sizes * turn // turns
        for i in torch.randperm(d.clients, generator=d.generator).tolist():
            need = int(wanted[i])
            while need:
                weight = mix[i] * (left > 0)
                weight = weight if float(weight.sum()) > 0 else left.double()  # its own labels have run out
                drawn = torch.multinomial(weight, need, replacement=True, generator=d.generator)
                got = torch.minimum(torch.bincount(drawn, minlength=d.classes), left)
                counts[i] += got
                left -= got
                need -= int(got.sum())
    owner = torch.empty_like(d.y)
    for label in range(d.classes):
        whose = torch.arange(d.clients).repeat_interleave(counts[:, label])
        owner[d.y == label] = whose[torch.randperm(len(whose), generator=d.generator)]
    return owner


@rule("each client has `labels_per_client` labels, each label divided evenly among its clients", needs="label")
def labels(d: Deal) -> Tensor:
    """Client i has label i mod C and others at random, as in NIID-Bench; fewer clients than labels share them all."""
    known = torch.unique(d.y)  # labels that have rows
    count, k = len(known), d.labels_per_client
    if k > count:
        raise UserError(f"labels_per_client={k} is more than the {count} labels of the rows")
    if d.clients * k < count:
        raise UserError(
            f"clients={d.clients} with labels_per_client={k} leave labels without a client; {count} labels need "
            f"labels_per_client={-(-count // d.clients)} or more"
        )
    has = torch.zeros(d.clients, count, dtype=torch.bool)
    for i in range(d.clients):
        has[i, i % count :: max(1, d.clients)] = True
        others = torch.randperm(count, generator=d.generator)
        others = others[~has[i, others]]
        has[i, others[: k - int(has[i].sum())]] = True
    owner = torch.empty_like(d.y)
    for at, label in enumerate(known.tolist()):
        mine, whose = d.y == label, has[:, at].nonzero()[:, 0]
        rows = int(mine.sum())
        if rows < len(whose):
            raise UserError(
                f"partition=labels gives label {label} to {len(whose)} clients, and it has {rows} rows; "
                "take fewer clients or labels_per_client"
            )
        owner[mine] = whose[torch.randperm(rows, generator=d.generator) % len(whose)]
    return owner


@rule("sorted by label and cut into pieces, `shards` for each client", needs="number")
def shards(d: Deal) -> Tensor:
    """Rows sorted by label (or by a number to predict) are cut into clients x shards equal pieces, dealt at random."""
    pieces = d.clients * d.shards
    if pieces > len(d.y):
        raise UserError(f"clients={d.clients} with shards={d.shards} asks for more pieces than {len(d.y)} rows")
    deal = torch.randperm(pieces, generator=d.generator) % d.clients
    owner = torch.empty(len(d.y), dtype=torch.int64)
    owner[torch.argsort(d.y, stable=True)] = deal[torch.arange(len(d.y)) * pieces // len(d.y)]
    return owner


@rule("alike but for their sizes, drawn from Dirichlet(concentration)", random=True)
def quantity(d: Deal) -> Tensor:
    """IID labels, sizes in proportions drawn from Dirichlet(concentration)."""
    edges = _dirichlet(d.concentration, (d.clients,), d.generator).cumsum(0)
    at = (torch.randperm(len(d.y), generator=d.generator).double() + 0.5) / len(d.y)
    return torch.searchsorted(edges, at).clamp(max=d.clients - 1)


@rule("alike but for their sizes, which fall as 1 / rank^exponent")
def power_law(d: Deal) -> Tensor:
    """IID labels; client i has a share of the rows in proportion to (i + 1)^-exponent, within one row."""
    weight = torch.arange(1, d.clients + 1, dtype=torch.float64) ** -d.exponent
    at = (torch.randperm(len(d.y), generator=d.generator).double() + 0.5) / len(d.y)
    return torch.searchsorted((weight / weight.sum()).cumsum(0), at).clamp(max=d.clients - 1)


@rule("each row to who wrote it")
def writer(d: Deal) -> Tensor:
    """Each row to who wrote it; with fewer clients than writers, writers in turn."""
    if d.writer is None:
        raise UserError(
            "partition=writer needs data that know who wrote each row: from_arrays(..., writer=...), heart, "
            "shakespeare and synthetic do, mnist does once `fedveca data get qmnist` has found QMNIST's labels"
        )
    writers = int(d.writer.max()) + 1
    if d.clients > writers:
        raise UserError(f"clients={d.clients} is more than the {writers} writers of the data")
    return d.writer % d.clients


def _dirichlet(concentration: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Proportions that sum to 1 over the last axis."""
    alpha = torch.full(shape, concentration, dtype=torch.float64)
    gamma = torch._standard_gamma(alpha, generator=generator)
    return gamma / gamma.sum(-1, keepdim=True).clamp(min=1e-300)
