"""Power of choice (Cho, Wang and Joshi 2020): of d candidates, those with the highest losses take part.

In each round d clients are drawn by their shares of the rows, without replacement, and asked for F_i(w_k); the m with
the highest losses train. With d = m it is FedAvg with clients drawn by rows.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveca import Experiment, FedAvg, hyper, run
from fedveca.algorithms import AskLoss, ServerState
from fedveca.testing import check_algorithm


@dataclass(frozen=True)
class PowerOfChoice(FedAvg):
    d: int = hyper(6, "candidates per round", low=1)
    chooses: ClassVar[bool] = True

    def choose(self, state: ServerState, p: Tensor, u: Tensor, m: int, ask: AskLoss) -> Tensor:
        draws = u.log() / p  # the d largest are a draw without replacement by p (Efraimidis and Spirakis 2006)
        candidates = draws.topk(min(max(self.d, m), len(p))).indices
        return candidates[ask(candidates).topk(m).indices]


if __name__ == "__main__":
    check_algorithm(PowerOfChoice(lr=0.05))
    experiment = Experiment(partition="labels", clients=20, participation=0.15, rounds=40, keep="last")
    for d in (3, 9):
        done = run(experiment, method=PowerOfChoice(lr=0.05, d=d))
        asked, chosen = (done.rounds[-1][name] for name in ("candidates", "ids"))
        print(f"d = {d}, in the last round clients {asked} were asked, {chosen} took part:")
        print(f"  test accuracy {100 * done.summary['last']['test_accuracy']:.1f} %")
