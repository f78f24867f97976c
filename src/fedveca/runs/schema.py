"""What a run records: every quantity is declared here once, and everything that shows or reads one asks here.

A round's line holds the quantities of `SCHEMA`, the test values (`test_` and the metric's name), those of `FAMILIES`
and what a custom method records. Rounds are counted from 0 on disk and from 1 wherever they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, Required, TypedDict, TypeGuard

if TYPE_CHECKING:
    from fedveca.algorithms.contract import Fault  # at run time it would load PyTorch

Direction = Literal["higher", "lower"]
LARGEST_NUMBER = 1e150  # beyond it squares overflow; a run writes null instead
LARGEST_COUNT = 2**63 - 1


class Evaluation(TypedDict, total=False):
    """A model's loss and metrics on the test rows, the main one first; a custom metric has a name of its own."""

    test_loss: float | None
    test_accuracy: float | None
    test_absolute_error: float | None
    test_f1: float | None
    test_balanced_accuracy: float | None
    test_precision: float | None
    test_recall: float | None
    test_top5: float | None
    test_auc: float | None
    test_perplexity: float | None
    test_confusion: list[list[int]]


class Round(Evaluation, total=False):
    """One line of rounds.jsonl; lists run over `ids`, of `client_` over `tested`, of `candidate_` over `candidates`."""

    round: Required[int]
    ids: Required[list[int]]
    left_out: Required[list[int]]
    candidates: list[int]
    candidate_loss: list[float | None]
    tau: Required[list[int]]
    tau_k: float | None
    lr: float | None
    accepted: bool
    train_loss: float | None
    beta: list[float | None]
    delta: list[float | None]
    A: list[float | None]
    L: float | None
    premise: float | None
    condition_alpha: float | None
    condition_step: float | None
    condition_drift: float | None
    eta_g: float | None
    epsilon: float | None
    tested: list[int]
    faults: list[Fault]
    warning: str
    guarded: str
    step_scale: float
    rows: int
    bytes_down: int
    bytes_up: int
    clock: float
    client_seconds: list[float | None]
    wait_seconds: list[float | None]
    work_seconds: list[float | None]
    probe_seconds: list[float | None]
    step_seconds: list[float | None]
    order_bytes: list[int]
    answer_bytes: list[int]
    evaluation_seconds: list[float | None]
    predicted_seconds: float
    staleness: list[int]
    joules: float
    seconds: float


class Condition(NamedTuple):
    """What the paper's theory asks of a quantity in every round."""

    title: str
    sign: Literal["<", "≤", "≥"]
    bound: float

    def is_met(self, value: float) -> bool:
        """Whether a round with this value has it."""
        if self.sign == "≥":
            return value >= self.bound
        return value < self.bound if self.sign == "<" else value <= self.bound


class Quantity(NamedTuple):
    """One recorded quantity."""

    name: str
    label: str
    kind: Literal[
        "number", "per client", "per tested client", "per candidate", "flag", "clients", "faults", "text", "table"
    ] = "number"
    unit: str = ""  # "share" is shown in per cent
    better: Direction | None = None
    symbol: str = ""
    formula: str = ""
    whole: bool = False  # whole numbers only
    at: Literal["start", "end"] = "end"  # of the round: a quantity of w_k, or of w_(k+1) and the round itself
    condition: Condition | None = None


SCHEMA = {
    quantity.name: quantity
    for quantity in (
        Quantity("round", "Round", symbol="k", formula="counted from 0", whole=True),
        Quantity("ids", "Clients that answered", "clients", whole=True),
        Quantity("left_out", "Clients left out", "clients", formula="asked, but no finite answer", whole=True),
        Quantity(
            "candidates", "Clients asked for their loss", "clients", formula="by a method that chooses", whole=True
        ),
        Quantity("candidate_loss", "Loss of the clients asked", "per candidate", formula="F_i(w_k)", at="start"),
        Quantity("faults", "Faults", "faults"),
        Quantity("warning", "Warning", "text", formula="only where the loss grows: what it is, and what to do"),
        Quantity("guarded", "Guarded", "text", formula="only with a guard: to which model the run returned, and why"),
        Quantity("step_scale", "Scale of the server's step", formula="only where a guard has shortened it"),
        Quantity("tau", "Local steps", "per client", symbol="τ", formula="τ_(k,i)", whole=True),
        Quantity("tau_k", "Mean local steps", symbol="τ_k", formula="Σ p_i τ_(k,i)"),
        Quantity("lr", "Learning rate", symbol="η", formula="of the round, where a schedule changes it"),
        Quantity("beta", "Smoothness β", "per client", symbol="β", formula="max ‖∇F_i(w_k) − g_λ‖ / ‖w_k − w_λ‖"),
        Quantity("delta", "Deviation δ", "per client", symbol="δ", formula="max ‖Σ g‖² / ((λ+1) ‖∇F(w_(k−1))‖²)"),
        Quantity("A", "A = η β² δ", "per client", symbol="A", formula="η β² δ"),
        Quantity("L", "Smoothness L", symbol="L", formula="the largest L_k so far"),
        Quantity(
            "premise",
            "Premise",
            symbol="η τ_k L",
            formula="η τ_k L; Theorem 1 asks for at least 1",
            condition=Condition("Premise of Theorem 1", "≥", 1.0),
        ),
        Quantity(
            "condition_alpha",
            "Condition on α",
            symbol="α min A / 2L",
            formula="α min A / (2 L); Theorem 2 asks for less than 1",
            condition=Condition("Theorem 2's condition", "<", 1.0),
        ),
        Quantity(
            "condition_step",
            "Theorem 1's bracket",
            symbol="bracket",
            formula="η/4 Σ p_i (τ_(k,i) (2 L + A_i) − A_i) − 1; F falls where it is below 0",
            condition=Condition("Theorem 1's descent", "<", 0.0),
        ),
        Quantity(
            "condition_drift",
            "Length of the direction",
            symbol="‖d_k‖ / ‖∇F‖",
            formula="‖Σ p_i G_i‖ / ‖∇F(w_k)‖; Assumption 2 asks for at most 1",
            condition=Condition("Assumption 2", "≤", 1.0),
        ),
        Quantity("eta_g", "Server's step η_g", symbol="η_g", formula="max(1, Σ p_i ‖Δ_i‖² / (2 (‖Σ p_i Δ_i‖² + ε)))"),
        Quantity("accepted", "Accepted", "flag", formula="1 where the model was accepted"),
        Quantity("train_loss", "Training loss", better="lower", formula="F(w_k) = Σ p_i F_i(w_k)", at="start"),
        Quantity("test_loss", "Test loss", better="lower"),
        Quantity("test_accuracy", "Test accuracy", unit="share", better="higher"),
        Quantity("test_absolute_error", "Test absolute error", better="lower"),
        Quantity("test_f1", "Test F1", unit="share", better="higher", formula="mean over classes"),
        Quantity("test_balanced_accuracy", "Test balanced accuracy", unit="share", better="higher"),
        Quantity("test_precision", "Test precision", unit="share", better="higher", formula="mean over classes"),
        Quantity("test_recall", "Test recall", unit="share", better="higher", formula="mean over classes"),
        Quantity("test_top5", "Test top-5 accuracy", unit="share", better="higher"),
        Quantity("test_auc", "Test AUC", unit="share", better="higher", formula="of the ROC curve, two classes"),
        Quantity("test_perplexity", "Test perplexity", better="lower", formula="exp of the mean cross-entropy"),
        Quantity(
            "test_confusion",
            "Test confusion matrix",
            "table",
            formula="a list per class of the targets: how often each class was predicted",
            whole=True,
        ),
        Quantity("tested", "Clients that tested", "clients", formula="they have test rows and answered", whole=True),
        Quantity("epsilon", "Privacy spent ε", better="lower", symbol="ε"),
        Quantity(
            "rows",
            "Gradient rows per round",
            formula="Σ (τ_(k,i) B + n min(probe, D_i)), where the method uses n = 0, 1 or 2 gradients of the probe",
            whole=True,
        ),
        Quantity("bytes_down", "Bytes down per round", unit="bytes", whole=True),
        Quantity("bytes_up", "Bytes up per round", unit="bytes", whole=True),
        Quantity(
            "clock",
            "Device time",
            unit="s",
            formula="since the start; simulated with devices, measured in a deployment",
        ),
        Quantity("client_seconds", "Device seconds", "per client", unit="s", formula="from the order to the answer"),
        Quantity("wait_seconds", "Wait", "per client", unit="s", formula="until the node's program had the order"),
        Quantity("work_seconds", "Work", "per client", unit="s", formula="of the node's program, as it reports"),
        Quantity("probe_seconds", "Probe", "per client", unit="s", formula="of the work: F_i(w_k) and its gradient"),
        Quantity("step_seconds", "Steps", "per client", unit="s", formula="of the work: the local steps"),
        Quantity("order_bytes", "Bytes of the order", "per client", unit="bytes", whole=True),
        Quantity("answer_bytes", "Bytes of the answer", "per client", unit="bytes", whole=True),
        Quantity(
            "evaluation_seconds",
            "Seconds of the evaluation",
            "per tested client",
            unit="s",
            formula="from the question to the answer, in a deployment",
        ),
        Quantity(
            "predicted_seconds",
            "Predicted seconds per round",
            unit="s",
            formula="by devices that were fitted to other rounds; only in a replay",
        ),
        Quantity(
            "staleness",
            "Staleness",
            "per client",
            formula="models since the client's start; only with schedule=buffered",
            whole=True,
        ),
        Quantity("joules", "Joules per round", unit="J", formula="of all clients that computed; only with devices"),
        Quantity("seconds", "Seconds per round", unit="s"),
    )
}
DEFAULT_METRIC = "test_accuracy"
MOST_UNITS = 1000  # of custom metrics: folders of others state them too
_stated_units: dict[str, str] = {}  # by name


class Family(NamedTuple):
    """Quantities that a run records of the loss and of every metric M, each under its own name."""

    prefix: str
    suffix: str
    label: str  # with the metric's label in it
    formula: str
    kind: Literal["number", "per tested client"] = "number"
    directed: bool = True  # whether what is better for M is better here


def _of_clients(prefix: str, when: str) -> tuple[Family, ...]:
    return (
        Family(prefix, "_rows", f"Mean {{}}{when} by rows", "Σ n_i M_i / Σ n_i over the test rows of the clients"),
        Family(prefix, "_sd", f"Spread of the {{}}{when} over clients", "√(Σ (M_i − mean)² / n)", directed=False),
        Family(prefix, "_worst", f"Worst tenth of the clients: {{}}{when}", "mean of the worst tenth, at least one"),
        Family(prefix, "_best", f"Best tenth of the clients: {{}}{when}", "mean of the best tenth, at least one"),
        Family(prefix, "", f"Mean {{}}{when} over clients", "Σ M_i / n"),
    )


FAMILIES = (
    Family("val_", "", "Validation {}", "mean over the validation rows of all clients"),
    Family("client_test_", "", "{} of each client", "M_i of w_(k+1) on the client's test rows", "per tested client"),
    Family("client_tuned_", "", "{} of each client after local steps", "M_i after finetune_steps", "per tested client"),
    *_of_clients("clients_", ""),
    *_of_clients("tuned_", " after local steps"),
)


def find_quantity(name: str, directions: Mapping[str, Direction] | None = None) -> Quantity | None:
    """A quantity that is declared here: by its name, or as one of a family; None for any other.

    Args:
        name: The name in rounds.jsonl.
        directions: What custom metrics stated about themselves, as `Run.directions` has it.
    """
    if name in SCHEMA:
        return SCHEMA[name]
    for prefix, suffix, label, formula, kind, directed in FAMILIES:
        metric = name.removeprefix(prefix).removesuffix(suffix)
        if metric and name == prefix + metric + suffix:
            of = describe_quantity(f"test_{metric}", directions)
            text = label.format(of.label.removeprefix("Test "))
            better = of.better if directed else None
            return Quantity(name, text[:1].upper() + text[1:], kind, of.unit, better, formula=formula)
    return None


def describe_quantity(name: str, directions: Mapping[str, Direction] | None = None) -> Quantity:
    """A recorded quantity by its name; one that the schema does not know is a custom metric's or a custom method's.

    Args:
        name: The name in rounds.jsonl.
        directions: What custom metrics stated about themselves, as `Run.directions` has it.
    """
    known = find_quantity(name, directions)
    label = name.replace("_", " ")
    unit = _stated_units.get(name, "")
    return known or Quantity(name, label[:1].upper() + label[1:], unit=unit, better=(directions or {}).get(name))


def state_units(units: Mapping[str, str]) -> None:
    """Makes known what custom metrics are measured in; a run does so when it starts and when it is opened.

    A quantity has one unit wherever it is shown, so the last statement about a name counts.
    """
    for name, unit in units.items():
        if name not in SCHEMA and (name in _stated_units or len(_stated_units) < MOST_UNITS):
            _stated_units[name] = unit


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number that a run can have recorded: finite and not a truth value."""
    return type(value) in (int, float) and abs(value) <= LARGEST_NUMBER  # type: ignore[arg-type]


def finite_number(value: object) -> float | None:
    """The value if it is a number that a run can have recorded, else None.

    Examples:
        >>> [finite_number(v) for v in (0.5, None, float("nan"), "0.5", True)]
        [0.5, None, None, None, None]
    """
    return value if is_number(value) else None


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number of 64 bits."""
    return type(value) is int and abs(value) <= LARGEST_COUNT


def get_number(record: Mapping[str, object], name: str) -> float | None:
    """A recorded number, or None where it is missing, null or something else."""
    return finite_number(record.get(name))


def find_metric(records: Iterable[Mapping[str, object]]) -> str:
    """The main metric: the first test value that was recorded after the loss; accuracy where there is none yet."""
    names = (name for record in records for name in list_test_values(record))
    return next((name for name in names if name != "test_loss"), DEFAULT_METRIC)


def list_test_values(record: Mapping[str, object]) -> list[str]:
    """The names of the test values that are numbers, in their recorded order: the loss, the main metric, the others."""
    return [name for name, v in record.items() if name.startswith("test_") and not isinstance(v, list | dict)]


def pick_best(values: Iterable[float | None], better: Direction | None) -> float | None:
    """The best of those that are numbers; None where nobody knows which direction is better."""
    numbers = [v for v in values if is_number(v)]
    if not numbers or better is None:
        return None
    return max(numbers) if better == "higher" else min(numbers)
