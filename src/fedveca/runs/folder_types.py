"""What the JSON files of a run folder hold besides its rounds: summary.json, partition.json, environment.json."""

from __future__ import annotations

from typing import Literal, NotRequired, Required, TypedDict, get_args

from fedveca.runs.schema import Direction, Evaluation

Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
EndReason = Literal["target", "patience", "budget", "stop"]  # what ended a run before its last round
END_REASONS: tuple[EndReason, ...] = get_args(EndReason)


class ModelResult(Evaluation, total=False):
    """A model's round and its values on the test rows, and on those that clients hold back."""

    round: Required[int]
    tested: list[int]


class Summary(TypedDict, total=False):
    """summary.json; empty for a run that has not ended."""

    experiment: dict[str, str | int | float]
    tau_all: int
    rows: int  # gradient rows in all, where every round recorded them
    seconds: float
    clock: float  # seconds of all rounds on the clients' devices, simulated or measured
    joules: float  # of all rounds, where the devices state what they use
    rounds: int
    last: ModelResult
    kept: ModelResult
    epsilon: float
    guarded: int  # how often the guard returned to the best model
    warnings: list[str]
    stopped: str  # why a run diverged
    ended: EndReason


class Partition(TypedDict):
    """partition.json: training rows of each label by client, of up to 200 clients."""

    all: int
    clients: list[int]
    sizes: list[int]
    labels: list[list[int]]
    val: NotRequired[list[int]]  # rows that each holds back to validate on, where clients do
    test: NotRequired[list[int]]  # rows that each holds back to test on


class RowForm(TypedDict):
    """What rows and targets look like, so that a model can be built again without its data."""

    shape: list[int]  # of a row
    tokens: bool  # whether rows are whole numbers for an Embedding
    targets: list[int]  # shape of the targets of a row; empty for one
    classes: int  # 0 where the targets are numbers
    pixels: str  # how a row becomes an input, as `prepare` takes it: with the means of channels where these are used


class Environment(TypedDict, total=False):
    """environment.json: what a result may depend on besides the settings, and who resumes the run."""

    fedveca: str
    python: str
    torch: str
    platform: str
    processor: str
    threads: int
    device: str
    kernels: str  # of a model that has kernels in C for the CPU: their compiler, or "PyTorch"
    started_by: str  # who resumes the run, where it is not `fedveca run`
    better: dict[str, Direction]  # what a custom metric stated about itself
    units: dict[str, str]  # and what it is measured in
    rows: RowForm  # what a model of the run takes
    steps: list[int]  # the fewest and the most local steps that epochs gives a client
    sizes: list[int]  # training rows of each client, where only the clients have them
    probe: int  # rows of a client on which it computes F_i(w_k) and its gradient, where it has so many; 0 is all
    init_sha256: str  # of the file that init names
    fixed: str  # a hash of what training never changes: frozen weights and constant buffers
