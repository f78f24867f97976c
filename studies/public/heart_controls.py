"""What explains the differences of the heart table: python -m studies.public.heart_controls --out results.

Each control changes one thing of the table: the initial weights become those that FLamby draws for its seeds, the
learning rate becomes that of the preset, or the methods with adaptive steps get as many steps as the others.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from studies.public.heart import OneScore
from studies.public.run import Outcome, run_one, summarise

FLAMBY_SEEDS = (42, 43, 44, 45, 46)


class Control(NamedTuple):
    """Methods of the table with one thing changed."""

    name: str
    methods: tuple[str, ...]
    settings: dict[str, Any]
    is_drawn: bool = False  # whether w_0 is FLamby's


CONTROLS = (
    Control("FLamby's initial weights", ("fedavg", "fedprox", "scaffold", "fedadam"), {}, is_drawn=True),
    Control("lr = 0.01", ("fedavg", "fedveca", "corrected"), {"lr": 0.01}),
    Control("about 6,000 steps, in 48 rounds", ("fedveca",), {"rounds": 48}),
    Control("about 6,000 steps, in 62 rounds", ("corrected",), {"rounds": 62}),
)


def run_control(control: Control, folder: Path) -> list[Outcome]:
    done = []
    for seed in FLAMBY_SEEDS if control.is_drawn else range(5):
        settings = dict(control.settings)
        if control.is_drawn:
            settings["init"] = str(write_start(seed, folder))
        done += [run_one("heart", method, seed, "cpu", settings) for method in control.methods]
    return done


def write_start(seed: int, folder: Path) -> Path:
    """The weights that FLamby starts with at a seed: those of the first module made after it."""
    torch.manual_seed(seed)
    path = folder / f"{seed}.safetensors"
    save_file(OneScore(13).state_dict(), path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = []
    with TemporaryDirectory() as folder:
        for control in CONTROLS:
            runs = run_control(control, Path(folder))
            found.append({"control": control.name, "lines": summarise("heart", runs), "runs": runs})
            print(json.dumps(found[-1]["lines"], indent=1), flush=True)
    (out / "heart_controls.json").write_text(json.dumps(found) + "\n", "utf-8")


if __name__ == "__main__":
    main()
