"""What the rows of nodes look like, as a server without data learns it from them: checked, and the same for all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from fedveca.cohorts.flower.messages import InvalidAnswer, Value, bound_text
from fedveca.tasks.datasets.dataset import is_preparation

_MOST = 2**20  # of a size, and of the labels
_MOST_SIZES = 8
_SIZES = re.compile(r"(\d{1,7}(,\d{1,7})*)?", re.ASCII)


class NodeForm(NamedTuple):
    """What a model of a node's rows takes."""

    shape: tuple[int, ...]  # of a row
    targets: tuple[int, ...]  # shape of the targets of a row; empty for one
    tokens: bool  # whether rows are whole numbers for an Embedding
    pixels: str  # how a row becomes an input
    classes: int  # 0 where the targets are numbers

    def to_settings(self) -> dict[str, Value]:
        """As it travels."""
        shape, targets = (",".join(map(str, sizes)) for sizes in (self.shape, self.targets))
        return self._asdict() | {"shape": shape, "targets": targets}

    def describe(self) -> str:
        kind = "tokens" if self.tokens else f"rows (pixels={self.pixels})"
        return f"{kind} of shape {list(self.shape)} with targets of shape {list(self.targets)}"


def read_form(settings: Mapping[str, object]) -> NodeForm:
    """What a node says of its rows; InvalidAnswer where that is not a form."""
    shape, targets = (_read_sizes(settings, name) for name in ("shape", "targets"))
    tokens, pixels, classes = (settings.get(name) for name in ("tokens", "pixels", "classes"))
    if not shape:
        raise InvalidAnswer("says its rows have no shape")
    if type(tokens) is not bool:
        raise InvalidAnswer(f"says of its rows that tokens is {bound_text(tokens)}, not True or False")
    if type(classes) is not int or not 0 <= classes <= _MOST:
        raise InvalidAnswer(f"says it has {bound_text(classes)} labels; allowed: 0 to {_MOST}")
    if not isinstance(pixels, str) or not is_preparation(pixels, shape):
        raise InvalidAnswer(f"says its rows are prepared by pixels={bound_text(pixels)}, which is not known")
    return NodeForm(shape, targets, tokens, pixels, classes)


def _read_sizes(settings: Mapping[str, object], name: str) -> tuple[int, ...]:
    text = settings.get(name)
    if isinstance(text, str) and _SIZES.fullmatch(text):
        sizes = tuple(int(size) for size in text.split(",") if size)
        if len(sizes) <= _MOST_SIZES and all(0 < size <= _MOST for size in sizes):
            return sizes
    raise InvalidAnswer(f"says its rows have {name} {bound_text(text)}, which are not sizes")


def agree_on_form(forms: Mapping[int, NodeForm]) -> tuple[NodeForm, dict[int, str]]:
    """The form of most clients, with labels for all of them, and why each of the others is odd.

    Of equally many, those with the lowest client number decide. Where one client has numbers to predict, all have.
    """
    kinds = Counter(form[:-1] for _, form in sorted(forms.items()))
    common = max(kinds, key=lambda kind: kinds[kind])  # the first of equals
    agreeing = [form for form in forms.values() if form[:-1] == common]
    classes = 0 if any(form.classes == 0 for form in agreeing) else max(form.classes for form in agreeing)
    agreed = agreeing[0]._replace(classes=classes)
    said = agreed.describe()
    odd = {i: form for i, form in forms.items() if form[:-1] != common}
    return agreed, {i: f"has {form.describe()}; most clients have {said}" for i, form in odd.items()}
