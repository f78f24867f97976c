"""How the setting `metric` is written: names with commas between; known without PyTorch."""

from __future__ import annotations

from fedveca.errors import UserError, printable

TABLES = ("confusion",)  # metrics that are not one number: no curve shows them, and nothing is chosen by them


def parse_metrics(text: str) -> tuple[str, ...]:
    """The names in `accuracy,f1,confusion`, in this order; the first is the one that curves and tables show.

    Raises:
        UserError: Where it is empty, names a metric twice, or starts with a table.
    """
    names = tuple(word.strip() for word in text.split(","))
    said = f"metric={printable(text)}"
    if not all(names):
        raise UserError(f"{said} is not a list of metrics; it is names with commas between, such as accuracy,f1")
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UserError(f"{said} names {printable(twice)} twice; name each metric once")
    if names[0] in TABLES:
        raise UserError(
            f"{said} starts with a table; the first metric is the one that curves show, so name a number before it, "
            f"such as accuracy,{names[0]}"
        )
    return names
