"""The paper's studies on the digits, a few rounds each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedveca.runs.experiment import Experiment
from fedveca.runs.study import Study

Shrink = Callable[..., None]


@pytest.fixture
def shrink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shrink:
    """Every study on the digits, a few rounds each."""
    monkeypatch.chdir(tmp_path)
    whole = Study.experiment

    def to(**settings: Any) -> None:
        def experiment(study: Study) -> Experiment:
            e = replace(whole(study), data="digits", rounds=14, batch=8, tau_0=3, tau_max=5, hidden=4)
            return replace(e, model="svm" if e.model == "svm" else "mlp", **settings)

        monkeypatch.setattr(Study, "experiment", experiment)

    to()
    return to
