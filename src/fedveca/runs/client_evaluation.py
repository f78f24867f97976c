"""How good the models of a run are: at the server, at the clients on rows that they hold back, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from fedveca.algorithms.contract import STATISTICS, Fault, HasModel, Order
from fedveca.algorithms.registry import is_pooled
from fedveca.cohorts.contract import ClientScores, HeldPart
from fedveca.cohorts.random import choose_judges, clients_per_round
from fedveca.cohorts.scores import LOSS
from fedveca.runs.build import Built
from fedveca.runs.evaluate import Evaluator, Keeper
from fedveca.runs.federate import choose_clients, evaluate_loss
from fedveca.runs.folder import to_json
from fedveca.runs.folder_types import Json, ModelResult
from fedveca.runs.schema import Direction, Round, find_quantity, get_number

RecordedValues = dict[str, Json]
JUDGES = 50  # clients on which models are compared, or more where more take part in a round: few differ too much
TENTH = 10  # the worst and the best clients are one in so many, at least one
EVALUATION_TIME = "evaluation_seconds"  # of the round, not of the model
_CLIENT_PREFIXES = ("client_test_", "client_tuned_", "clients_", "tuned_")


class ModelEvaluator:
    """Evaluates the models of one run where its settings ask for it, and says by which loss they are compared."""

    def __init__(self, built: Built, device: str) -> None:
        e = built.experiment
        self.built, self.experiment = built, e
        self.server = Evaluator(built.problem, built.data, device) if e.test_by != "client" else None
        # With noise, asking more clients would spend more epsilon.
        self.needs_judges = e.participation < 1 and not e.dp_noise
        self.judges_at_once = e.keep == "best" and (e.val > 0 or self.needs_judges)
        self.steps = 0 if is_pooled(e.method) else e.finetune_steps  # one client that has all rows is nobody's
        clients = len(built.cohort.sizes)
        self.judges = choose_judges(e.seed, clients, max(JUDGES, clients_per_round(clients, e.participation)))
        self._known: tuple[int, float] = (-1, math.inf)  # F on the judges of the model after so many rounds
        self._latest: tuple[int, RecordedValues] = (
            -1,
            {},
        )  # the values of the model that was tested last, and its round

    def evaluate_round(self, done: int, state: HasModel, model: Tensor, record: Round, test: bool) -> Round:
        """The record of the last of `done` rounds, with the values of the model [P + S] after it."""
        values, faults = self._evaluate(done, state, model, test)
        self._latest = (done, values) if test else self._latest
        both = [*record.get("faults", []), *faults]
        return cast(Round, {**record, **values} | ({"faults": both} if both else {}))

    def describe(self, done: int, state: HasModel, model: Tensor) -> ModelResult:
        """The closing values of the model after `done` rounds."""
        at, values = self._latest
        values = values if at == done else self._evaluate(done, state, model, True)[0]
        return cast(ModelResult, {"round": done, **{name: v for name, v in values.items() if name != EVALUATION_TIME}})

    def find_loss(self, done: int, state: HasModel, model: Tensor, record: Mapping[str, object]) -> float:
        """By which a model is compared with others: on all validation rows, else on one fixed set of clients."""
        if self.experiment.val:
            values = record if "val_loss" in record else self._validate(done, state, model)[0]
            loss = get_number(values, "val_loss")
            return math.inf if loss is None else loss
        return self.find_training_loss(done, state, model)

    def find_training_loss(self, done: int, state: HasModel, model: Tensor) -> float:
        """F of the model after `done` rounds, on one fixed set of clients."""
        if self._known[0] != done:
            self._known = (done, evaluate_loss(self.built.cohort, self._order(done, state, model), done, self.judges))
        return self._known[1]

    def find_last_loss(self, keeper: Keeper) -> float:
        """F of the last model, where it decides something; that of each other one is known from the round after it."""
        if keeper.guard and self.needs_judges:
            return self.find_training_loss(keeper.round, keeper.state, keeper.model)
        if not keeper.guard and (self.experiment.keep != "best" or self.judges_at_once):
            return -math.inf
        return self._find_next_loss(keeper, keeper.model)

    def find_best_loss(self, keeper: Keeper) -> float:
        """F of the guard's best model; clients may have reported that of another one, such as a momentum leads to."""
        assert keeper.guard
        return keeper.guard.numbers.lowest if self.needs_judges else self._find_next_loss(keeper, keeper.guard.best)

    def _find_next_loss(self, keeper: Keeper, model: Tensor) -> float:
        """F of a model [P + S] as the next round's clients would report it."""
        e, cohort, k = self.experiment, self.built.cohort, keeper.round
        order = self._order(k, keeper.state, model)
        return evaluate_loss(cohort, order, k, choose_clients(cohort, k, e.participation, e.seed))

    def _evaluate(self, done: int, state: HasModel, model: Tensor, test: bool) -> tuple[RecordedValues, list[Fault]]:
        values, faults = RecordedValues(), list[Fault]()
        if test and self.server:
            values |= cast(RecordedValues, self.server(model))
        if self.experiment.val and (test or self.judges_at_once):
            found, more = self._validate(done, state, model)
            values, faults = values | found, faults + more
        if test and self.experiment.test_by != "server":
            found, more = self._test_at_clients(done, state, model)
            values, faults = found | values, faults + more  # where both test, the test values are the server's
        return values, faults

    def _validate(self, done: int, state: HasModel, model: Tensor) -> tuple[RecordedValues, list[Fault]]:
        scores = self._ask(done, state, model, "val")
        return {f"val_{name}": to_json(_mean_by_rows(scores, v)) for name, v in scores.values.items()}, [*scores.faults]

    def _test_at_clients(self, done: int, state: HasModel, model: Tensor) -> tuple[RecordedValues, list[Fault]]:
        scores, better = self._ask(done, state, model, "test"), self._directions()
        values = {f"test_{name}": to_json(_mean_by_rows(scores, v)) for name, v in scores.values.items()}
        values |= {"tested": scores.ids.tolist()}
        values |= {f"client_test_{name}": to_json(v) for name, v in scores.values.items()}
        values |= summarize_clients(scores, "clients", better)
        values |= {} if scores.seconds is None else {EVALUATION_TIME: to_json(scores.seconds)}
        if not self.steps:
            return values, [*scores.faults]
        tuned = _align(self._ask(done, state, model, "test", self.steps), scores.ids)
        values |= {f"client_tuned_{name}": to_json(v) for name, v in tuned.values.items()}
        return values | summarize_clients(tuned, "tuned", better), [*scores.faults, *tuned.faults]

    def _ask(self, done: int, state: HasModel, model: Tensor, part: HeldPart, finetune: int = 0) -> ClientScores:
        k = max(0, done - 1)  # of the round that made the model: its learning rate is the one to tune with
        return self.built.cohort.evaluate(k, self._order(done, state, model), part, finetune)

    def _order(self, done: int, state: HasModel, model: Tensor) -> Order:
        """What the clients get with the model; of a model before the last, the other vectors are today's."""
        size = self.built.problem.size
        order = self.built.algorithm.at(max(0, done - 1)).order(state)._replace(w=model[:size])
        return order._replace(aux=order.aux | {STATISTICS: model[size:]}) if len(model) > size else order

    def _directions(self) -> dict[str, Direction | None]:
        better: dict[str, Direction | None] = {metric.name: metric.better for metric in self.built.problem.metrics}
        return better | {LOSS: "lower"}


def summarize_clients(scores: ClientScores, prefix: str, better: Mapping[str, Direction | None]) -> RecordedValues:
    """Mean over clients and by rows, spread, worst and best tenth of each value; null where there is none.

    Without a direction nobody knows who is worst, so the tenths are left out.
    """
    out: RecordedValues = {}
    for name, v in scores.values.items():
        counted = v[_is_counted(scores, v)]
        out[f"{prefix}_{name}"] = to_json(counted.mean())
        out[f"{prefix}_{name}_rows"] = to_json(_mean_by_rows(scores, v))
        out[f"{prefix}_{name}_sd"] = to_json(counted.std(correction=0)) if len(counted) else None
        if better.get(name):
            ordered = counted.sort(descending=better[name] == "lower").values  # the worst first
            few = max(1, len(counted) // TENTH)
            out[f"{prefix}_{name}_worst"] = to_json(ordered[:few].mean())
            out[f"{prefix}_{name}_best"] = to_json(ordered[-few:].mean())
    return out


def drop_evaluation(record: Round, *, val: bool) -> Round:
    """The line without what only a tested round has; with `val`, without the values of validation rows too."""
    kept = {name: v for name, v in record.items() if not _is_evaluation(name) and not (val and name.startswith("val_"))}
    return cast(Round, kept)


def _is_evaluation(name: str) -> bool:
    of_clients = name.startswith(_CLIENT_PREFIXES) and find_quantity(name) is not None
    return name.startswith("test_") or name in ("tested", EVALUATION_TIME) or of_clients


def _is_counted(scores: ClientScores, v: Tensor) -> Tensor:
    """[n] bool: a metric that a client's rows do not define, such as the AUC of one class, does not count.

    That of a client whose model has diverged does, so that no mean hides it.
    """
    return v.isfinite() | ~scores.values[LOSS].isfinite()


def _mean_by_rows(scores: ClientScores, v: Tensor) -> Tensor:
    counted = _is_counted(scores, v)
    weight = scores.rows[counted].double()
    return weight @ v[counted] / weight.sum()


def _align(tuned: ClientScores, ids: Tensor) -> ClientScores:
    """Tuned values of the clients `ids`, NaN for one that has answered no more; so that both lists have one length."""
    if torch.equal(tuned.ids, ids):
        return tuned
    at = {i: n for n, i in enumerate(tuned.ids.tolist())}
    place = torch.tensor([at.get(i, -1) for i in ids.tolist()], dtype=torch.int64)
    there = place >= 0
    values = {
        name: torch.where(there, v[place] if len(v) else torch.nan, torch.nan) for name, v in tuned.values.items()
    }
    return tuned._replace(ids=ids, rows=tuned.rows[place] if len(tuned.rows) else ids, values=values)
