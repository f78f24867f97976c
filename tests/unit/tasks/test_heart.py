"""Heart disease in four hospitals: the rows, features and scale of FLamby's Fed-Heart-Disease."""

from __future__ import annotations

import hashlib
from importlib import resources

import torch

from fedveca import Experiment, run
from fedveca.runs.experiment import preset
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.datasets.heart import HOSPITALS, read_hospital, split_rows

TRAIN, TEST = [199, 172, 30, 85], [104, 89, 16, 45]  # as FLamby's page has them


def test_the_hospitals_have_flambys_rows() -> None:
    data = load("heart")
    assert data.writer is not None
    assert torch.bincount(data.writer).tolist() == TRAIN
    assert (data.x.shape, data.x_test.shape, data.classes) == ((486, 13), (254, 13), 2)
    for name, train, test in zip(HOSPITALS, TRAIN, TEST, strict=True):
        chosen = split_rows(read_hospital(name)[1])
        assert (int(chosen.sum()), int((~chosen).sum())) == (train, test)
    assert torch.bincount(data.y).tolist() == [234, 252]
    rows = hashlib.sha256(data.y.numpy().tobytes() + data.y_test.numpy().tobytes())
    assert rows.hexdigest()[:16] == "4c3ea849c4929252"  # the split of scikit-learn with seed 43


def test_features_by_hand() -> None:
    x, y = read_hospital("cleveland")  # 63,1,1,145,233,1,2,150,0,2.3,...,0 and 67,1,4,160,286,0,2,108,1,1.5,...,2
    assert x[0].tolist() == [63, 1, 145, 233, 1, 150, 0, torch.tensor(2.3), 0, 0, 0, 0, 1]
    assert x[1].tolist() == [67, 1, 160, 286, 0, 108, 1, 1.5, 0, 0, 1, 0, 1]
    assert y[:2].tolist() == [0, 1]
    assert [len(read_hospital(name)[1]) for name in HOSPITALS] == [303, 261, 46, 130]


def test_each_hospital_scales_by_its_own_training_rows() -> None:
    data = load("heart")
    assert data.writer is not None
    for client in range(4):
        rows = data.x[data.writer == client]
        assert float(rows.mean(0).abs().max()) < 1e-5
        assert all(abs(sd - 1) < 1e-4 or sd == 0 for sd in rows.std(0).tolist())  # cholesterol is 0 in Switzerland
    assert bool(torch.isfinite(data.x_test).all())
    assert float(data.x_test.abs().max()) < 10


def test_the_notice_is_in_the_package() -> None:
    notice = (resources.files("fedveca") / "tasks" / "datasets" / "heart_disease" / "NOTICE").read_text("utf-8")
    assert "Janosi" in notice
    assert "creativecommons.org/licenses/by/4.0" in notice


def test_the_preset_learns_with_a_hospital_per_client() -> None:
    done = run(Experiment(**preset("heart-logistic")))
    assert (done.summary["kept"]["test_accuracy"] or 0) > 0.65
    assert len(done.rounds[0]["ids"]) == 4
