"""Augmentation: what each step draws, that it is the same on every engine, and that only local steps are changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real_models import encoder, jitter
from torch import Tensor, nn

from fedveca import Experiment, from_arrays
from fedveca.cohorts.random import draw_rows, draw_seed
from fedveca.deploy.server import check_deployable
from fedveca.errors import suggest
from fedveca.runs.build import build
from fedveca.runs.federate import choose_clients
from fedveca.runs.run import resume, run
from fedveca.tasks.augment import crop, cutout, flip, make_augmentation
from fedveca.tasks.augment_settings import AugmentStep, parse_augment
from fedveca.tasks.models import Model, model
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.native.library import use_pytorch
from fedveca.tasks.randomness import draw_from

E = Experiment(data="digits", method="fedavg", clients=4, rounds=2, batch=8, tau_0=3, lr=0.05, keep="last", probe=16)
ALL = "crop:2,flip,cutout:3"
FORMS = "crop:PIXELS | flip | cutout:SIDE"


def images(n: int, channels: int = 2, height: int = 5, width: int = 6) -> Tensor:
    """No pixel is 0, and no two are equal."""
    return torch.arange(1.0, n * channels * height * width + 1).view(n, channels, height, width)


def find_shift(before: Tensor, after: Tensor, padding: int) -> tuple[int, int]:
    """Where in the padded image [C, H, W] the crop was taken."""
    height, width = before.shape[-2:]
    wide = nn.functional.pad(before, [padding] * 4)
    places = [
        (top, left)
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
        if torch.equal(wide[:, top : top + height, left : left + width], after)
    ]
    assert len(places) == 1
    return places[0]


# the three steps


def test_crop_takes_every_place_of_the_padded_image_equally_often() -> None:
    x, padding = images(2000), 2
    torch.manual_seed(0)
    found = [find_shift(a, b, padding) for a, b in zip(x, crop(x, padding), strict=True)]
    counts = {place: found.count(place) for place in found}
    assert set(counts) == {(top, left) for top in range(5) for left in range(5)}
    assert all(40 < n < 130 for n in counts.values())  # 80 each


def test_flip_mirrors_half_of_the_images_left_to_right() -> None:
    x = images(1000)
    torch.manual_seed(0)
    flipped = flip(x)
    mirrored = [torch.equal(b, a.flip(-1)) for a, b in zip(x, flipped, strict=True)]
    assert all(turned or torch.equal(a, b) for turned, a, b in zip(mirrored, x, flipped, strict=True))
    assert 430 < sum(mirrored) < 570


@pytest.mark.parametrize("side", [1, 2, 3])
def test_cutout_is_a_square_around_any_pixel(side: int) -> None:
    x = images(1500)
    torch.manual_seed(0)
    after, centres = cutout(x, side), set()
    for a, b in zip(x, after, strict=True):
        gone = (b == 0).all(0)
        assert torch.equal(b, torch.where(gone, 0.0, a))  # the same in all channels, and nothing else changes
        rows, columns = gone.any(1).nonzero().flatten().tolist(), gone.any(0).nonzero().flatten().tolist()
        assert gone.sum() == len(rows) * len(columns) <= side * side
        assert max(rows) - min(rows) == len(rows) - 1
        centres.add((rows[0], rows[-1], columns[0], columns[-1]))
    spans = [{(max(c - side // 2, 0), min(c - side // 2 + side, n) - 1) for c in range(n)} for n in (5, 6)]
    assert centres == {(*rows, *columns) for rows in spans[0] for columns in spans[1]}


def test_steps_are_applied_in_the_order_of_the_text() -> None:
    x = images(64, height=8, width=8)
    assert parse_augment(" cutout:3, flip") == (AugmentStep("cutout", 3), AugmentStep("flip", 0))
    for text, steps in (
        ("crop:2,cutout:3", (lambda v: crop(v, 2), lambda v: cutout(v, 3))),
        ("cutout:3,crop:2", (lambda v: cutout(v, 3), lambda v: crop(v, 2))),
    ):
        change = make_augmentation(text, "augment", x)
        assert change is not None
        torch.manual_seed(4)
        got = change(x)
        torch.manual_seed(4)
        assert torch.equal(got, steps[1](steps[0](x)))


# what does not fit


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("crap:4", f"augment=crap:4: 'crap' is not known{suggest('crap', ['crop'])}; allowed: {FORMS}"),
        ("crop", "augment=crop: 'crop' is not of the form crop:PIXELS"),
        ("flip:1", "augment=flip:1: 'flip:1' is not of the form flip"),
        ("crop:0", "augment=crop:0: 'crop:0' needs a whole number of pixels from 1 to 1024"),
        ("cutout:1025", "augment=cutout:1025: 'cutout:1025' needs a whole number of pixels from 1 to 1024"),
        ("crop:1.5", "augment=crop:1.5: 'crop:1.5' needs a whole number of pixels from 1 to 1024"),
        ("crop:²", "augment=crop:²: 'crop:²' needs a whole number of pixels from 1 to 1024"),
        ("flip,crop:1,flip", "augment=flip,crop:1,flip: flip stands there twice"),
        ("flip,", f"augment=flip,: '' is not known; allowed: {FORMS}"),
    ],
)
def test_text_that_is_not_an_augmentation_is_rejected(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        Experiment(augment=text)


def text_data() -> Any:
    rows = np.random.default_rng(0).integers(0, 9, (60, 6))
    return from_arrays(rows[:, :-1], rows[:, 1:], tokens=True, name="text")


def pair_data() -> Any:
    rng = np.random.default_rng(0)
    return from_arrays((rng.normal(size=(60, 3)), rng.normal(size=(60, 2))), rng.integers(0, 2, 60))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = self.layer(torch.cat([a, b], 1))
        return out


@pytest.mark.parametrize(
    ("settings", "custom", "why"),
    [
        ({"model": "svm", "augment": "flip"}, {}, "does not go with model=svm, whose gradient is in closed form"),
        ({"augment": "crop:8"}, {}, r"crop:8 is too much for images of 8 x 8; at most 7$"),
        ({"augment": "cutout:9"}, {}, r"cutout:9 is too much for images of 8 x 8; at most 8$"),
        (
            {"augment": "flip", "model": "lstm", "partition": "iid"},
            {"data": text_data()},
            r"augment=flip is for images \[C, H, W\]; these rows have the shape \[5\]",
        ),
        (
            {"data": "synthetic", "partition": "writer", "augment": "flip"},
            {},
            r"augment=flip is for images \[C, H, W\]; these rows have the shape \[60\]",
        ),
        (
            {"partition": "iid", "augment": "flip"},
            {"data": pair_data(), "model": Pair()},
            "augment=flip is for models with one input; this one takes 2",
        ),
        ({}, {"augment": "flip"}, r"augment='flip' is text, which goes into the settings: Experiment\(augment=...\)"),
        ({}, {"augment": 3}, r"augment \(int\) is int; it is a function of a batch"),
        ({}, {"augment": lambda x: x[:, :, 1:]}, r"gives \[8, 1, 7, 8\] \(torch.float32\) for a batch \[8, 1, 8, 8\]"),
        ({}, {"augment": lambda x: 1 / 0}, r"augment \(<lambda>\) fails on rows of shape \[1, 8, 8\]: .*division"),
        (
            {},
            {"augment": lambda x: x + float(np.random.default_rng().normal())},
            "gives other rows each time with the same seed; let it draw with torch's functions",
        ),
        ({"augment": "custom:mine"}, {}, "augment=custom:mine is an object that was given from Python; give it again"),
    ],
)
def test_what_does_not_fit_is_one_sentence(settings: dict[str, Any], custom: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        build(replace(E, **settings), **custom)
    assert "\n" not in str(caught.value)


def test_nodes_need_a_name_that_they_know() -> None:
    check_deployable(replace(E, augment=ALL))
    with pytest.raises(ValueError, match="augment='custom:mine' is a Python object; nodes need a name that they know"):
        check_deployable(replace(E, augment="custom:mine"))


# a local step


def by_hand(e: Experiment, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """FedAvg of a logistic model in plain PyTorch; each step's rows are changed with the step's seed."""
    built = build(replace(e, augment=""))
    shares, problem = built.shares, built.problem
    w = problem.init()
    for k in range(e.rounds):
        ids, ended = choose_clients(built.cohort, k, e.participation, e.seed), []
        for i in ids.tolist():
            mine = w.clone()
            rows = draw_rows(e.seed, k, torch.tensor([i]), shares.sizes[[i]], e.tau_0, e.batch)[0]
            for step, index in enumerate(rows):
                at = shares.rows[shares.start[i] + index]
                with draw_from(torch.Generator().manual_seed(draw_seed(e.seed, k, i, step))):
                    x = change(built.data.x[at])
                mine = mine - e.lr * problem.slope(mine[None], x[None], built.data.y[at][None])[0]
            ended.append(mine)
        share = shares.sizes[ids].double() / shares.sizes[ids].sum()
        w = (share[:, None] * torch.stack(ended).double()).sum(0).float()
    return problem.state(w)


def distance(a: Any, b: Any) -> float:
    return max(float((v - b[name]).abs().max()) for name, v in a.items())


@pytest.mark.parametrize("augment", [ALL, jitter], ids=["named", "custom"])
def test_local_steps_see_augmented_rows_of_their_own_seed(augment: Any) -> None:
    e = replace(E, model="logistic", augment=augment) if isinstance(augment, str) else replace(E, model="logistic")
    custom: Any = {} if isinstance(augment, str) else {"augment": augment}
    change = make_augmentation(augment, "", torch.zeros(8, 1, 8, 8))
    assert change is not None
    done, plain = run(e, device="cpu", **custom), run(replace(e, augment=""), device="cpu")
    assert distance(done.model, by_hand(e, change)) < 1e-6
    assert distance(done.model, plain.model) > 1e-3
    assert done.experiment.augment == (augment if isinstance(augment, str) else "custom:jitter")


def test_no_augmentation_changes_no_byte_and_the_identity_little() -> None:
    plain, same = run(E, device="cpu"), run(E, device="cpu", augment=lambda x: x)
    assert distance(plain.model, same.model) < 1e-6
    assert build(E).problem.mapped
    assert not build(E).problem.random


def test_probe_loss_after_and_test_see_the_rows_as_they_are() -> None:
    made = [model("mlp", (1, 8, 8), 10, augment=text) for text in ("", ALL)]
    x, y = torch.rand(1, 8, 1, 8, 8), torch.randint(0, 10, (1, 8))
    w = made[0].init()[None]
    with use_pytorch():  # what augments has no kernels in C
        found = [problem.gradients(w, x, y) for problem in made]
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
    assert all(map(torch.equal, made[0].losses(w[0], x[0], y[0]), made[1].losses(w[0], x[0], y[0])))
    seeds = [torch.Generator().manual_seed(0)]
    assert not torch.equal(made[0].slope(w, x, y), made[1].slope(w, x, y, generators=seeds))
    e = replace(E, method="fedveca", keep="rollback", tau_0=1, rounds=1)
    first, second = (run(replace(e, augment=text), device="cpu").rounds[0] for text in ("", ALL))
    assert first["train_loss"] == pytest.approx(second["train_loss"], abs=1e-6)  # of w_0: the probe's


def test_an_augmented_problem_draws_is_not_mapped_and_may_be_fused() -> None:
    made = model("mlp", (1, 8, 8), 10, augment=ALL, compiled=True)
    assert isinstance(made, ModuleProblem)
    assert (made.random, made.mapped, made.compiled) == (True, False, True)
    fork = made.fork()
    assert fork.augment is made.augment


# the same result wherever clients run


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(("kind", "augment"), [(encoder, ALL), (None, jitter)], ids=["with-dropout", "custom"])
def test_local_debug_and_ray_give_the_same_model(
    kind: Model | None, augment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2] / "helpers")
    named = isinstance(augment, str)
    e = replace(E, method="fedveca", participation=0.75, augment=augment if named else "", workers=2)
    e = replace(e, model="real_models:encoder") if kind else e
    custom: Any = {} if named else {"augment": augment}
    local, debug, ray = (run(replace(e, engine=engine), device="cpu", **custom) for engine in ("local", "debug", "ray"))
    for other in (debug, ray):
        assert distance(local.model, other.model) < 1e-6
        assert [r["tau"] for r in local.rounds] == [r["tau"] for r in other.rounds]


def test_a_resumed_run_draws_the_same(tmp_path: Path) -> None:
    e = replace(E, augment=ALL, rounds=3)
    run(e, tmp_path / "whole", device="cpu")
    run(replace(e, rounds=1), tmp_path / "cut", device="cpu")
    resume(tmp_path / "cut", rounds=3, device="cpu")
    whole, cut = (((tmp_path / name) / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut
