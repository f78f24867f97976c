"""What a federated method is: pure functions between an order, a client's steps and a report."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypedDict, cast

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedveca.algorithms.hyper import LR, hyperparameters, to_python
from fedveca.algorithms.layout import NO_LAYOUT, Layout
from fedveca.errors import UserError

Named = dict[str, Tensor]
STATISTICS = "statistics"  # the name under which a model's running statistics travel, apart from every method's vectors


class Order(NamedTuple):
    """Server -> every client of the round."""

    w: Tensor  # [P] w_k
    aux: Named  # [P] each: SCAFFOLD's c; and STATISTICS [S], where the model has them


class Norms(NamedTuple):
    """How long the vectors are that clients sent in a round."""

    ids: Tensor  # [m] clients that were asked; the norm of one that is left out may not be finite
    norms: Tensor  # [vectors, m]


class Fault(TypedDict):
    """A client that failed or misbehaved in a round, as it is recorded."""

    client: int  # -1 where the client is not known
    what: str


class Timing(NamedTuple):
    """How long a round took and what it used up: simulated on devices, or measured in a deployment."""

    seconds: float  # of the round
    clients: Tensor  # [n] float64: from the order to the answer of each client that answered
    joules: float | None  # of all clients that computed; None where no device states what it uses
    staleness: Tensor | None = None  # [n] int64: by how many models older than w_k the client's start was
    parts: Named = {}  # noqa: RUF012  # what else the record has of the times, by the names of runs/schema.py
    steps: Tensor | None = None  # [n] float64: of `clients`, the seconds of the local steps; None where not known

    def split(self) -> tuple[Tensor, Tensor]:
        """[n] each: the seconds of a client's local steps, and those of all else: messages and probe.

        Where they were not measured apart, all seconds count as those of the steps.
        """
        steps = self.clients if self.steps is None else self.steps
        return steps, (self.clients - steps).clamp(min=0)


class Report(NamedTuple):
    """Clients -> server, already aggregated: vectors as means only, numbers one by one."""

    mean: Named  # [P] each: sum_i p_i v_i over the n clients that answered
    each: Named  # [n] each: one number per client (tau, loss, beta, spread)
    mass: float  # share of all rows that answered: sum of D_i / D
    width: int = 4  # bytes of one number of a vector on its way
    faults: tuple[Fault, ...] = ()
    norms: Norms | None = None  # where they may be known: for the sentence of a run that diverged
    timing: Timing | None = None
    scale: float = 1.0  # of the server's step: shorter where answers are of older models
    payload: int | None = None  # bytes of one client's vectors on their way; None where each number has `width` bytes
    overhead: tuple[int, int] = (0, 0)  # bytes down and up of secure aggregation, beyond order and answers
    taken: Tensor | None = None  # [n] local steps, where each["tau"] are lengths: under another optimiser (`Recipe`)

    def count_steps(self) -> Tensor:
        """[n] float64: how many local steps each client took, whatever the optimiser."""
        return (self.each["tau"] if self.taken is None else self.taken).double().cpu()


class Outputs(NamedTuple):
    """What a model gives for the rows of a mini-batch."""

    scores: Tensor  # [B, ...]
    features: Tensor  # [B, D]: what the model's last linear layer takes in; the scores where it is the only layer


AskLoss = Callable[[Tensor], Tensor]  # ids [d] -> F_i [d], float64
RowLoss = Callable[[Tensor, Tensor], Tensor]  # scores [B, ...], y [B, ...] -> [B]
MethodLoss = Callable[[RowLoss, Outputs, Tensor, Tensor, dict[str, Outputs]], Tensor]


class LocalLoss(NamedTuple):
    """A method's loss of n clients, and what it sees besides the model that steps and its rows."""

    method: MethodLoss
    counts: Tensor  # [n, C]
    models: Named  # [n, P] each

    def select(self, i: int) -> LocalLoss:
        """Of one client: counts [C] and models [P]."""
        return LocalLoss(self.method, self.counts[i], {name: v[i] for name, v in self.models.items()})


class ServerState(NamedTuple):
    """The least that a server carries."""

    w: Tensor  # [P] w_k
    tau: Tensor  # [N] int64: local steps of each client's next round


class HasModel(Protocol):
    """What every method's state has: a NamedTuple of tensors with these two among them."""

    @property
    def w(self) -> Tensor: ...
    @property
    def tau(self) -> Tensor: ...
    def _asdict(self) -> dict[str, Tensor]: ...


NoCarry = tuple[()]
State = TypeVar("State", bound=HasModel, default=Any)  # of the server: a plain `Algorithm` is one of any state
Carry = TypeVar("Carry", default=Any)  # of a client, from step to step


class Algorithm(ABC, Generic[State, Carry]):
    """Hyperparameters in a frozen dataclass; everything that changes is passed in and out.

    The client's functions work along the last axis: a vector is [..., P], a number [..., 1], and what
    stands in front is one client or many at once. So they reduce with dim=-1, keepdim=True, and never
    branch on a tensor's value. A method defines `update` and `finish`; the rest is here, as plain
    local SGD without memory. A method changes its steps by `direction` and sees them in `track`: so it
    works with every local optimiser (`Recipe`).
    """

    lr: float  # eta
    adapts: ClassVar[bool] = False  # whether it chooses the clients' numbers of local steps itself
    needs_gradient: ClassVar[bool] = False  # whether `start` uses g0 = grad F_i(w_k)
    needs_loss: ClassVar[bool] = False  # whether `start` uses F_i(w_k), as one more argument, `loss`
    needs_gradient_after: ClassVar[bool] = (
        False  # whether `arrive` is called, with F_i and its gradient after the steps
    )
    needs_layout: ClassVar[bool] = False  # whether it uses `layout`, the places of the model's layers in w
    chooses: ClassVar[bool] = False  # whether `choose` says who takes part in a round
    needs_mean: ClassVar[bool] = False  # whether `track` and `finish` use the mean of the directions
    needs_everyone: ClassVar[bool] = False  # whether it is wrong where only a part of the clients takes part
    needs_whole_step: ClassVar[bool] = False  # whether it is wrong where the server goes only a part of the way
    needs_timing: ClassVar[bool] = False  # whether `update` uses the clients' seconds, `report.timing`
    guarded: ClassVar[bool] = False  # whether guard=auto, the default, is guard=on
    has_loss: ClassVar[bool] = False  # whether local steps minimise `loss` in place of the problem's
    needs_labels: ClassVar[bool] = False  # whether `loss` uses the counts of the client's labels
    server_default: ClassVar[tuple[str, float]] = ("sgd", 1.0)  # the server optimiser and its rate, if none is set
    nonnegative: ClassVar[tuple[str, ...]] = ()  # numbers of `finish` that cannot be below 0: a node that says so lies
    layout: Layout = NO_LAYOUT  # of the model, where `needs_layout` is true: `with_layout` sets it

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        if cls.chooses and cls.choose is Algorithm.choose:
            raise UserError(f"{cls.__name__} has chooses = True, but does not define choose, which names the clients")

    def __post_init__(self) -> None:
        """Checks the ranges that the class declares; a single number of NumPy or PyTorch becomes Python's."""
        object.__setattr__(self, "lr", LR.check("lr", to_python(self.lr), float))
        for name, declared in hyperparameters(type(self)).items():
            value = declared.range.check(name, to_python(getattr(self, name)), type(declared.default))
            object.__setattr__(self, name, value)

    @property
    def is_scheduled(self) -> bool:
        """Whether the learning rate changes from round to round."""
        return False

    def at(self, k: int) -> Self:
        """The method as round k has it: with the learning rate of that round."""
        return self

    def with_rate(self, lr: Tensor) -> Self:
        """The method with a rate [] that is read anew at each step, for a captured CUDA graph."""
        other = copy.copy(self)
        object.__setattr__(other, "lr", lr)
        return other

    def with_layout(self, layout: Layout) -> Self:
        """The method as it runs on a model with this layout, which it sees as `self.layout` where it needs one."""
        if not self.needs_layout:
            return self
        other = copy.copy(self)
        object.__setattr__(other, "layout", layout)
        return other

    # server

    def init(self, w: Tensor, tau: Tensor) -> State:
        return cast(State, ServerState(w, tau))

    def order(self, state: State) -> Order:
        return Order(state.w, {})

    def choose(self, state: State, p: Tensor, u: Tensor, m: int, ask: AskLoss) -> Tensor:
        """[m]: the clients that take part in a round, where `chooses` is true; a pure function of its arguments.

        Args:
            state: The server's.
            p: [N] each client's share of all rows, float64.
            u: [N] a random number in (0, 1) for each client, drawn anew in each round, float64.
            m: How many clients shall take part.
            ask: Asks clients [d] for F_i(w_k), in a round without local steps, which is recorded and counted. A client
                that does not answer has the loss -inf.
        """
        raise NotImplementedError  # a class with chooses = True defines it: __init_subclass__ rejects others

    @abstractmethod
    def update(self, state: State, ids: Tensor, p: Tensor, report: Report) -> tuple[State, Named]:
        """The next state, and what to record: numbers [] of the round or [n] of its clients."""

    def shorten(self, before: State, after: State, scale: float) -> State:
        """The next state where the server goes only `scale` times as far from w_k (`guard=on`).

        A method whose state has a step in it, such as a momentum from which the next round starts, shortens that too.
        """
        return self.relocate(before, after, torch.lerp(self.locate(before), self.locate(after), scale))

    def locate(self, state: State) -> Tensor:
        """[P] what the server's step moves: w, or the latest model where w is an average of several."""
        return state.w

    def relocate(self, before: State, after: State, point: Tensor) -> State:
        """The next state where the step ends at another point: it was shortened, or another optimiser took it."""
        return after._replace(w=point)  # type: ignore[attr-defined, no-any-return]

    # one client

    def memory(self, w: Tensor) -> Named:
        """What a client that was never seen remembers."""
        return {}

    def begin(self, order: Order, memory: Named) -> Tensor:
        """[..., P]: where a client's local steps start, and what it evaluates; w_k, unless it has a model of its own.

        F_i and g0 of the probe are at this point too.
        """
        return order.w

    def start(self, order: Order, memory: Named, g0: Tensor) -> Carry:
        """What a client carries into its first step; g0 is the gradient of F_i at `begin`, NaN where it is not needed.

        A method that needs F_i itself takes it as one more argument, `loss` [..., 1].
        """
        return cast(Carry, ())

    def direction(self, order: Order, s: Carry, w: Tensor, g: Tensor) -> Tensor:
        """Along which a local step goes from w, where the gradient on the mini-batch is g."""
        return g

    def track(self, order: Order, s: Carry, w: Tensor, g: Tensor, mean: Tensor | NoCarry) -> Carry:
        """What a client carries on after the step to w along gradient g.

        `mean` is that of the directions up to here, where the method needs it and the optimiser is not plain SGD: with
        plain SGD it is (w_k - w) / (lr steps), and () is given.
        """
        return s

    def step(self, order: Order, s: Carry, w: Tensor, g: Tensor) -> tuple[Tensor, Carry]:
        w = descend(w, self.direction(order, s, w, g), self.lr)  # (1)
        return w, self.track(order, s, w, g, ())

    def models(self, order: Order, s: Carry) -> Named:
        """[..., P] each: other models, of which `loss` sees the outputs on the same rows."""
        return {}

    def loss(self, base: RowLoss, out: Outputs, y: Tensor, counts: Tensor, others: dict[str, Outputs]) -> Tensor:
        """[B]: what a local step minimises, of one client's mini-batch, where `has_loss` is true.

        Args:
            base: The loss of the problem.
            out: Of the model that steps.
            y: The labels or targets.
            counts: [C] how many of the client's rows have each label, float32; they never leave the client.
            others: Of the models that `models` names, in evaluation mode and without a gradient.
        """
        return base(out.scores, y)

    def arrive(self, order: Order, s: Carry, w: Tensor, loss: Tensor, g: Tensor) -> Carry:
        """What a client carries into `finish`, where `needs_gradient_after` is true.

        Args:
            order: The round's.
            s: What it carries after its last local step.
            w: Its local model after that step.
            loss: [..., 1] F_i(w), on the rows of the probe.
            g: [..., P] grad F_i(w), on the same rows.
        """
        return s

    @abstractmethod
    def finish(self, order: Order, s: Carry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        """Vectors for the mean, numbers for the server, memory for the client's next round.

        A method that needs the mean of its directions takes it as one more argument, `mean`, as `track` has it.
        """


def start_client(
    algorithm: Algorithm[State, Carry], order: Order, memory: Named, g0: Tensor, loss: Tensor | NoCarry
) -> Carry:
    """`start` with what the method asks for; loss [..., 1] is F_i at the client's `begin`."""
    more = {"loss": loss} if algorithm.needs_loss else {}
    return algorithm.start(order, memory, g0, **more)


def descend(w: Tensor, d: Tensor, lr: float | Tensor) -> Tensor:
    """w - lr d; in a captured CUDA graph the rate may be a tensor, which changes from round to round."""
    return torch.addcmul(w, d, lr, value=-1) if isinstance(lr, Tensor) else torch.sub(w, d, alpha=lr)
