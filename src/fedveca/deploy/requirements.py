"""A lock of what a machine of a federation installs: the versions that are installed here."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata

_HEADER = "# What is installed where this deployment was made: pip install -r requirements.txt\n"
_TORCH = "https://download.pytorch.org/whl/"  # where versions with a label such as +cpu are published


@cache  # the same for every node
def lock_requirements(extras: tuple[str, ...]) -> str:
    """The text of a requirements file: this package, what it needs with these extras, and what those need.

    Args:
        extras: of this package; one of which a part is not installed is left out.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, str] = {}
    left = [("fedveca", frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        name, wanted = left.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = package.version
        for line in package.requires or []:
            needed = Requirement(line)
            asked = [{"extra": extra} for extra in ("", *wanted)]
            if needed.marker is None or any(needed.marker.evaluate(each) for each in asked):
                left.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    ours = f"[{','.join(sorted(extras))}]"
    labels = {match[1] for version in found.values() if (match := re.search(r"\+((?:cpu|cu|rocm)[\w.]*)$", version))}
    lines = [f"--extra-index-url {_TORCH}{label}" for label in sorted(labels)]
    lines += [f"{name}{ours if name == 'fedveca' else ''}=={version}" for name, version in sorted(found.items())]
    return _HEADER + "\n".join(lines) + "\n"
