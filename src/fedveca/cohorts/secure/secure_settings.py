"""What `secure=on` asks of the other settings, read without PyTorch."""

from __future__ import annotations

from typing import Protocol

from fedveca.errors import UserError

LEAST_CLIENTS = 3  # of a sum: of two vectors each client would know the other's from it


class SecureSettings(Protocol):
    """The settings that are checked here, as `Experiment` has them."""

    @property
    def secure(self) -> str: ...
    @property
    def secure_threshold(self) -> int: ...
    @property
    def method(self) -> str: ...
    @property
    def aggregate(self) -> str: ...
    @property
    def wire(self) -> str: ...
    @property
    def schedule(self) -> str: ...


def find_threshold(asked: int, setting: int = 0) -> int:
    """How many of the clients that were asked must answer, in every stage, for the sum to be found.

    Args:
        asked: Clients of the round.
        setting: The setting `secure_threshold`; 0 is two thirds of the clients, rounded up.

    Returns:
        The threshold t: any t clients can undo the masks of those that are lost, and fewer cannot.

    Examples:
        >>> [find_threshold(n) for n in (3, 4, 5, 10)]
        [2, 3, 4, 7]
    """
    return setting or -(-2 * asked // 3)


def check_secure(e: SecureSettings) -> None:
    """UserError where secure aggregation does not go with the other settings."""
    if e.secure == "off":
        if e.secure_threshold:
            raise UserError(f"secure_threshold={e.secure_threshold} is of secure=on")
        return
    for name, value, allowed, why in (
        ("aggregate", e.aggregate, "mean", "a robust rule needs the clients' vectors one by one; take aggregate=mean"),
        ("wire", e.wire, "float32", "masked numbers are whole numbers of 64 bits; take wire=float32"),
        ("schedule", e.schedule, "sync", "masks cancel between clients of one round; take schedule=sync or deadline"),
    ):
        if value != allowed and (name, value) != ("schedule", "deadline"):
            raise UserError(f"{name}={value} cannot go with secure=on: {why}")


def check_quorum(asked: int, setting: int, said: str) -> int:
    """The threshold of rounds with so many clients; UserError where no safe one exists.

    With more than half of the clients, no two groups can undo different masks of the same client.
    """
    if asked < LEAST_CLIENTS:
        raise UserError(f"secure=on needs {LEAST_CLIENTS} clients or more per round; {said} draws {asked}")
    threshold = find_threshold(asked, setting)
    if not asked < 2 * threshold <= 2 * asked:
        low = asked // 2 + 1
        raise UserError(
            f"secure_threshold={setting} is out of range; allowed with {asked} clients per round: [{low}, {asked}], or "
            "0 for two thirds of them"
        )
    return threshold
