"""What `fedveca list` shows: names and settings by subject, and one of them explained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TypedDict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedveca.errors import UserError, find_near, quoted
from fedveca.runs.catalog import describe_values, load_catalog
from fedveca.runs.experiment import describe_default, preset
from fedveca.runs.presets import presets
from fedveca.runs.setting_checks import FIELDS, TYPES, choices, range_of
from fedveca.runs.setting_fields import TaskDefault

WIDE_TERMINAL = 100  # columns from which allowed values have a column of their own
FACTORY_FORM = "package.module:factory"
OWN_MODEL = "a custom function(shape, classes) that makes a torch.nn.Module"
KINDS = {"methods": "method", "data": "data", "models": "model", "partitions": "partition"}  # and their settings
TOPICS = ("presets", *KINDS, "settings")
SINGULAR = {"methods": "method", "data": "data set", "models": "model", "partitions": "partition", "presets": "preset"}


class SettingInfo(TypedDict):
    """A setting: its default, what is allowed, its line of text, its subject, and whose it is."""

    default: str | int | float
    allowed: str
    text: str
    group: str
    rare: bool
    methods: list[str]  # that have it as a hyperparameter; empty where it concerns all


def list_choices() -> dict[str, list[str]]:
    """The methods, data sets, models, partitions and presets that settings can name."""
    named = {kind: list(describe_values(setting)) for kind, setting in KINDS.items()}
    named["models"].append(FACTORY_FORM)
    return {**named, "presets": presets()}


def list_settings() -> dict[str, SettingInfo]:
    """Every setting by name, those of one subject together."""
    owners = load_catalog()["hyper"]
    groups = list(dict.fromkeys(field.metadata["group"] for field in FIELDS.values()))
    found: dict[str, SettingInfo] = {}
    for key in sorted(FIELDS, key=lambda key: groups.index(FIELDS[key].metadata["group"])):
        of, mine = FIELDS[key].metadata, owners[key]["owners"] if key in owners else []
        allowed = " | ".join((*describe_values(key), FACTORY_FORM)) if key == "model" else range_of(FIELDS[key])
        found[key] = {
            "default": describe_default(key),
            "allowed": allowed,
            "text": owners[key]["text"] if mine else of["text"],
            "group": of["group"],
            "rare": of["rare"],
            "methods": mine,
        }
    return found


def offer_values(key: str) -> dict[str, str]:
    """The names that a setting can have and a line about each, empty where it is free."""
    of = FIELDS[key].metadata
    if isinstance(of["of"], dict):
        return describe_values(key) or dict(of["of"])
    return describe_values(key) or dict.fromkeys(choices(FIELDS[key]) or of["some"] or of["words"], "")


def show_overview(console: Console) -> None:
    """What can be named, and the settings that most people need."""
    for kind, names in list_choices().items():
        _print_hanging(console, Text(f"{kind:<12}", "bold"), "  ".join(names))
    console.print()
    console.print("Settings are written key=value: fedveca run rounds=20 method=fedavg")
    _show_groups(console, rare=False)
    console.print()
    console.print(
        "`fedveca list settings` shows the rare ones too, with what is allowed. `fedveca list NAME` explains any of "
        "these names, and says which default belongs to which data set or model."
    )


def show_settings(console: Console) -> None:
    """Every setting with what is allowed."""
    _show_groups(console, rare=True)


def show_names(console: Console, kind: str) -> None:
    """Names of one kind, each with a line about it."""
    if kind == "presets":
        values = {name: " ".join(f"{key}={value}" for key, value in preset(name).items()) for name in presets()}
    else:
        values = dict(describe_values(KINDS[kind]))
        if kind == "models":
            values[FACTORY_FORM] = OWN_MODEL
    console.print(_make_pairs(values.items(), "cyan"))


def show_setting(console: Console, key: str) -> None:
    """One setting explained."""
    setting = list_settings()[key]
    console.print(Text.assemble((key, "bold cyan"), f"  {setting['text']}"))
    values = {} if FIELDS[key].metadata["words"] else offer_values(key)
    values = values if any(values.values()) or FIELDS[key].metadata["some"] else {}  # nothing to say about each
    facts = {"default": str(setting["default"]) or '""', "subject": setting["group"]}
    if not values:
        facts["allowed"] = setting["allowed"]
    elif FIELDS[key].metadata["some"]:
        facts["allowed"] = f"{setting['allowed']}, with commas between"
    if forms := {"model": (FACTORY_FORM,), "method": FIELDS["method"].metadata["forms"]}.get(key):
        facts["allowed"] = f"one of these, or {' or '.join(forms)}"
    facts["used by"] = ", ".join(setting["methods"]) or "every method"
    with_it = {name: table[key] for name in presets() if key in (table := preset(name))}
    if with_it:
        facts["presets"] = ", ".join(f"{name} {value}" for name, value in with_it.items())
    facts["example"] = f"fedveca run {key}={_choose_example(key, setting)}"
    console.print(_make_pairs(facts.items(), "dim", indent=2))
    if any(values.values()):
        console.print()
        console.print(_make_pairs(values.items(), "cyan", indent=2))


def describe_name(name: str) -> dict[str, str]:
    """A method, data set, model, partition or preset; UserError where nothing has this name."""
    kind = next((kind for kind, names in list_choices().items() if name in names), "")
    if kind == "presets":
        return {"kind": "preset", **{k: str(v) for k, v in preset(name).items()}, "example": f"fedveca run {name}"}
    if not kind:
        known = [*TOPICS, *FIELDS, *(name for names in list_choices().values() for name in names)]
        near = find_near(name, known)
        hint = f" (did you mean {near}?)" if near else ""
        raise UserError(f"{quoted(name)} is not a setting or a name that one can have{hint}; `fedveca list` shows all")
    setting = KINDS[kind]
    facts = {"kind": SINGULAR[kind], "text": describe_values(setting).get(name, OWN_MODEL)}
    if kind == "methods":
        mine = [key for key, info in list_settings().items() if name in info["methods"]]
        facts["settings"] = ", ".join(mine) or "those of every method"
    return facts | {"example": f"fedveca run {setting}={name}"}


def show_name(console: Console, name: str) -> None:
    """One of those explained."""
    facts = describe_name(name)
    console.print(Text.assemble((name, "bold cyan"), f"  {facts.pop('text', '')}"))
    console.print(_make_pairs(facts.items(), "dim", indent=2))


def _show_groups(console: Console, rare: bool) -> None:
    settings = list_settings()
    shown = {key: info for key, info in settings.items() if rare or not info["rare"]}
    defaults = {key: str(info["default"]) if rare else _shorten_default(key) for key, info in shown.items()}
    defaults = {key: value or '""' for key, value in defaults.items()}
    widths = max(map(len, shown)), min(16, max(map(len, defaults.values())))
    for group in dict.fromkeys(info["group"] for info in settings.values()):
        console.print()
        console.print(Text(group, "bold"))
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(width=0)  # two columns further right than the heading
        table.add_column(min_width=widths[0], style="cyan", no_wrap=True)
        table.add_column(min_width=widths[1], max_width=widths[1], overflow="fold")
        table.add_column(overflow="fold", ratio=3)
        if rare and console.width >= WIDE_TERMINAL:
            table.add_column(overflow="fold", ratio=2, style="dim")
            table.expand = True
        mine = {key: info for key, info in shown.items() if info["group"] == group}
        for key, info in mine.items():
            text = Text(f"{', '.join(info['methods'])}: {info['text']}" if info["methods"] else info["text"])
            if rare and console.width < WIDE_TERMINAL:
                text.append(f"\n{info['allowed']}", "dim")
            table.add_row("", key, defaults[key], text, *([Text(info["allowed"])] if len(table.columns) > 4 else ()))
        if mine:
            console.print(table)
        folded = [key for key, info in settings.items() if info["group"] == group and key not in mine]
        if folded:
            _print_hanging(console, Text("  also  ", "dim"), ", ".join(folded), "dim")


def _shorten_default(key: str) -> str:
    """A setting's default in a few letters: where it depends on the task, the usual one and on what it depends."""
    default, text = FIELDS[key].default, str(describe_default(key))
    return f"{text.partition(' (')[0]} (by {default.by})" if isinstance(default, TaskDefault) else text


_EXAMPLES = {  # where another value alone says little; some need a second setting
    "probe": "512",
    "augment": "crop:4,flip",
    "epochs": "2",
    "faults": "drop:0.1",
    "budget": "rows:200000",
    "data_dir": "DIR",
    "ray_address": "auto",
    "dropout": "0.1",
    "init": "torch",
    "test_share": "0.3 test_by=client",
    "val": "0.1",
    "target": "0.9",
    "patience": "10 val=0.1",
    "finetune_steps": "5 test_by=client",
    "momentum": "0.9",
    "nesterov": "on momentum=0.9",
    "weight_decay": "0.0005",
    "clip_norm": "1.0",
    "proximal": "0.01",
    "optimizer_state": "keep momentum=0.9",
    "beta1": "0.8 optimizer=adam",
    "beta2": "0.99 optimizer=adam",
    "adam_eps": "1e-6 optimizer=adam",
    "lr_warmup": "5",
    "lr_final": "0.1 lr_schedule=cosine",
    "lr_every": "20 lr_schedule=step",
    "lr_decay": "0.5 lr_schedule=step",
    "devices": "phones",
    "schedule": "deadline deadline=2 devices=phones",
    "deadline": "2 schedule=deadline devices=phones",
    "late": "cut schedule=deadline deadline=2 devices=phones",
    "buffer": "2 schedule=buffered keep=last devices=phones",
    "staleness": "1.0 schedule=buffered keep=last devices=phones",
    "over_selection": "0.3 participation=0.5 devices=phones",
    "method_options": "by_rows=off method=corrected",
    "server_optimizer": "momentum",
    "secure_threshold": "4 secure=on",
    "server_lr": "0.5",
    "server_momentum": "0.8 server_optimizer=momentum",
    "server_beta2": "0.95 server_optimizer=adam server_lr=0.01",
    "server_eps": "0.01 server_optimizer=adam server_lr=0.01",
}


def _choose_example(key: str, setting: SettingInfo) -> object:
    """A value other than the default where one is known, so that the example changes something."""
    if key in _EXAMPLES:
        return _EXAMPLES[key]
    default = setting["default"]
    if isinstance(FIELDS[key].default, TaskDefault):
        default = TYPES[key](_shorten_default(key).partition(" ")[0])
    names = [name for name in offer_values(key) if name != default]
    if names:
        return names[0]
    if isinstance(default, str):
        return default or "..."
    other = 2 * default if isinstance(default, int) else float(f"{default / 2:.1g}")
    allowed = FIELDS[key].metadata["range"]
    for value in (other or type(default)(1), default):
        with contextlib.suppress(UserError):
            return allowed.check(key, value, type(default))
    return default


def _make_pairs(pairs: Iterable[tuple[str, str]], style: str, indent: int = 0) -> Table:
    """Names and what is said of them."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    if indent:
        table.add_column(width=indent - 2)
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in pairs:
        table.add_row(*([""] if indent else []), name, Text(text))
    return table


def _print_hanging(console: Console, head: Text, text: str, style: str = "") -> None:
    """A heading, and a text next to it whose later lines start below its first one."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", style=style)
    table.add_row(head, Text(text))
    console.print(table)
