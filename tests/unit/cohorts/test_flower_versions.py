"""What is said of a node's version: one sentence that says which side is older, whatever the node sent."""

from __future__ import annotations

import pytest

from fedveca.cohorts.flower.versions import compare_version


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("0.2.0", ""),
        ("0.1.9", "runs fedveca 0.1.9, which is older than the server's 0.2.0; update the node"),
        ("0.1.10", "runs fedveca 0.1.10, which is older than the server's 0.2.0; update the node"),
        ("0.10.0", "runs fedveca 0.10.0, which is newer than the server's 0.2.0; update the server"),
        ("0.2.0.1", "runs fedveca 0.2.0.1, which is newer than the server's 0.2.0; update the server"),
        ("0.2", "runs fedveca 0.2, which is not the server's 0.2.0"),
        ("0.2.0rc1", "runs fedveca 0.2.0rc1, which is not the server's 0.2.0"),
        (None, "does not say which fedveca it runs, so it is older than the server's 0.2.0; update the node"),
        (7, "says it runs fedveca 7, which is not a version"),
        ("", "says it runs fedveca '', which is not a version"),
        ("1\x1b[2J", "says it runs fedveca '1\\x1b[2J', which is not a version"),
        ("²", "says it runs fedveca '²', which is not a version"),
    ],
)
def test_one_sentence_says_which_side_is_older(stated: object, said: str) -> None:
    assert compare_version(stated, "0.2.0") == said


def test_a_long_version_does_not_make_a_long_sentence() -> None:
    assert len(compare_version("9" * 10**6, "0.2.0")) < 300
