"""What a setting may be: by itself, and together with the others."""

from __future__ import annotations

import dataclasses
import unicodedata
from typing import Any, get_args, get_type_hints

from fedveca.algorithms.registry import CLASS
from fedveca.cohorts.fault_settings import parse_faults
from fedveca.cohorts.secure.secure_settings import check_secure
from fedveca.errors import UserError, find_near, printable, quoted, show_value, suggest
from fedveca.runs.budget import parse_budget
from fedveca.runs.catalog import load_catalog
from fedveca.runs.clock_settings import check_clock
from fedveca.runs.epoch_settings import parse_epochs
from fedveca.runs.method_options import parse_method_options
from fedveca.runs.setting_fields import Init
from fedveca.runs.settings import KNOWN_MODELS, SettingList
from fedveca.tasks.augment_settings import parse_augment
from fedveca.tasks.metric_settings import parse_metrics
from fedveca.tasks.names import CUSTOM

SettingField = dataclasses.Field[Any]
FIELDS = {field.name: field for field in dataclasses.fields(SettingList)}
TYPES: dict[str, type] = {
    name: hint if isinstance(hint, type) else int if int in get_args(hint) else str
    for name, hint in get_type_hints(SettingList).items()
}
RENAMED = {"gather": "aggregate", "gather_clip": "aggregate_clip", "gather_trim": "aggregate_trim"}  # of version 0.1
FACTORY = CLASS  # package.module:factory
MOST_SEEDS, MOST_WORKERS = 10_000, 1024  # of a comparison
LEAST_NOISE = 1e-30  # of dp_noise: the epsilon of less is not a finite number
LINES = ("Cc", "Zl", "Zp")  # Unicode categories: control characters and what separates lines
_MODELS = load_catalog()["models"]
_INITS = get_args(Init)


def check_setting(key: str, where: str = "`fedveca list` shows all") -> str:
    """The key; UserError where no setting has this name, with the nearest one or else where all are shown."""
    if key in FIELDS:
        return key
    near = RENAMED.get(key) or find_near(key, FIELDS)
    hint = f"did you mean {near}?" if near else where
    raise UserError(f"{quoted(key)} is not a setting; {hint}")


def choices(field: SettingField) -> tuple[str, ...]:
    """The names that a setting may have, empty where it is free; asked anew, as methods may have been added."""
    of = field.metadata["of"]
    return tuple(of() if callable(of) else of)


def range_of(field: SettingField) -> str:
    """The allowed values, in words."""
    if names := choices(field):
        return " | ".join((*names, *field.metadata["forms"]))
    if some := field.metadata["some"]:
        return f"some of {', '.join(some)}"
    if forms := field.metadata["forms"]:
        return " | ".join(forms)
    if TYPES[field.name] is str:
        return "text"
    return " or ".join((*field.metadata["words"], str(field.metadata["range"])))


def parse_value(key: str, value: str) -> Any:
    """A word of the command line as a value of the type that the setting has."""
    kind, words = TYPES[key], FIELDS[key].metadata["words"]
    if value in words:
        return value
    try:
        return kind(value)
    except ValueError:
        word = {int: "a whole number", float: "a number"}[kind]
        hint = suggest(value, words)
        raise UserError(f"{key}={printable(value)} is not {word}{hint}; allowed: {range_of(FIELDS[key])}") from None


def check_value(field: SettingField, value: Any) -> Any:
    """The value; UserError where the setting cannot have it."""
    kind, m = TYPES[field.name], field.metadata
    if kind is not str:
        is_word = type(value) is str and value in m["words"]
        return value if is_word else m["range"].check(field.name, value, kind, range_of(field))
    if type(value) is not str:
        raise UserError(f"{field.name}={show_value(value, 120)} is not str; allowed: {range_of(field)}")
    if field.name != "data_dir" and any(unicodedata.category(c) in LINES for c in value):
        of = "" if range_of(field) == "text" else f"; allowed: {range_of(field)}"
        raise UserError(f"{field.name}={printable(repr(value))} holds a control character or the end of a line{of}")
    names = choices(field)
    is_object = m["custom"] and value.startswith(CUSTOM)
    if names and value not in names and not is_object and not (m["forms"] and CLASS.fullmatch(value)):
        hint = suggest(value, names)
        raise UserError(f"{field.name}={printable(value)} is not known{hint}; allowed: {range_of(field)}")
    free = not value or (m["custom"] and value.startswith(CUSTOM))
    for word in value.split(",") if m["some"] and not free else ():
        if word.strip() not in m["some"]:
            hint = suggest(word, m["some"])
            said = f"{field.name}={printable(value)}: {printable(repr(word))}"
            raise UserError(f"{said} is not known{hint}; allowed: {range_of(field)}")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise UserError(f"{field.name}={printable(repr(value))} is not UTF-8 text")
    return value


def is_path(init: str) -> bool:
    """Whether `init` names a file or a folder."""
    return init not in _INITS and (init.endswith(".safetensors") or "/" in init or "\\" in init)


def check_together(e: SettingList) -> None:
    """UserError where settings that are allowed each by itself do not go together."""
    if e.model not in _MODELS and not e.model.startswith(CUSTOM) and not FACTORY.fullmatch(e.model):
        hint = suggest(e.model, _MODELS)
        raise UserError(f"model={printable(e.model)} is not known{hint}; it is {KNOWN_MODELS}")
    if e.init not in _INITS and not is_path(e.init):
        hint = suggest(e.init, _INITS)
        raise UserError(
            f"init={printable(e.init)} is not known{hint}; it is {', '.join(_INITS)}, or the path of a "
            ".safetensors file or of a run folder, such as ./NAME"
        )
    parse_faults(e.faults)
    parse_budget(e.budget)
    parse_method_options(e.method_options)
    check_clock(e)
    check_secure(e)
    _check_optimisers(e)
    _check_evaluation(e)
    _check_wire(e)
    if not e.augment.startswith(CUSTOM):
        parse_augment(e.augment)
    if not e.metric.startswith(CUSTOM):
        parse_metrics(e.metric)
    epochs = parse_epochs(e.epochs)
    if epochs and e.tau_all:
        raise UserError(f"epochs={e.epochs} cannot go with tau_all={e.tau_all}: both set the local steps")
    if epochs and epochs.random and e.dp_noise:
        raise UserError(
            f"epochs={e.epochs} cannot go with dp_noise: random numbers of steps show who takes part; name one"
        )
    if e.share == "exact" and e.dp_noise:
        raise UserError(
            "share=exact cannot go with dp_noise: the steps of a client then depend on who else takes part; take "
            "share=floor"
        )
    if e.guard == "on" and e.keep == "rollback":
        raise UserError("guard=on cannot go with keep=rollback: both undo rounds; take keep=best or last")
    if e.guard == "on" and e.dp_noise:
        raise UserError("guard=on cannot go with dp_noise: the noise of the loss would look like trouble")
    if 0 < e.dp_noise < LEAST_NOISE:
        raise UserError(f"dp_noise={e.dp_noise} is out of range; allowed: 0 or >= {LEAST_NOISE}")
    if e.dp_noise and e.aggregate != "mean":
        raise UserError(f"aggregate={e.aggregate} cannot go with dp_noise: the noise is measured for aggregate=mean")


def _check_optimisers(e: SettingList) -> None:
    adaptive = e.optimizer != "sgd"
    if adaptive and (e.momentum or e.nesterov == "on"):
        name = f"momentum={e.momentum}" if e.momentum else "nesterov=on"
        raise UserError(f"{name} is of optimizer=sgd; optimizer={e.optimizer} has beta1 in its place")
    if e.nesterov == "on" and not e.momentum:
        raise UserError("nesterov=on needs a momentum above 0, such as momentum=0.9")
    if e.optimizer_state == "keep" and not (e.momentum or adaptive):
        raise UserError("optimizer_state=keep needs something to keep: momentum above 0, or optimizer=adam or adamw")
    if e.lr_warmup and e.lr_warmup >= e.rounds:
        raise UserError(f"lr_warmup={e.lr_warmup} is out of range; allowed: fewer than the {e.rounds} rounds")


def _check_wire(e: SettingList) -> None:
    if e.wire != "float32" and e.dp_noise:
        raise UserError(
            f"wire={e.wire} cannot go with dp_noise: the noise is measured for vectors that arrive as they were clipped"
        )
    if e.wire == "topk" and e.aggregate in ("trimmed", "median"):
        raise UserError(
            f"aggregate={e.aggregate} cannot go with wire=topk: in each coordinate most clients send nothing; take "
            "aggregate=mean or clip, or wire=int8"
        )


def _check_evaluation(e: SettingList) -> None:
    at_clients = e.test_by != "server"
    if at_clients and e.test_share + e.val >= 1:
        raise UserError(f"test_share={e.test_share} and val={e.val} leave no row to train on; their sum is less than 1")
    if e.finetune_steps and not at_clients:
        raise UserError(f"finetune_steps={e.finetune_steps} needs test rows of each client: test_by=client or both")
    for name, used in (("test_by", at_clients), ("val", bool(e.val))):
        if e.dp_noise and used:
            raise UserError(
                f"{name}={getattr(e, name)} cannot go with dp_noise: what each client evaluates gets no noise"
            )
