"""The clients' rows: however few are prepared at a time, the model sees the same numbers."""

from __future__ import annotations

import threading

import pytest
import torch

from fedveca.cohorts.local import rows as rows_module
from fedveca.cohorts.local.rows import ClientRows
from fedveca.cohorts.local.threads import ThreadPool, use_one_thread
from fedveca.tasks.datasets.dataset import prepare
from fedveca.tasks.svm import SquaredSvm

G = torch.Generator().manual_seed(1)
IMAGES = torch.randint(0, 256, (90, 1, 6, 6), generator=G, dtype=torch.uint8)
LABELS, ORDER, CPU = torch.arange(90) % 10, torch.randperm(90, generator=G), torch.device("cpu")


@pytest.mark.parametrize("pixels", ["unit", "standardised", "as-is", "channels:0.4:0.3"])
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_pieces_and_blocks_are_the_prepared_rows(pixels: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_PIECE_ROWS", piece)
    monkeypatch.setattr(rows_module, "_PIECE_BYTES", 0)
    mine = ClientRows(IMAGES, LABELS, ORDER, pixels, CPU)
    want = prepare(IMAGES[ORDER], pixels)
    assert torch.equal(torch.cat([rows.clone() for rows in mine.pieces(5, 83)]), want[5:83])
    blocks = [(x.clone(), y) for x, y in mine.blocks(5, 78, 78, 40)]
    assert [len(y) for _, y in blocks] == [40, 38]
    assert torch.equal(torch.cat([x for x, _ in blocks]), want[5:83])
    assert torch.equal(torch.cat([y for _, y in blocks]), LABELS[ORDER][5:83])


def test_rows_that_are_ready_are_read_where_they_lie() -> None:
    ready = ClientRows(IMAGES.float(), LABELS, ORDER, "as-is", CPU)
    (x, _), *_ = ready.blocks(3, 50, 50, 50)
    assert x.data_ptr() == ready.x[3:].data_ptr()
    assert next(ready.pieces(3, 50)).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("numel", [784, 100, 37])
def test_scores_in_pieces_make_the_same_loss(numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each score has the bytes that it has in the whole block, whatever rows are beside it."""
    monkeypatch.setattr(rows_module, "_PIECE_BYTES", 2**19)  # several pieces of few rows
    svm, x, y = (
        SquaredSvm(numel),
        torch.randint(0, 256, (8001, numel), generator=G, dtype=torch.uint8),
        torch.arange(8001),
    )
    mine, w = ClientRows(x, y, y, "unit", CPU), torch.randn(numel, generator=G)
    with use_one_thread():
        for stop in (8001, 7990, 4099):
            loss, scores = svm.losses(w, prepare(x[:stop], "unit"), y[:stop])
            pieces = [rows @ w for rows in mine.pieces(0, stop)]
            assert len(pieces) > 1
            assert torch.equal(torch.cat(pieces), scores[:, 0])
            assert torch.equal(svm.close_loss(w, torch.cat(pieces), y[:stop]), loss)


def test_work_inside_a_thread_of_a_pool_stays_in_it() -> None:
    """Waiting there for threads of the same pool could be for ever."""
    pool = ThreadPool(2)

    def inner(_: int) -> int:
        return threading.get_ident()

    def outer(_: int) -> tuple[int, set[int]]:
        return threading.get_ident(), set(pool.map(inner, range(4)))

    found = list(pool.map(outer, range(4)))
    assert all(threads == {mine} for mine, threads in found)
    assert threading.get_ident() not in {mine for mine, _ in found}
