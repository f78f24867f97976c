"""Every setting of a run, declared once: its type, its default, its range, its text and its subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from fedveca.algorithms.hyper import LARGEST, LR
from fedveca.cohorts.clock.profiles import POPULATIONS, LatePolicy
from fedveca.runs.budget import BUDGET_FORMS
from fedveca.runs.catalog import known_methods, load_catalog
from fedveca.runs.clock_settings import FILE_ENDINGS, MOST_OVER, ROUND_SCHEDULE_TEXTS, RoundSchedule
from fedveca.runs.setting_fields import (
    LOCAL_OPTIMIZER_TEXTS,
    OPTIMIZER_STATE_TEXTS,
    SCHEDULE_TEXTS,
    SERVER_OPTIMIZER_TEXTS,
    SHARE_TEXTS,
    TEST_BY_TEXTS,
    WEIGHTS_TEXTS,
    WIRE_TEXTS,
    AggregationName,
    Auto,
    DataName,
    Engine,
    GuardChoice,
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
    Share,
    TaskDefault,
    TestBy,
    Weights,
    Wire,
    method_option,
)
from fedveca.tasks.augment_settings import AUGMENT_FORMS

TRACKERS = ("tensorboard", "mlflow", "wandb")
_NAMES = load_catalog()  # of data sets, models and so on
KNOWN_MODELS = f"{', '.join(_NAMES['models'])} or package.module:factory"
MOST_VAL = 0.9  # share of a client's rows
MOST_BETA = 0.999999  # of momentum and moments: at 1 nothing new would count
_task, _clients, _training = SettingGroup("task"), SettingGroup("clients"), SettingGroup("training")
_steps, _robustness, _privacy = SettingGroup("local steps"), SettingGroup("robustness"), SettingGroup("privacy")
_records, _machines = SettingGroup("records"), SettingGroup("machines")
_optimisers, _methods = SettingGroup("optimisers"), SettingGroup("other methods")
_evaluation, _clock = SettingGroup("evaluation"), SettingGroup("simulated time")


@dataclass(frozen=True)
class SettingList:
    """All settings of a run; `Experiment` checks them."""

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
    weights: Weights = _clients.rare("rows", "the weight p_i of a client in every mean", of=WEIGHTS_TEXTS)
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
    lookahead: float = method_option(_steps.rare, "lookahead")
    share_alpha: float = method_option(_steps.rare, "share_alpha")
    tau_all: int = _steps.rare(
        0, "fixed-step methods: local steps of the whole run, shared by size (0: tau_0 each)", low=0
    )
    share: Share = _steps.rare("floor", "how tau_all is divided over clients and rounds", of=SHARE_TEXTS)
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
    budget: str = _training(
        "",
        "what a run may use up in all: it ends, before its last round, where another round would exceed it",
        forms=BUDGET_FORMS.values(),
    )
    guard: GuardChoice = _training(
        "auto",
        "where training goes wrong, return to the best model and take shorter server steps (auto: on for fedvecam)",
        of=get_args(GuardChoice),
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
    devices: str = _clock(
        "",
        "simulated devices of the clients, on which a round takes its time",
        forms=(*POPULATIONS, *(f"FILE{ending}" for ending in FILE_ENDINGS)),
    )
    schedule: RoundSchedule = _clock(
        "sync", "when a round ends, on simulated devices or on nodes", of=ROUND_SCHEDULE_TEXTS
    )
    deadline: float = _clock(0.0, "schedule=deadline: seconds of a round at the most, simulated or real", low=0)
    late: LatePolicy = _clock.rare(
        "drop", "schedule=deadline: leave late clients out, or cut their steps to what fits", of=get_args(LatePolicy)
    )
    over_selection: float = _clock.rare(
        0.0,
        "share of clients asked beyond participation; a round ends when as many as it needs have answered",
        low=0,
        high=MOST_OVER,
    )
    buffer: int = _clock.rare(0, "schedule=buffered: answers of a round (0: half of the clients at work)", low=0)
    staleness: float = _clock.rare(
        0.5, "schedule=buffered: an answer that began s models ago counts (1 + s)^-staleness times", low=0, high=10
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
    secure: OnOff = _privacy(
        "off",
        "secure aggregation: the server sees the clients' vectors only as a sum; their numbers (tau, loss, beta, "
        "spread) one by one",
        of=get_args(OnOff),
    )
    secure_threshold: int = _privacy.rare(
        0, "secure=on: a round with fewer answers is void (0: two thirds of the clients asked)", low=0
    )
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
    wire: Wire = _machines.rare("float32", "form in which vectors travel, in a simulation too", of=WIRE_TEXTS)
    wire_share: float = _machines.rare(
        0.1, "wire=topk: share of a vector's numbers that a client sends", low=0, high=1, open_ends="low"
    )
    data_dir: str = _task.rare("", "folder that holds the data set (else FEDVECA_DATA, the cache, the mirrors)")
    dyn: float = method_option(_methods.rare, "dyn")
    exp_eps: float = method_option(_methods.rare, "exp_eps")
    acg_lambda: float = method_option(_methods.rare, "acg_lambda")
    acg_beta: float = method_option(_methods.rare, "acg_beta")
    mime_beta: float = method_option(_methods.rare, "mime_beta")
    lc_tau: float = method_option(_methods.rare, "lc_tau")
    moon_mu: float = method_option(_methods.rare, "moon_mu")
    moon_temperature: float = method_option(_methods.rare, "moon_temperature")
    wang_phi: float = method_option(_methods.rare, "wang_phi")
    wang_seconds: float = method_option(_methods.rare, "wang_seconds")
    ada_interval: float = method_option(_methods.rare, "ada_interval")
    ada_gamma: float = method_option(_methods.rare, "ada_gamma")
    method_options: str = _methods.rare(
        "",
        "hyperparameters of a custom method that are not settings themselves, with commas between",
        forms=("NAME=VALUE,...",),
    )
