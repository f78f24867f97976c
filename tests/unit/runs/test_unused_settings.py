"""Settings without effect are named."""

from __future__ import annotations

import pytest

from fedveca import Experiment
from fedveca.runs.setting_checks import FIELDS, choices
from fedveca.runs.unused_settings import USES, Use, list_unused


@pytest.mark.parametrize("use", USES, ids=lambda use: use.setting)
def test_what_a_setting_is_for_is_what_its_text_says(use: Use) -> None:
    names, _, text = FIELDS[use.setting].metadata["text"].partition(":")
    said = names.removeprefix(f"{use.of}=").split(", ")
    assert tuple(said) == use.values
    assert text
    other = FIELDS[use.of]
    assert {*use.values} <= {*choices(other), *other.metadata["text"].replace(" ", ",").split(",")}


def say(methods: tuple[str, ...] = ("fedveca",), **settings: object) -> list[str]:
    return list_unused(Experiment(**settings), settings, methods)  # type: ignore[arg-type]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.setting)
def test_each_is_named_unless_the_other_setting_has_one_of_its_values(use: Use) -> None:
    value = getattr(Experiment(), use.setting)
    other = str(getattr(Experiment(), use.of))
    named = [use.setting, use.of]
    assert list_unused(Experiment(), named, ["fedveca"]) == [
        f"{use.setting}={value} has no effect with {use.of}={other}; it is for {use.of}={' or '.join(use.values)}"
    ]
    fitting = {"lr_schedule": {"lr_every": 1}}.get(use.of, {})
    for one in use.values:
        assert not list_unused(Experiment(**{use.of: one, **fitting}), named, ["fedveca"])  # type: ignore[arg-type]


def test_settings_of_other_methods() -> None:
    assert say(("fedavg",), mu=5.0) == ["mu=5.0 has no effect with method=fedavg"]
    assert say(("fedavg", "scaffold"), alpha=0.5) == ["alpha=0.5 has no effect with method=fedavg or scaffold"]
    assert not say(("fedavg", "fedprox"), mu=5.0)
    assert not say(("fedavg",), lr=0.1, clients=3)


def test_local_steps_beside_epochs_and_clients_of_centralised_training() -> None:
    assert say(epochs="1", tau_0=3) == ["tau_0=3 has no effect with epochs=1"]
    assert not say(tau_0=3)
    said = "participation=0.5 has no effect with method=centralised, which has all rows in one place"
    assert say(("centralised",), participation=0.5) == [said]
    assert not say(("centralised",), participation=1.0)
