"""A process that ends between two words to the file system."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest


class Cut(BaseException):
    """The process is gone."""


def cut_before(n: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the n-th word to the file system on, none comes through."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count > n:
                raise Cut
            return real(*args, **kwargs)

        return call

    for name in ("open", "fsync", "replace", "unlink", "mkdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    return monkeypatch.undo
