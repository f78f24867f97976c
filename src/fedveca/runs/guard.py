"""The guard of a run (`guard=on`): where training goes wrong, back to the best model, and shorter server steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import HasModel
from fedveca.algorithms.registry import is_guarded_by_default
from fedveca.runs.experiment import Experiment

GROWTH = 10.0  # times the loss of the start: so much is divergence
LOST = 0.5  # share of what the loss has fallen by so far: a model that has lost more of it is in trouble
END_LOST = 0.02  # the same of the last model: what a run returns needs no second chance
PATIENCE = 3  # rounds in a row in trouble, before the guard acts; beyond GROWTH it acts at once
SHORTER = 0.5  # the server's step after going back, relative to the one before
LONGER = math.sqrt(2)  # and after a time without trouble
SHORTEST = 2.0**-20
CALM = 10  # rounds of that time after the first return; it doubles with each further one
MOST_FAILURES = 10  # rounds without a finite model since the lowest loss last fell
GUESS_BAND = 0.01  # share of the loss of a guess: what is not so far below it has learned nothing; also, progress
FALLEN = 1.03  # times the loss of a guess: a run that starts above that falls to it where its units die
IDLE = 15  # rounds in a row that a run may stay there; the longest of a run that learned later was eight
PROGRESS = 1e-4  # by what share of it, at least: the loss of the same model may differ in its last digits


def is_guarded(e: Experiment) -> bool:
    """Whether a run has a guard. guard=auto is on for methods that declare it, where nothing speaks against it."""
    if e.guard != "auto":
        return e.guard == "on"
    fits = not e.dp_noise and e.keep != "rollback" and e.schedule != "buffered"
    return fits and is_guarded_by_default(e.method)


FindLoss = Callable[
    [int, HasModel, Tensor], float
]  # (round k, state, model [P + S]) -> F(w_k) on the same clients each time


class GuardNumbers(NamedTuple):
    """What a guard knows besides the best model; a checkpoint stores it as float64."""

    start: float = math.nan  # F(w_0), or that of the first round that has one
    lowest: float = math.inf  # F of the best model
    best_round: int = 0  # after how many rounds it was the server's
    above: int = 0  # rounds in a row in trouble
    calm: int = 0  # rounds without trouble since the step was last changed
    returns: int = 0  # how often it went back
    failures: int = 0  # rounds without a finite model since the lowest loss last fell
    scale: float = 1.0  # of the server's step
    idle: int = 0  # rounds in a row in which the model was no better than a guess, and none better than the last
    floor: float = math.inf  # lowest loss since the last return, of models that guess, too


class TrainingGuard:
    """Judges every w_k by its training loss F(w_k), which the clients report in round k.

    Overshoot is left alone: methods often train best at the edge of stability. Trouble is a loss above that of the
    start, or one that has lost more than half of what was gained, in three rounds in a row; at once, a loss of ten
    times that of the start, or a round without a finite model. Then the run goes back to the model with the lowest
    loss, and the server takes steps of half the length. After a while without trouble they grow again.

    A network whose units have died predicts the same for every row. Where the initial loss was higher, that looks like
    progress: so a model that is no better than a guess is not the best one, and fifteen in a row are trouble.

    Only the model is taken back. Everything else that method and clients carry over (SCAFFOLD's c and c_i, momentum,
    moments, estimates, the adapted tau) starts anew, as in round 1: what they are now belongs to the model that went
    wrong, what they were is not stored, and one part without the others would break what holds between them, such as
    that c is the mean of the c_i.
    """

    def __init__(self, best: Tensor, tau: Tensor, find_loss: FindLoss | None = None, guess: float = math.nan) -> None:
        """Starts with a run.

        Args:
            best: [P + S] the model to which it goes back: at first w_0.
            tau: [N] the local steps with which the method starts.
            find_loss: Where given, it finds F(w_k) on a fixed set of clients: losses of different ones do not compare.
            guess: The loss of a model that gives every label the same probability; NaN where that is not known.
        """
        self.best, self.tau, self.find_loss, self.guess = best, tau, find_loss, guess
        self.numbers = GuardNumbers()

    @property
    def scale(self) -> float:
        return self.numbers.scale

    def has_lost(self, loss: float, share: float) -> bool:
        """Whether a model with this loss has lost more than a share of what was gained; so has one above the start."""
        start, lowest = self.numbers.start, self.numbers.lowest
        return not loss <= lowest + share * max(0.0, start - lowest)

    def judge(self, k: int, model: Tensor, loss: float) -> str:
        """What is wrong with w_k, so that the run must go back; empty where it may continue."""
        n = self.numbers
        if math.isnan(n.start) and math.isfinite(loss):
            n = n._replace(start=loss)
        guesses = n.start > FALLEN * self.guess and loss >= (1 - GUESS_BAND) * self.guess
        falls = loss < (1 - GUESS_BAND) * n.floor
        n = n._replace(idle=n.idle + 1 if guesses and not falls else 0, floor=min(n.floor, loss))
        if loss < n.lowest and (not guesses or math.isinf(n.lowest)):
            better = loss < n.lowest - PROGRESS * abs(loss)
            self.best = model
            n = n._replace(lowest=loss, best_round=k, failures=0 if better else n.failures)
        self.numbers = n
        if n.idle >= IDLE:
            return f"for {IDLE} rounds the training loss was that of a guess ({self.guess:.4g}) or more"
        if not self.has_lost(loss, LOST):
            self._count_calm()
            return ""
        self.numbers = n._replace(above=n.above + 1, calm=0)
        if not loss <= GROWTH * abs(n.start):
            return f"the training loss was {loss:.4g}, more than {GROWTH:g} times that of the start ({n.start:.4g})"
        if self.numbers.above < PATIENCE:
            return ""
        return f"the training loss was {loss:.4g}, for {PATIENCE} rounds far above the lowest ({n.lowest:.4g})"

    def _count_calm(self) -> None:
        n = self.numbers._replace(above=0, calm=self.numbers.calm + 1)
        if n.scale < 1 and n.calm >= CALM * 2 ** (n.returns - 1):
            n = n._replace(scale=min(1.0, n.scale * LONGER), calm=0)
        self.numbers = n

    def give_up(self) -> bool:
        """Counts a round without a finite model; whether there have been too many."""
        self.numbers = self.numbers._replace(failures=self.numbers.failures + 1)
        return self.numbers.failures > MOST_FAILURES

    def shorten(self) -> str:
        """Counts a return and halves the step; says to which model the run goes back."""
        n = self.numbers
        scale = max(SHORTEST, n.scale * SHORTER)
        self.numbers = n._replace(above=0, calm=0, returns=n.returns + 1, scale=scale, idle=0, floor=math.inf)
        where = f"the model after round {n.best_round}" if n.best_round else "the initial model"
        return f"back to {where}, with server steps of {self.numbers.scale:.3g} times their length"

    def save(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {"guard.best": self.best, "guard.numbers": torch.tensor(self.numbers, dtype=torch.float64)}


def restore_numbers(stored: Tensor) -> GuardNumbers | None:
    """The numbers that a checkpoint stored; None where no run can have stored them."""
    start, lowest, best_round, above, calm, returns, failures, scale, idle, floor = stored.tolist()
    counts = (best_round, above, calm, returns, failures, idle)
    if not all(0 <= number < 2**31 and number == int(number) for number in counts) or not 0 < scale <= 1:
        return None
    return GuardNumbers(
        start, lowest, int(best_round), int(above), int(calm), int(returns), int(failures), scale, int(idle), floor
    )
