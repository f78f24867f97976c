"""Every method declares itself here: name, title, colour, and what the rest of the package has to know of it.

A method is found where its class is decorated: in a module of this package, in a module that the environment
variable FEDVECA_PLUGINS names (`package.module,another`), or in the user's script itself. A class that is not decorated
has the name `package.module:Class`.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import pkgutil
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fedveca.algorithms.hyper import Hyper, hyperparameters
from fedveca.errors import UserError, explain_error, printable, show_value
from fedveca.imports import import_module

if TYPE_CHECKING:
    from fedveca.algorithms.contract import Algorithm  # at run time it would load PyTorch

PLUGINS = "FEDVECA_PLUGINS"
PACKAGE = "fedveca.algorithms"
CLASS = re.compile(r"[\w.-]+:[\w.]+")  # package.module:Class
NAME, COLOUR = re.compile(r"[a-z][a-z0-9_-]{0,39}"), re.compile(r"#[0-9A-Fa-f]{6}|")
# How a line is dashed: lengths on and off in widths of the line, as matplotlib, Plotly and SVG draw them alike.
DASHES: dict[str, tuple[float, ...]] = {
    "-": (),
    "--": (3.7, 1.6),
    "-.": (6.4, 1.6, 1, 1.6),
    ":": (1, 1.65),
    "__": (8, 2.4),
    "-..": (6.4, 1.6, 1, 1.6, 1, 1.6),
    ".": (1, 3.6),
}
Class = TypeVar("Class", bound="type[Algorithm]")


class MethodEntry(NamedTuple):
    """What the package knows of a method without running it."""

    name: str
    algorithm: type[Algorithm]
    title: str
    colour: str  # "" where a view chooses one
    dash: str  # a name of DASHES
    pooled: bool  # whether all rows are one client's
    paper: int  # its row of the paper's Table I, 0 where it has none


_entries: dict[str, MethodEntry] = {}
_loaded: dict[str, MethodEntry] = {}  # by package.module:Class
_imported: set[str] = set()


def method(
    name: str,
    *,
    title: str = "",
    colour: str = "",
    dash: str = "-",
    pooled: bool = False,
    paper: int = 0,
) -> Callable[[Class], Class]:
    """Registers a method under a name that settings, commands, reports and deployments then know.

    It stands above the frozen dataclass. Fields that are also settings of an `Experiment` (lr, alpha, tau_max, mu, ...)
    get their values from it; others keep their defaults, and can be set on an object given from Python.

    Args:
        name: What `method=` calls it: lower-case letters, digits, `-` and `_`.
        title: How reports and figures call it; the name where it is empty.
        colour: Its colour there, such as "#D55E00"; one is chosen where it is empty.
        dash: Its line there: "-" solid, "--" dashed, "-." dash and dot, ":" dotted, "__" long dashes, "-.." dash and
            two dots, "." sparse dots.
        pooled: Whether all rows belong to one client, so that it cannot be deployed.
        paper: Its row of the paper's Table I; 0 where it has none.

    Returns:
        A decorator that returns the class as it is.

    Raises:
        UserError: Where the class or one of the arguments cannot be a method's, or where the name is taken.

    ```python
    @method("half", title="Half steps")
    @dataclass(frozen=True)
    class Half(FedAvg):
        factor: float = hyper(0.5, "of the step", low=0, high=1)
    ```
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UserError(f"method: {show_value(name)} is not a name; allowed: lower-case letters, digits, - and _")
    for what, value, allowed in (("title", title, "printable text"), ("colour", colour, "'#RRGGBB'")):
        if not isinstance(value, str) or not value.isprintable() or (what == "colour" and not COLOUR.fullmatch(value)):
            raise UserError(f"method {name}: {what}={show_value(value)} is not allowed; allowed: {allowed}")
    if dash not in DASHES:
        raise UserError(f"method {name}: dash={show_value(dash)} is not known; allowed: {' | '.join(DASHES)}")

    def register(algorithm: Class) -> Class:
        check_class(algorithm, f"method {name}")
        there = _entries.get(name)
        if there and (there.algorithm.__module__, there.algorithm.__qualname__) != (
            algorithm.__module__,
            algorithm.__qualname__,
        ):
            raise UserError(f"method {name} is registered already, by {there.algorithm.__module__}")
        _entries[name] = MethodEntry(name, algorithm, title or name, colour, dash, pooled, paper)
        return algorithm

    return register


def check_class(algorithm: object, said: str) -> None:
    """UserError where a class cannot be registered: it is made from settings alone."""
    from fedveca.algorithms.contract import Algorithm

    if not isinstance(algorithm, type) or not issubclass(algorithm, Algorithm):
        raise UserError(f"{said} is {show_value(algorithm)}, which is not a subclass of {PACKAGE}.Algorithm")
    if not dataclasses.is_dataclass(algorithm) or "__dataclass_fields__" not in vars(algorithm):
        raise UserError(f"{said}: {algorithm.__name__} is not a dataclass; write @dataclass(frozen=True) above it")
    missing = (dataclasses.MISSING, dataclasses.MISSING)
    for field in dataclasses.fields(algorithm):
        if field.name != "lr" and (field.default, field.default_factory) == missing:
            raise UserError(f"{said}: the field {field.name} needs a default; only lr is always given")


def methods() -> dict[str, MethodEntry]:
    """Every method by name: those of the paper in its order, the package's others by name, then the user's."""
    import_methods()
    import_plugins()
    return dict(sorted(_entries.items(), key=lambda item: _rank(item[1])))


def find_method(name: str) -> MethodEntry | None:
    """The method of this name, where it is registered or loaded: no module is imported because a record names it."""
    import_methods()
    import_plugins()
    return _entries.get(name) or _loaded.get(name)


def load_method(name: str) -> MethodEntry:
    """The method of this name; that of `package.module:Class` is imported, once.

    Raises:
        UserError: Where there is none, or the class cannot be a method.
    """
    if known := find_method(name):
        return known
    said, (module, _, attribute) = f"method={printable(name)}", name.partition(":")
    if not attribute:
        raise UserError(f"{said} is not known; it is one of {', '.join(methods())}, or package.module:Class")
    try:
        algorithm: type[Algorithm] = getattr(import_module(module), attribute)
    except Exception as error:  # a user's file may fail in any way
        raise UserError(f"{said} cannot be imported: {explain_error(error)}") from error
    check_class(algorithm, said)
    if missing := sorted(getattr(algorithm, "__abstractmethods__", ())):
        raise UserError(f"{said} does not define {' and '.join(missing)}")
    registered = next((entry for entry in _entries.values() if entry.algorithm is algorithm), None)
    entry = registered or MethodEntry(name, algorithm, algorithm.__name__, "", "-", False, 0)
    _loaded[name] = entry._replace(name=name)
    return _loaded[name]


def shorten_method(name: str) -> str:
    """A method's name in a line: of `package.module:Class` the class."""
    return name.rpartition(":")[2] if CLASS.fullmatch(name) else name


def _rank(entry: MethodEntry) -> tuple[float, bool, str]:
    """Where it stands; the user's methods stay in the order in which they were registered."""
    packaged = _is_packaged(entry)
    return entry.paper or math.inf, not packaged, entry.name if packaged else ""


def list_packaged_methods() -> list[MethodEntry]:
    """The package's own methods, in the order of `methods`."""
    return [entry for entry in methods().values() if _is_packaged(entry)]


def list_custom_methods() -> list[MethodEntry]:
    """The methods of plugins and of the user's script; the package's own, and so PyTorch, are not imported for it."""
    import_plugins()
    return [entry for entry in _entries.values() if not _is_packaged(entry)]


def import_plugins() -> None:
    """Imports every module that FEDVECA_PLUGINS names once."""
    for plugin in filter(None, map(str.strip, os.environ.get(PLUGINS, "").split(","))):
        if plugin not in _imported:
            _imported.add(plugin)  # before it runs: what it imports may ask for methods too
            try:
                import_module(plugin)
            except Exception as error:  # a user's file may fail in any way
                _imported.discard(plugin)
                raise UserError(f"{PLUGINS}={printable(plugin)} cannot be imported: {explain_error(error)}") from error


def _is_packaged(entry: MethodEntry) -> bool:
    return entry.algorithm.__module__.startswith(f"{PACKAGE}.")


def import_methods() -> None:
    """Imports every module of this package once, so that its methods are registered."""
    if PACKAGE not in _imported:
        _imported.add(PACKAGE)
        for module in pkgutil.walk_packages(importlib.import_module(PACKAGE).__path__, f"{PACKAGE}."):
            importlib.import_module(module.name)


def paper_methods() -> tuple[str, ...]:
    """The methods of the paper's Table I, in its order: what `compare` runs where none are named."""
    return tuple(name for name, entry in methods().items() if entry.paper)


def deployable_methods() -> tuple[str, ...]:
    """The methods that real nodes can run."""
    return tuple(name for name, entry in methods().items() if not entry.pooled)


def is_adaptive(given: object) -> bool:
    """Whether a method chooses the numbers of local steps itself; the others are given them.

    It is asked of a name, of an object, and of the name by which a run records an object of a registered class.
    """
    if not isinstance(given, str):
        return bool(getattr(given, "adapts", False))
    known = _find_class(given)
    return known is not None and known.adapts


def is_guarded_by_default(name: str) -> bool:
    """Whether guard=auto is guard=on for a method, by its name or the name by which a run records an object."""
    known = _find_class(name)
    return known is not None and known.guarded


def _find_class(name: str) -> type[Algorithm] | None:
    """The class of a method by its name; also of `custom:FedVeca(lr=0.1)`, where that class is registered."""
    if known := find_method(name):
        return known.algorithm
    of_class = name.partition(":")[2].partition("(")[0]
    classes = (entry.algorithm for entry in methods().values())
    return next((known for known in classes if known.__name__ == of_class), None)


def is_pooled(name: str) -> bool:
    """Whether the method of this name trains on all rows as one client's."""
    known = find_method(name)
    return known is not None and known.pooled


def concerns(setting: str, name: str) -> bool:
    """Whether a setting has a meaning for a method: one that is some methods' hyperparameter is theirs alone."""
    owners = [entry.name for entry in methods().values() if setting in hyperparameters(entry.algorithm)]
    known = find_method(name)
    return not owners or (known is not None and setting in hyperparameters(known.algorithm))


def find_hyper(setting: str) -> tuple[Hyper, list[str]]:
    """What the package's methods declare of a setting of theirs, and the names of those methods."""
    import_methods()
    entries = sorted(_entries.values(), key=_rank)
    owners = [entry for entry in entries if _is_packaged(entry)]
    owners = [entry for entry in owners if setting in hyperparameters(entry.algorithm)]
    return hyperparameters(owners[0].algorithm)[setting], [entry.name for entry in owners]
