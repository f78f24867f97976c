"""One flat, validated description of a run: the same keys in Python, TOML and on the command line."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fedveca.algorithms.hyper import LARGEST, LR
from fedveca.algorithms.registry import CLASS, shorten_method
from fedveca.cohorts.fault_settings import parse_faults
from fedveca.errors import UserError, find_near, printable, quoted, show_value, suggest
from fedveca.runs.catalog import known_methods, load_catalog
from fedveca.runs.epoch_settings import parse_epochs
from fedveca.runs.method_options import parse_method_options
from fedveca.runs.presets import load_preset, load_toml
from fedveca.runs.setting_fields import (
    LOCAL_OPTIMIZER_TEXTS,
    OPTIMIZER_STATE_TEXTS,
    SCHEDULE_TEXTS,
    SERVER_OPTIMIZER_TEXTS,
    TEST_BY_TEXTS,
    AggregationName,
    Auto,
    DataName,
    Engine,
    Init,
    Keep,
    LocalOptimizerName,
    LossName,
    MethodName,
    MetricName,
    ModelName,
    Norm,
    NormStatistics,
    OnOff,
    OptimizerState,
    PartitionName,
    Pixels,
    Precision,
    Sampling,
    ScheduleName,
    ServerOptimizerName,
    SettingGroup,
    TaskDefault,
    TestBy,
    Wire,
    method_option,
)
from fedveca.tasks.augment_settings import AUGMENT_FORMS, parse_augment
from fedveca.tasks.metric_settings import parse_metrics
from fedveca.tasks.names import CUSTOM

LEAST_NOISE = 1e-30  # of dp_noise: the epsilon of less is not a finite number
FEWEST_PROBED, MOST_PROBED = 32, 1024  # rows of probe=auto
TRACKERS = ("tensorboard", "mlflow", "wandb")
_NAMES = load_catalog()  # of data sets, models and so on
_MODELS = _NAMES["models"]
KNOWN_MODELS = f"{', '.join(_MODELS)} or package.module:factory"
RENAMED = {"gather": "aggregate", "gather_clip": "aggregate_clip", "gather_trim": "aggregate_trim"}  # of version 0.1
FACTORY = CLASS  # package.module:factory
SettingValues = dict[str, Any]  # values by key, of the types that the fields have
FORMER_DEFAULTS: dict[str, str | int | float] = {  # of version 0.1, for what a folder of it lacks
    "model": "mlp",
    "partition": "case3",
    "rounds": 100,
    "batch": 100,
    "lr": 0.01,
    "probe": 1024,
}
SettingField = dataclasses.Field[Any]
LINES = ("Cc", "Zl", "Zp")  # Unicode categories: control characters and what separates lines

MOST_VAL = 0.9  # share of a client's rows
MOST_BETA = 0.999999  # of momentum and moments: at 1 nothing new would count
_INITS = get_args(Init)
_task, _clients, _training = SettingGroup("task"), SettingGroup("clients"), SettingGroup("training")
_steps, _robustness, _privacy = SettingGroup("local steps"), SettingGroup("robustness"), SettingGroup("privacy")
_records, _machines = SettingGroup("records"), SettingGroup("machines")
_optimisers, _methods = SettingGroup("optimisers"), SettingGroup("other methods")
_evaluation = SettingGroup("evaluation")


@dataclass(frozen=True)
class Experiment:
    """All settings of a run, each of them checked; some defaults depend on the data set or the model."""

    method: MethodName | str = _task(
        "fedveca",
        "how clients and server work together",
        of=known_methods,
        forms=("package.module:Class",),
        custom=True,
    )
    data: DataName | str = _task("digits", "data set", of=_NAMES["data"], custom=True)
    model: ModelName | str = _task(TaskDefault("data", "model"), KNOWN_MODELS, custom=True)
    loss: LossName | str = _task.rare(
        "auto", "cross_entropy of labels, squared_error of numbers", of=("auto", *_NAMES["losses"]), custom=True
    )
    metric: MetricName | str = _task.rare(
        "auto",
        "what is tested besides the loss; curves show the first (auto: accuracy of labels, absolute_error of numbers)",
        some=("auto", *_NAMES["metrics"]),
        custom=True,
    )
    partition: PartitionName | str = _clients(
        TaskDefault("data", "partition"), "which client owns which rows", of=_NAMES["partitions"], custom=True
    )
    clients: int = _clients(5, "number of clients N", low=1)
    participation: float = _clients(
        1.0, "share of the clients drawn per round, at least one", low=0, high=1, open_ends="low"
    )
    rounds: int = _training(TaskDefault("data", "rounds"), "communication rounds K", low=1)
    batch: int = _training(TaskDefault("data", "batch"), "mini-batch size B", low=1)
    lr: float = _training(TaskDefault("model", "lr"), "learning rate eta", low=LR.low, open_ends=LR.open_ends)
    sampling: Sampling = _training.rare(
        "random", "mini-batches with replacement, or shuffled epochs without", of=get_args(Sampling)
    )
    augment: str = _training(
        "", "random changes of the images of local steps: crop, flip, cutout", forms=AUGMENT_FORMS.values(), custom=True
    )
    seed: int = _training(0, "random seed", low=0, high=LARGEST)
    optimizer: LocalOptimizerName = _optimisers("sgd", "the clients' optimiser", of=LOCAL_OPTIMIZER_TEXTS)
    momentum: float = _optimisers(0.0, "sgd: momentum of the local steps", low=0, high=MOST_BETA)
    weight_decay: float = _optimisers(0.0, "weight decay of the local steps", low=0)
    lr_schedule: ScheduleName = _optimisers("constant", "the learning rate over rounds", of=SCHEDULE_TEXTS)
    lr_warmup: int = _optimisers(0, "rounds over which the learning rate rises to lr", low=0)
    server_optimizer: ServerOptimizerName = _optimisers(
        "auto", "what the server makes of the method's step (auto: the method's)", of=SERVER_OPTIMIZER_TEXTS
    )
    server_lr: float = _optimisers(0.0, "the server's learning rate (0: the method's, 1 for most)", low=0)
    nesterov: OnOff = _optimisers.rare("off", "sgd: Nesterov's momentum", of=get_args(OnOff))
    clip_norm: float = _optimisers.rare(0.0, "the largest norm of a mini-batch's gradient (0: any)", low=0)
    proximal: float = _optimisers.rare(0.0, "pull of each local step towards w_k, with any method", low=0)
    optimizer_state: OptimizerState = _optimisers.rare(
        "reset", "whether a client's momentum and moments start anew in each round", of=OPTIMIZER_STATE_TEXTS
    )
    beta1: float = _optimisers.rare(0.9, "adam, adamw: share of the former gradients", low=0, high=MOST_BETA)
    beta2: float = _optimisers.rare(0.999, "adam, adamw: share of the former squares", low=0, high=MOST_BETA)
    adam_eps: float = _optimisers.rare(1e-8, "adam, adamw: epsilon", low=0, open_ends="low")
    lr_final: float = _optimisers.rare(0.0, "cosine: where it ends, as a share of lr", low=0, high=1)
    lr_every: int = _optimisers.rare(30, "step: rounds between two steps", low=1)
    lr_decay: float = _optimisers.rare(0.1, "step: what the rate is multiplied by", low=0, high=1, open_ends="low")
    server_momentum: float = _optimisers.rare(0.9, "server: share of the former steps", low=0, high=MOST_BETA)
    server_beta2: float = _optimisers.rare(0.99, "server: share of the former squares", low=0, high=MOST_BETA)
    server_eps: float = _optimisers.rare(1e-3, "server: adam's, yogi's, adagrad's epsilon", low=0, open_ends="low")
    alpha: float = method_option(_steps, "alpha")
    tau_0: int = _steps(10, "local steps before they are adapted; every round's where they are not", low=1, high=10**5)
    tau_max: int = method_option(_steps, "tau_max")
    smooth: float = method_option(_steps.rare, "smooth")
    probe_steps: float = method_option(_steps.rare, "probe_steps")
    tau_all: int = _steps.rare(
        0, "fixed-step methods: local steps of the whole run, shared by size (0: tau_0 each)", low=0
    )
    epochs: str = _steps(
        "",
        "in place of tau_0, local steps by epochs of a client's rows: 2, 0.5, or 2..5 drawn per client and round",
        forms=("NUMBER", "LOW..HIGH"),
    )
    probe: int | Auto = _steps.rare(
        "auto",
        "rows of each client for F_i(w_k) and its gradient (auto: a fifth of those of tau_0 steps; 0: all)",
        low=0,
        words=get_args(Auto),
    )
    keep: Keep = _training("best", "the model that a run returns", of=get_args(Keep))
    guard: OnOff = _training(
        "off", "where training goes wrong, return to the best model and take shorter server steps", of=get_args(OnOff)
    )
    mu: float = method_option(_steps, "mu")
    concentration: float = _clients(
        0.5, "dirichlet, dirichlet_niid, dirichlet_balanced, quantity: small is uneven", low=0, open_ends=True
    )
    shards: int = _clients.rare(2, "shards: pieces of one label each client gets", low=1)
    labels_per_client: int = _clients.rare(2, "labels: labels that each client has", low=1)
    exponent: float = _clients.rare(1.0, "power_law: sizes fall as 1 / rank^exponent (0: equal)", low=0)
    feature_noise: float = _clients.rare(
        0.0, "noise on training rows: variance feature_noise * i / N at the i-th of N clients (0: off)", low=0
    )
    heterogeneity: float = _clients.rare(1.0, "synthetic: 0 makes all clients alike", low=0)
    hidden: int = _task.rare(64, "mlp, lstm, gpt: hidden units; vgg11, resnet18: channels of the first stage", low=1)
    layers: int = _task.rare(2, "lstm, gpt: number of layers", low=1, high=1000)
    norm: Norm = _task.rare(
        "auto", "vgg11, resnet18: normalisation (auto: none for vgg11, group for resnet18)", of=get_args(Norm)
    )
    dropout: float = _task.rare(0.0, "vgg11, lstm, gpt: share of units dropped in local steps", low=0, high=0.95)
    init: Init | str = _task.rare(
        "paper", "w_0: paper, as each model was published; torch, PyTorch's; or the path of a model or a run folder"
    )
    pixels: Pixels = _task.rare("auto", "how rows become inputs", of=get_args(Pixels))
    precision: Precision = _task.rare("float32", "arithmetic of the layers, except for svm", of=get_args(Precision))
    compile: OnOff = _machines.rare(
        "off", "on a CUDA device, fuse the model's operations: faster steps after half a minute", of=get_args(OnOff)
    )
    norm_stats: NormStatistics = _training.rare(
        "average",
        "running statistics of BatchNorm: averaged with the model, kept at each client, or as they were at the start",
        of=get_args(NormStatistics),
    )
    test_by: TestBy = _evaluation("server", "who tests a model", of=TEST_BY_TEXTS)
    test_share: float = _evaluation(
        0.2, "test_by=client, both: share of each client's rows that only test", low=0, high=1, open_ends=True
    )
    val: float = _evaluation(
        0.0, "share of each client's rows that only choose: the kept model, the end of the run", low=0, high=MOST_VAL
    )
    finetune_steps: int = _evaluation(
        0,
        "test_by=client, both: each client also tests its model after so many local steps of its own",
        low=0,
        high=10**5,
    )
    target: float = _evaluation(
        0.0, "value of the first metric at which the run ends, on validation rows, else on test rows (0: off)"
    )
    patience: int = _evaluation(
        0, "rounds without a lower loss, on validation rows, else on training rows, after which it ends (0: off)", low=0
    )
    test_every: int = _records.rare(1, "rounds between evaluations on the test set", low=1)
    checkpoint_every: int = _records.rare(1, "rounds between checkpoints", low=1)
    track: str = _records("", "trackers that see the run too, with commas between", some=TRACKERS)
    faults: str = _robustness(
        "", "what goes wrong: drop:P, crash:P:ROUNDS, late:P, nan:S, scale:S:FACTOR, flip:S, lie:S"
    )
    aggregate: AggregationName = _robustness("mean", "how the clients' vectors become one", of=_NAMES["aggregation"])
    aggregate_clip: float = _robustness.rare(0.0, "aggregate=clip: the largest norm (0: the round's median)", low=0)
    aggregate_trim: float = _robustness.rare(0.2, "robust aggregation: share distrusted at each end", low=0, high=0.5)
    dp_noise: float = _privacy(0.0, "differential privacy: noise on sums, times dp_clip (0: off)", low=0)
    dp_clip: float = _privacy(
        1.0, "differential privacy: the largest norm of a client's vectors", low=0, open_ends=True
    )
    dp_bound: float = _privacy.rare(
        10.0, "differential privacy: the largest loss, beta or spread", low=1, open_ends=True
    )
    dp_delta: float = _privacy.rare(1e-5, "differential privacy: delta of the epsilon", low=0, high=1, open_ends=True)
    dp_seed: int = _privacy.rare(0, "differential privacy: seed of the noise (-1: secret, never the same)", low=-1)
    memory_mb: int = _machines.rare(1024, "MB of the clients' memory (SCAFFOLD's c_i) held in RAM, more on disk", low=0)
    engine: Engine = _machines(
        "local", "where clients run: here, on a Ray cluster, or one by one to find errors", of=get_args(Engine)
    )
    workers: int = _machines.rare(0, "ray: processes that share the clients (0: one for each core or GPU share)", low=0)
    worker_gpus: float = _machines.rare(
        0.0, "ray: GPUs of a worker, such as 0.25 (0: it steps on its core)", low=0, high=1
    )
    ray_address: str = _machines.rare(
        "", "ray: auto or HOST:PORT of a running cluster (else a new one on this machine)"
    )
    round_timeout: float = _machines.rare(300.0, "Flower: seconds a round may take", low=0, high=86400, open_ends=True)
    min_clients: int = _machines.rare(1, "Flower: a round with fewer answers is void and repeated", low=1)
    wire: Wire = _machines.rare("float32", "Flower: form of vectors on the wire", of=get_args(Wire))
    data_dir: str = _task.rare("", "folder that holds the data set (else FEDVECA_DATA, the cache, the mirrors)")
    dyn: float = method_option(_methods.rare, "dyn")
    exp_eps: float = method_option(_methods.rare, "exp_eps")
    acg_lambda: float = method_option(_methods.rare, "acg_lambda")
    acg_beta: float = method_option(_methods.rare, "acg_beta")
    mime_beta: float = method_option(_methods.rare, "mime_beta")
    lc_tau: float = method_option(_methods.rare, "lc_tau")
    moon_mu: float = method_option(_methods.rare, "moon_mu")
    moon_temperature: float = method_option(_methods.rare, "moon_temperature")
    method_options: str = _methods.rare(
        "",
        "hyperparameters of a custom method that are not settings themselves, with commas between",
        forms=("NAME=VALUE,...",),
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, TaskDefault):  # data and model are checked before what depends on them
                value = value.find(getattr(self, value.by))
            object.__setattr__(self, field.name, _checked(field, value))
        if self.model not in _MODELS and not self.model.startswith(CUSTOM) and not FACTORY.fullmatch(self.model):
            hint = suggest(self.model, _MODELS)
            raise UserError(f"model={printable(self.model)} is not known{hint}; it is {KNOWN_MODELS}")
        if self.init not in _INITS and not is_path(self.init):
            hint = suggest(self.init, _INITS)
            raise UserError(
                f"init={printable(self.init)} is not known{hint}; it is {', '.join(_INITS)}, or the path of a "
                ".safetensors file or of a run folder, such as ./NAME"
            )
        parse_faults(self.faults)
        parse_method_options(self.method_options)
        self._check_optimisers()
        self._check_evaluation()
        if not self.augment.startswith(CUSTOM):
            parse_augment(self.augment)
        if not self.metric.startswith(CUSTOM):
            parse_metrics(self.metric)
        epochs = parse_epochs(self.epochs)
        if epochs and self.tau_all:
            raise UserError(f"epochs={self.epochs} cannot go with tau_all={self.tau_all}: both set the local steps")
        if epochs and epochs.random and self.dp_noise:
            raise UserError(
                f"epochs={self.epochs} cannot go with dp_noise: random numbers of steps show who takes part; name one"
            )
        if self.guard == "on" and self.keep == "rollback":
            raise UserError("guard=on cannot go with keep=rollback: both undo rounds; take keep=best or last")
        if self.guard == "on" and self.dp_noise:
            raise UserError("guard=on cannot go with dp_noise: the noise of the loss would look like trouble")
        if 0 < self.dp_noise < LEAST_NOISE:
            raise UserError(f"dp_noise={self.dp_noise} is out of range; allowed: 0 or >= {LEAST_NOISE}")
        if self.dp_noise and self.aggregate != "mean":
            raise UserError(
                f"aggregate={self.aggregate} cannot go with dp_noise: the noise is measured for aggregate=mean"
            )

    def _check_optimisers(self) -> None:
        adaptive = self.optimizer != "sgd"
        if adaptive and (self.momentum or self.nesterov == "on"):
            name = f"momentum={self.momentum}" if self.momentum else "nesterov=on"
            raise UserError(f"{name} is of optimizer=sgd; optimizer={self.optimizer} has beta1 in its place")
        if self.nesterov == "on" and not self.momentum:
            raise UserError("nesterov=on needs a momentum above 0, such as momentum=0.9")
        if self.optimizer_state == "keep" and not (self.momentum or adaptive):
            raise UserError(
                "optimizer_state=keep needs something to keep: momentum above 0, or optimizer=adam or adamw"
            )
        if self.lr_warmup and self.lr_warmup >= self.rounds:
            raise UserError(f"lr_warmup={self.lr_warmup} is out of range; allowed: fewer than the {self.rounds} rounds")

    def _check_evaluation(self) -> None:
        at_clients = self.test_by != "server"
        if at_clients and self.test_share + self.val >= 1:
            raise UserError(
                f"test_share={self.test_share} and val={self.val} leave no row to train on; their sum is less than 1"
            )
        if self.finetune_steps and not at_clients:
            raise UserError(
                f"finetune_steps={self.finetune_steps} needs test rows of each client: test_by=client or both"
            )
        for name, used in (("test_by", at_clients), ("val", bool(self.val))):
            if self.dp_noise and used:
                raise UserError(
                    f"{name}={getattr(self, name)} cannot go with dp_noise: what each client evaluates gets no noise"
                )

    @classmethod
    def preset(cls, name: str, **settings: object) -> Experiment:
        """The experiment of a preset.

        Args:
            name: One that `fedveca.presets()` lists, or the path of a .toml file with settings.
            **settings: SettingValues in place of the preset's.

        Returns:
            The experiment.

        Raises:
            UserError: With one sentence, where the preset or a setting is not known, or a value is not allowed.

        Examples:
            >>> Experiment.preset("digits-case3", rounds=20).rounds
            20
        """
        return cls(**preset(name)).replace(**settings)

    def replace(self, **settings: object) -> Experiment:
        """The same experiment with other values of the settings that are named; all others stay as they are.

        Args:
            **settings: The settings that change.

        Returns:
            A new experiment.

        Raises:
            UserError: With one sentence, where a setting is not known, or a value is not allowed.

        Examples:
            >>> Experiment(lr=0.1).replace(method="fedavg").lr
            0.1
        """
        return dataclasses.replace(self, **settings)  # type: ignore[arg-type]

    def toml(self) -> str:
        """Complete: enough to run it again."""
        return "".join(f"{key} = {_toml(value)}\n" for key, value in dataclasses.asdict(self).items())


def is_path(init: str) -> bool:
    """Whether `init` names a file or a folder."""
    return init not in _INITS and (init.endswith(".safetensors") or "/" in init or "\\" in init)


TYPES: dict[str, type] = {
    name: hint if isinstance(hint, type) else int if int in get_args(hint) else str
    for name, hint in get_type_hints(Experiment).items()
}
FIELDS = {field.name: field for field in dataclasses.fields(Experiment)}
_init = Experiment.__init__


@functools.wraps(_init)
def _init_known(self: Experiment, *values: object, **settings: object) -> None:
    for key in settings:
        check_setting(key, "help(fedveca.Experiment) shows all")
    _init(self, *values, **settings)  # type: ignore[arg-type]


Experiment.__init__ = _init_known  # type: ignore[method-assign]


def reject_custom(settings: SettingValues) -> None:
    """ValueError where a preset or the command line names an object that only Python can give."""
    for key, value in settings.items():
        if FIELDS[key].metadata["custom"] and isinstance(value, str) and value.startswith(CUSTOM):
            known_ones = KNOWN_MODELS if key == "model" else range_of(FIELDS[key])
            said = f"{key}={printable(value)} is an object that was given from Python"
            raise UserError(f"{said}; here allowed: {known_ones}")


def parse_settings(words: list[str]) -> SettingValues:
    """`key=value` words as typed settings."""
    out = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"{printable(repr(word))} is not key=value")
        out[key] = _typed(check_setting(key), value)
    return out


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


def _typed(key: str, value: str) -> Any:
    kind, words = TYPES[key], FIELDS[key].metadata["words"]
    if value in words:
        return value
    try:
        return kind(value)
    except ValueError:
        word = {int: "a whole number", float: "a number"}[kind]
        hint = suggest(value, words)
        raise UserError(f"{key}={printable(value)} is not {word}{hint}; allowed: {range_of(FIELDS[key])}") from None


def _checked(field: SettingField, value: Any) -> Any:
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


def _toml(value: Any) -> str:
    if isinstance(value, str):
        quoted = (f"\\u{ord(c):04x}" if c in '"\\\x7f' or ord(c) < 32 else c for c in value)
        return f'"{"".join(quoted)}"'
    return repr(value)


def read_experiment(text: str) -> Experiment:
    """The settings of a run folder, also of one that an older version wrote."""
    settings = parse_toml(text, "experiment.toml")
    for key, value in FORMER_DEFAULTS.items():
        settings.setdefault(key, value)
    return Experiment(**settings)


def parse_toml(text: str, source: str) -> SettingValues:
    """The keys of a TOML file, each known; those that an older version named otherwise get their name of today."""
    return _check_settings(load_toml(text, source))


def preset(name: str) -> SettingValues:
    """A preset of the package, or a TOML file of the user's."""
    return _check_settings(load_preset(name))


def _check_settings(table: dict[str, object]) -> SettingValues:
    """The settings of a TOML file in their names of today, each known."""
    settings = upgrade_settings(table)
    for key in settings:
        check_setting(key)
    return settings


def upgrade_settings(table: SettingValues) -> SettingValues:
    """SettingValues as version 0.1 named them, in the names of today."""
    out = {RENAMED.get(key, key): value for key, value in table.items()}
    for key, value in out.items():
        if key in FIELDS and FIELDS[key].metadata["custom"] and isinstance(value, str) and value.startswith("own:"):
            out[key] = CUSTOM + value.removeprefix("own:")
    return out


def find_default(key: str, e: Experiment) -> object:
    """A setting's default, which may depend on the experiment's data set or model."""
    default = FIELDS[key].default
    return default.find(getattr(e, default.by)) if isinstance(default, TaskDefault) else default


def count_probe_rows(e: Experiment) -> int:
    """The most rows of a client on which it computes F_i(w_k) and its gradient; 0 is all of them.

    `auto` is a fifth of the rows of tau_0 local steps, within bounds. It depends on settings alone: every engine, every
    node and a resumed run have the same number, and a client has the same rows in every round. FedVeca's clients take
    fewer steps than tau_0 on average, so that a fifth of those is up to a third of the steps that they take.
    """
    return max(FEWEST_PROBED, min(MOST_PROBED, e.tau_0 * e.batch // 5)) if e.probe == "auto" else e.probe


def name_experiment(e: Experiment, name: str = "digits-case3") -> str:
    """A name for the run's folder: the preset's, unless data, model or partition differ from it: `cnn-mnist-case3`."""
    base = Experiment.preset(name)
    if (e.data, e.model, e.partition) == (base.data, base.model, base.partition):
        return Path(name).stem
    return re.sub(r"[^\w.-]+", "-", f"{e.model}-{e.data}-{e.partition}").strip("-.")


def name_folder(method: str) -> str:
    """A method's name as a part of a folder's name: `my_methods:FedPer` is my_methods-FedPer."""
    return re.sub(r"[^\w.=-]+", "-", method).strip("-")


def describe_task(e: Experiment) -> str:
    """What runs, in a few words: `FedVeca, mlp on digits, 5 clients, case3`."""
    known = known_methods().get(e.method)
    parts = (
        known["title"] if known else shorten_method(e.method),
        f"{e.model} on {e.data}",
        f"{e.clients} clients",
        e.partition,
    )
    return ", ".join(part.removeprefix(CUSTOM) for part in parts)


def describe_default(key: str) -> str | int | float:
    """A setting's default: its value, or in words where it depends on the data set or the model."""
    default = FIELDS[key].default
    return repr(default) if isinstance(default, TaskDefault) else default  # type: ignore[return-value]


def describe_settings() -> str:
    """Every setting with its text, its default and what is allowed: a docstring's `Attributes`."""
    lines = ["Attributes:"]
    for name, field in FIELDS.items():
        default, allowed = field.default, "" if range_of(field) == "text" else f"; allowed: {range_of(field)}"
        lines.append(f"    {name}: {field.metadata['text']} (default {default!r}{allowed}).")
    return "\n".join(lines)


Experiment.__doc__ = f"{Experiment.__doc__}\n\n{describe_settings()}"
