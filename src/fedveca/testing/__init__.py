"""One contract suite over every method, the package's and yours: `check_algorithm(MyMethod(lr=0.1))`.

A fault is an AssertionError of one sentence that names it. What is checked is what every method must satisfy,
whatever it computes; whether it computes the right thing is for tests of your own.
"""

from fedveca.algorithms.contract import Algorithm
from fedveca.testing.checks import CHECKS

__all__ = ["CHECKS", "check_algorithm"]


def check_algorithm(algorithm: Algorithm) -> None:
    """Checks that a method keeps every promise of `algorithms/contract.py`.

    A method that names layers of the model is checked on one with the layers `body` and `head`.

    Args:
        algorithm: An object of a subclass of fedveca.algorithms.Algorithm.

    Raises:
        AssertionError: With one sentence for the first promise that it breaks.

    Examples:
        >>> from fedveca import FedAvg
        >>> check_algorithm(FedAvg(lr=0.1))
    """
    for check in CHECKS:
        check(algorithm)
