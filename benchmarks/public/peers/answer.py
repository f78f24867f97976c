"""What a framework's script is asked and answers: arguments, and one line of JSON."""

from __future__ import annotations

import argparse
import json
from typing import TypedDict

import torch

from benchmarks.public.cases import Case, make_case, parse_more

MARK = "PEER "  # begins the line of the answer


class Answer(TypedDict):
    """A framework's time on a case; seconds are of all rounds, with their tests."""

    label: str
    seconds: float
    rounds: float  # that were timed; with a part of the clients, a part of one
    accuracy: float | None  # per cent, where the rows are real and all rounds ran


class Asked(argparse.Namespace):
    """The arguments of a framework's script."""

    case: str
    mode: str
    device: str
    data_dir: str
    random: bool
    seconds: float
    settings: list[str]


def read_arguments() -> Asked:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("mode")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args(namespace=Asked())
    torch.set_float32_matmul_precision("high")  # as ours on CUDA
    return asked


def make_asked(asked: Asked) -> Case:
    """The case that a script is asked for."""
    return make_case(asked.case, asked.data_dir, parse_more(asked.settings), asked.random)


def give(answer: Answer) -> None:
    print(MARK + json.dumps(answer), flush=True)


def find_answer(output: str) -> Answer | None:
    """The answer in what a script printed."""
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if not lines:
        return None
    answer: Answer = json.loads(lines[-1].removeprefix(MARK))
    return answer
