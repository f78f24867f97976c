"""The paper's result on real MNIST, one seed: METHOD.md's table has five."""

from __future__ import annotations

import pytest
from recorded import require_number

from fedveca.runs.compare import compare
from fedveca.runs.experiment import Experiment, preset
from fedveca.runs.folder import Run


@pytest.mark.slow
def test_fedveca_reaches_the_papers_svm_and_leads_fedavg(
    mnist_dir: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    e = Experiment(**(preset("svm-mnist-case3") | {"rounds": 100, "probe": 1024, "data_dir": mnist_dir}))
    out = tmp_path_factory.mktemp("svm")
    fedveca, fedavg = compare(e, 1, out, methods=("fedveca", "fedavg"), device="cpu")
    kept, rival = fedveca.summary["kept"], fedavg.summary["kept"]
    assert kept["test_accuracy"] == pytest.approx(0.8679, abs=0.006)
    assert kept["test_loss"] == pytest.approx(0.2220, abs=0.006)
    assert rival["test_accuracy"] == pytest.approx(0.8583, abs=0.006)
    assert rival["test_loss"] == pytest.approx(0.2308, abs=0.006)

    steps = fedveca.summary["tau_all"]
    assert fedavg.experiment.tau_all == steps
    assert steps - 5 * 100 < fedavg.summary["tau_all"] <= steps  # the floor of each client's share, each round
    assert require_number(rival, "test_accuracy") < require_number(kept, "test_accuracy")
    assert require_number(rival, "test_loss") > require_number(kept, "test_loss")
    assert Run.open(out / "fedveca-seed0").rounds[0]["ids"] == [0, 1, 2, 3, 4]
