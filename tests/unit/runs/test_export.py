"""Models for other programs, and predictions: the same scores as the run's own, and one sentence where they fail."""

from __future__ import annotations

import json
import re
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedveca import Experiment, Run, UserError, from_arrays, run
from fedveca.cli import main
from fedveca.runs.export import export_run
from fedveca.runs.predict import predict_file, predict_test, summarize
from fedveca.runs.rebuild import RebuiltModel
from fedveca.runs.value_text import format_value
from fedveca.tasks.datasets.dataset import load

E = Experiment(data="digits", hidden=8, rounds=2, batch=16, tau_0=2, lr=0.05)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 9, (60, 6))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Small runs of several models, opened from their folders."""
    home = tmp_path_factory.mktemp("runs")
    text = from_arrays(TOKENS[:, :-1], TOKENS[:, 1:], tokens=True, name="text")
    numbers = from_arrays(RNG.normal(size=(90, 3)), RNG.normal(size=90), name="numbers")
    for name in ("svm", "mlp", "cnn", "resnet18"):
        run(replace(E, model=name, hidden=4), home / name)
    for name in ("lstm", "gpt"):
        run(replace(E, model=name, partition="iid", layers=1), home / name, data=text)
    run(replace(E, partition="iid", lr=0.001), home / "numbers", data=numbers)
    run(E, home / "custom", model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    return {path.name: Run.open(path) for path in home.iterdir()}


def rows(model: RebuiltModel, n: int) -> Tensor:
    shape = (n, *model.form["shape"])
    g = torch.Generator().manual_seed(3)
    return torch.randint(0, 9, shape, generator=g) if model.form["tokens"] else torch.rand(shape, generator=g)


@pytest.mark.parametrize("name", ["svm", "mlp", "cnn", "resnet18"])
def test_predictions_of_the_test_rows_have_the_runs_accuracy(runs: dict[str, Run], name: str) -> None:
    found = predict_test(runs[name])
    assert found.measures["accuracy"] == pytest.approx(runs[name].summary["kept"]["test_accuracy"])
    assert found.classes is not None
    assert found.classes.shape == (359,)


@pytest.mark.parametrize("model", ["mlp", "svm"])
def test_predictions_have_every_metric_of_the_run(model: str, tmp_path: Path) -> None:
    """Of the test rows, the values that the run recorded; a table of counts among them."""
    e = replace(E, model=model, metric="f1,accuracy,perplexity,confusion")
    done = run(e, tmp_path / "run")
    found = predict_test(Run.open(tmp_path / "run"))
    kept = done.summary["kept"]
    assert list(found.measures) == ["f1", "accuracy", "perplexity", "confusion"]
    for name in ("f1", "accuracy", "perplexity"):
        assert found.measures[name] == pytest.approx(kept[f"test_{name}"])  # type: ignore[literal-required]
    assert summarize(found, 3, "").startswith(f"359 rows, f1 {format_value('test_f1', kept['test_f1'])}, accuracy ")
    assert "confusion" not in summarize(found, 3, "")
    assert found.values()["confusion"] == kept["test_confusion"]


def test_a_metric_that_is_custom_leaves_the_others(tmp_path: Path) -> None:
    def sure(scores: Tensor, y: Tensor) -> Tensor:
        return (scores.amax(-1) > 1).float()

    run(E, tmp_path / "run", metric=[sure, "f1"])
    assert list(predict_test(Run.open(tmp_path / "run")).measures) == ["f1"]
    run(E, tmp_path / "alone", metric=sure)
    assert list(predict_test(Run.open(tmp_path / "alone")).measures) == ["accuracy"]


def test_a_label_that_the_model_does_not_know(runs: dict[str, Run], tmp_path: Path) -> None:
    x = load("digits").x_test.numpy()[:3]
    np.savez(tmp_path / "xy.npz", x=x, y=np.array([0, 10, 1]))
    with pytest.raises(UserError, match="y holds the label 10; the model knows 0 to 9"):
        predict_file(runs["mlp"], tmp_path / "xy.npz")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["svm", "mlp", "cnn", "resnet18", "lstm", "gpt", "numbers"])
def test_onnx_gives_the_scores_of_pytorch(runs: dict[str, Run], name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    size = export_run(runs[name], "onnx", tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size == size
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    model = RebuiltModel(runs[name])
    for n in (1, 5):
        x = rows(model, n)
        (scores,) = session.run(["scores"], {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(scores), model.predict(x).scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["svm", "mlp", "cnn", pytest.param("resnet18", marks=pytest.mark.slow), "lstm", "gpt"])
def test_torchscript_gives_the_scores_of_pytorch(runs: dict[str, Run], name: str, tmp_path: Path) -> None:
    export_run(runs[name], "torchscript", tmp_path / "m.pt")
    model = RebuiltModel(runs[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.load(tmp_path / "m.pt")  # type: ignore[no-untyped-call]
    x = rows(model, 5)
    torch.testing.assert_close(traced(x), model.predict(x).scores, rtol=1e-5, atol=1e-5)


def test_a_model_of_normalised_channels_says_how_rows_are_prepared(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 2, 8, 8)).astype(np.uint8), rng.integers(0, 3, 60)
    x[:, 1] //= 2
    data = from_arrays(x, y, test=(x[:20], y[:20]), name="colours")
    e = replace(E, model="cnn", pixels="channels", partition="iid", augment="flip")
    done = run(e, tmp_path / "run", data=data)
    values = x.astype(np.float64) / 255
    mean, sd = (",".join(f"{v:.6g}" for v in part) for part in (values.mean((0, 2, 3)), values.std((0, 2, 3))))
    assert done.environment["rows"]["pixels"] == f"channels:{mean}:{sd}"
    np.savez(tmp_path / "xy.npz", x=x[:20], y=y[:20])
    found = predict_file(Run.open(tmp_path / "run"), tmp_path / "xy.npz")
    assert found.measures["accuracy"] == pytest.approx(done.summary["kept"]["test_accuracy"])
    export_run(Run.open(tmp_path / "run"), "torchscript", tmp_path / "m.pt")
    note = {"pixels": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.load(tmp_path / "m.pt", _extra_files=note)  # type: ignore[no-untyped-call]
    assert note == {"pixels": f"channels:{mean}:{sd}".encode()}


def test_safetensors_are_for_every_run(runs: dict[str, Run], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    export_run(runs["custom"], "safetensors", tmp_path / "m.safetensors")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)


def test_files_of_rows(runs: dict[str, Run], tmp_path: Path) -> None:
    data = load("digits")
    x = data.x_test.numpy()
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "xy.npz", x=x.astype(">f8"), y=data.y_test.numpy())
    plain, known = predict_file(runs["mlp"], tmp_path / "x.npy"), predict_file(runs["mlp"], tmp_path / "xy.npz")
    assert plain.measures == {}
    assert known.measures["accuracy"] == pytest.approx(runs["mlp"].summary["kept"]["test_accuracy"])
    assert torch.equal(plain.scores, known.scores)
    np.savez(tmp_path / "numbers.npz", x=np.ones((4, 3)), y=np.zeros(4))
    found = predict_file(runs["numbers"], tmp_path / "numbers.npz")
    assert found.classes is None
    assert found.measures["absolute_error"] == pytest.approx(float(found.scores.abs().mean()))
    np.save(tmp_path / "tokens.npy", TOKENS[:7, :-1].astype(np.int32))
    text = predict_file(runs["gpt"], tmp_path / "tokens.npy")
    assert text.classes is not None
    assert text.classes.shape == (7, 5)


def test_bytes_are_prepared_as_in_training(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    run(replace(E, partition="iid"), tmp_path / "r", data=from_arrays(images, np.arange(40) % 4, name="images"))
    np.save(tmp_path / "bytes.npy", images)
    np.save(tmp_path / "floats.npy", images.astype(np.float32) / 255)
    opened = Run.open(tmp_path / "r")
    one, other = (predict_file(opened, tmp_path / f"{name}.npy").scores for name in ("bytes", "floats"))
    torch.testing.assert_close(one, other)


def test_the_data_are_not_needed(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    from fedveca.runs import rebuild

    monkeypatch.setattr(rebuild, "load_data", lambda e: pytest.fail("the data were loaded"))
    RebuiltModel(runs["cnn"])


@pytest.mark.parametrize("content", [None, b"{}", b'{"rows": {"shape": [-1]}}', b'{"rows": 3}', b"["])
def test_a_folder_that_does_not_say_what_rows_look_like(
    runs: dict[str, Run], tmp_path: Path, content: bytes | None
) -> None:
    """As those of version 0.1: the data set says it."""
    for name in ("mlp", "numbers"):
        shutil.copytree(str(runs[name].folder), tmp_path / name)
        (tmp_path / name / "environment.json").unlink()
        if content is not None:
            (tmp_path / name / "environment.json").write_bytes(content)
    assert RebuiltModel(Run.open(tmp_path / "mlp")).form["shape"] == [1, 8, 8]
    with pytest.raises(UserError, match=r"does not say what the rows of its custom data \(custom:numbers\) look like$"):
        RebuiltModel(Run.open(tmp_path / "numbers"))


@pytest.mark.slow
def test_the_command_line(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(runs["mlp"].folder)
    assert main(["export", folder]) == 0
    assert capsys.readouterr().out.startswith("model: mlp.safetensors (")
    assert main(["export", folder, "--format", "torchscript", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made == {"model": "mlp.pt", "format": "torchscript", "bytes": (tmp_path / "mlp.pt").stat().st_size}
    assert main(["predict", folder, "--data", "test"]) == 0
    said = capsys.readouterr().out
    assert re.match(r"359 rows, accuracy \d+\.\d\d %\n", said)
    assert "\nclasses: " in said
    assert main(["predict", folder, "--data", "test", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], len(found["classes"]), len(found["scores"][0])) == (359, 359, 10)
    assert main(["predict", folder, "--data", "test", "--out", "p.npz"]) == 0
    assert capsys.readouterr().out.endswith("predictions: p.npz\n")
    with np.load("p.npz") as stored:
        assert stored["classes"].tolist() == found["classes"]
    assert main(["predict", folder, "--data", "test", "--out", "p.json", "--quiet"]) == 0
    assert json.loads((tmp_path / "p.json").read_text())["classes"] == found["classes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "mlp"], "fedveca predict takes a FILE of rows or --data test, one of them"),
        (["predict", "mlp", "x.npy", "--data", "test"], "fedveca predict takes a FILE of rows or --data test"),
        (["predict", "mlp", "nowhere.npy"], "nowhere.npy cannot be read: No such file or directory"),
        (["predict", "mlp", "x.csv"], "x.csv is neither an .npy file of rows nor an .npz file with x, and y"),
        (["predict", "mlp", "bad.npy"], "bad.npy cannot be read: "),
        (["predict", "mlp", "text.npy"], "its numbers are <U1; they are floats or whole numbers"),
        (["predict", "mlp", "none.npz"], "none.npz has no array x; it has z"),
        (["predict", "mlp", "flat.npy"], "flat.npy has the shape [4, 3]; the model takes rows of shape [1, 8, 8]"),
        (["predict", "gpt", "floats.npy"], "floats.npy is torch.float32; the model takes tokens"),
        (["predict", "gpt", "high.npy"], "the rows hold the token 99, which the model does not know"),
        (["predict", "gpt", "--data", "test"], "the run has custom data (custom:text), which are not in its folder"),
        (["predict", "mlp", "x.npy", "--out", "p.txt"], "--out p.txt is neither an .npz nor a .json file"),
        (["predict", "custom", "x.npy"], "has a custom model (custom:Sequential), which only your code can build"),
        (["export", "custom", "--format", "onnx"], "module.load_state_dict(fedveca.Run.open(FOLDER).model) loads it"),
        (["export", "mlp", "--out", "."], ". is a folder; name a file"),
        (
            ["export", "mlp", "--out", "nowhere/m.pt"],
            "nowhere/m.pt cannot be written: the folder nowhere does not",
        ),
        (["export", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_wrong_uses_get_one_sentence(
    runs: dict[str, Run],
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("flat.npy", np.ones((4, 3)))
    np.save("text.npy", np.array(["a"]))
    np.save("floats.npy", np.ones((2, 5)))
    np.save("high.npy", np.full((2, 5), 99))
    np.savez("none.npz", z=np.ones(3))
    Path("bad.npy").write_bytes(b"\x93NUMPY")
    before = sorted(path.name for path in tmp_path.iterdir())
    words = [str(runs[word].folder) if word in runs else word for word in words]
    assert main(words) == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_run_that_has_not_ended_has_no_model(runs: dict[str, Run], tmp_path: Path) -> None:
    shutil.copytree(str(runs["mlp"].folder), tmp_path / "r")
    (tmp_path / "r" / "model.safetensors").unlink()
    for form in ("safetensors", "torchscript"):
        with pytest.raises(UserError, match=r"has no model yet: the run has not ended$"):
            export_run(Run.open(tmp_path / "r"), form, tmp_path / "m")


def test_onnx_without_its_extra_says_so(runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    said = r"^--format onnx needs the extra fedveca\[export\]: pip install 'fedveca\[export\]'$"
    with pytest.raises(UserError, match=said):
        export_run(runs["mlp"], "onnx", tmp_path / "m.onnx")
