"""What settings can name, known without PyTorch: catalog.json repeats what the package's registries hold.

Importing the registries imports PyTorch, which takes seconds; a typing error, `fedveca list` and shell completion are
answered from this file. `python -m fedveca.runs.catalog` writes it anew, and a test compares it with the registries.
Where a source file was added or removed since, the registries themselves are asked. Methods of plugins and of the
user's script are never in the file.
"""

from __future__ import annotations

import json
import math
import sys
from functools import cache
from pathlib import Path
from typing import TypedDict

from fedveca.algorithms.hyper import Hyper, Range
from fedveca.algorithms.registry import MethodEntry, list_custom_methods

_ROOT = Path(__file__).parents[1]
CATALOG_FILE = _ROOT / "catalog.json"
_FOLDERS = ("algorithms", "algorithms/contrib", "tasks/datasets", "tasks/models")  # a file there is an entry or a few
POOLED = "SGD on the rows of all clients together, as a reference"


class HyperFacts(TypedDict):
    """A hyperparameter that is a setting too, and the methods that have it."""

    default: int | float
    text: str
    low: float | None
    high: float | None
    open_ends: bool
    owners: list[str]


class MethodFacts(TypedDict):
    """A method's title and a line about it."""

    title: str
    text: str
    paper: int


class Catalog(TypedDict):
    """Names and texts, each in the order in which it is shown."""

    files: list[str]
    methods: dict[str, MethodFacts]
    hyper: dict[str, HyperFacts]
    data: dict[str, str]
    recommended: dict[str, dict[str, str | int]]  # by data set; "" is a custom one
    downloads: list[str]
    models: dict[str, str]
    rates: dict[str, float]  # by model
    partitions: dict[str, str]
    losses: list[str]
    metrics: dict[str, str]
    aggregation: list[str]


@cache
def load_catalog() -> Catalog:
    """The file, or what the registries hold where the file is not of this source."""
    try:
        written: Catalog = json.loads(CATALOG_FILE.read_text("utf-8"))
        fresh = written["files"] == _list_files()
    except (OSError, ValueError, KeyError):
        fresh = False
    return written if fresh else collect_catalog()


def collect_catalog() -> Catalog:
    """What the package's registries hold; imports PyTorch."""
    from fedveca.algorithms import registry
    from fedveca.algorithms.hyper import hyperparameters
    from fedveca.cohorts.aggregate import AGGREGATION_RULES
    from fedveca.tasks.datasets.dataset import DATASETS, Recommended
    from fedveca.tasks.datasets.download import SOURCES
    from fedveca.tasks.losses import LOSSES
    from fedveca.tasks.metrics import METRICS
    from fedveca.tasks.models import MODELS
    from fedveca.tasks.partition import RULES

    mine = registry.list_packaged_methods()
    names = sorted({name for entry in mine for name in hyperparameters(entry.algorithm)})
    return {
        "files": _list_files(),
        "methods": {entry.name: _describe_method(entry) for entry in mine},
        "hyper": {name: _describe_hyper(*registry.find_hyper(name)) for name in names},
        "data": {name: entry.text for name, entry in DATASETS.items()},
        "recommended": {"": Recommended()._asdict()} | {k: v.recommended._asdict() for k, v in DATASETS.items()},
        "downloads": sorted(SOURCES),
        "models": {name: entry.text for name, entry in MODELS.items()},
        "rates": {name: entry.lr for name, entry in MODELS.items()},
        "partitions": {name: entry.text for name, entry in RULES.items()},
        "losses": list(LOSSES),
        "metrics": {name: metric.text for name, metric in METRICS.items()},
        "aggregation": list(AGGREGATION_RULES),
    }


def known_methods() -> dict[str, MethodFacts]:
    """Every method that can be named: the package's, then those of plugins and of the user's script."""
    return load_catalog()["methods"] | {entry.name: _describe_method(entry) for entry in list_custom_methods()}


def describe_values(setting: str) -> dict[str, str]:
    """The names that a setting can have, each with a line about it; nothing where they need no explanation."""
    if setting == "method":
        return {name: facts["text"] for name, facts in known_methods().items()}
    names = load_catalog()
    texts = {"data": names["data"], "model": names["models"], "partition": names["partitions"]}
    texts["metric"] = {"auto": "accuracy of labels, absolute_error of numbers"} | names["metrics"]
    return texts.get(setting, {})


def known_hyper(name: str) -> tuple[Hyper, list[str]]:
    """What the package's methods declare of a setting of theirs, and the names of those methods."""
    facts = load_catalog()["hyper"][name]
    low, high = facts["low"], facts["high"]
    allowed = Range(-math.inf if low is None else low, math.inf if high is None else high, facts["open_ends"])
    return Hyper(facts["default"], facts["text"], allowed), facts["owners"]


def _describe_method(entry: MethodEntry) -> MethodFacts:
    """The line is the first one of the module's docstring, as a file is one method; a user's class has its own."""
    module = sys.modules[entry.algorithm.__module__]
    packaged = entry.algorithm.__module__.startswith("fedveca.")
    text = (module if packaged else entry.algorithm).__doc__ or ""
    line = POOLED if packaged and entry.pooled else next(iter(text.strip().splitlines()), "")
    return {"title": entry.title, "text": line, "paper": entry.paper}


def _describe_hyper(declared: Hyper, owners: list[str]) -> HyperFacts:
    low, high, open_ends = declared.range
    return {
        "default": declared.default,
        "text": declared.text,
        "low": None if math.isinf(low) else low,
        "high": None if math.isinf(high) else high,
        "open_ends": bool(open_ends),
        "owners": owners,
    }


def _list_files() -> list[str]:
    paths = (path for folder in _FOLDERS for path in (_ROOT / folder).glob("*.py"))
    return sorted(path.relative_to(_ROOT).as_posix() for path in paths)


def encode_catalog(content: Catalog) -> str:
    """As the file holds it."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


if __name__ == "__main__":
    CATALOG_FILE.write_text(encode_catalog(collect_catalog()), "utf-8")
