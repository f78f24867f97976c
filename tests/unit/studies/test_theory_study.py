"""The study of the theory: beta along the same steps, with and without noise."""

from __future__ import annotations

import pytest

from fedveca import Experiment
from studies.theory.run import follow_run, summarize_betas, summarize_conditions

E = Experiment(model="svm", partition="case3", rounds=6, batch=8, lr=0.05, tau_0=3, probe=0)


def test_the_recorded_beta_is_found_again_and_full_batches_have_no_noise() -> None:
    done, betas = follow_run(E)
    for of, record in zip(betas[1:], done.rounds[1:], strict=True):
        assert [b.recorded for b in of] == pytest.approx(record["beta"], rel=1e-4)
        assert all(1 <= b.at < tau for b, tau in zip(of, record["tau"], strict=True))
    found = summarize_betas(betas, done.rounds)
    assert (found["rounds"], found["maxima"]) == (4, 20)
    assert sum(found["full"]) < sum(found["recorded"])
    conditions = summarize_conditions(done.rounds)
    assert conditions["condition_drift"]["rounds"] == 5
    assert conditions["premise"]["lowest"] <= conditions["premise"]["median"] <= conditions["premise"]["highest"]
