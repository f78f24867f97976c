"""Any PyTorch module with a loss as pure functions of one flat vector."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedveca.algorithms.contract import LocalLoss
from fedveca.algorithms.layout import Layout
from fedveca.errors import UserError
from fedveca.tasks.augment import Augmentation
from fedveca.tasks.datasets.dataset import Inputs, unpack_inputs
from fedveca.tasks.layers import LinearLayers, Way
from fedveca.tasks.losses import Rows, cross_entropy, per_row
from fedveca.tasks.metrics import METRICS, Metric
from fedveca.tasks.native.library import PYTORCH, describe_compiler
from fedveca.tasks.native.perceptron import PerceptronKernel, find_perceptron_kernel
from fedveca.tasks.randomness import draw_from
from fedveca.tasks.replica import Replica, average_rows, find_head, to_scores

Program = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]  # (w, x, y, weight) -> grad F, F
_COMPARED = 3  # clients whose passes decide whether layers without autograd have its bytes
FEW = 6  # clients that are quicker one by one than mapped


class ModuleProblem:
    """Any module, with cross-entropy and accuracy unless others are given.

    The vector holds the parameters that require a gradient. Convolution weights lie channels-last in it: that is what
    the CPU's kernels want. Frozen parameters and constant buffers stay in the module. A local step is in training mode;
    everything else (the probe, the test) is in evaluation mode.
    """

    autograd = True

    def __init__(
        self,
        module: nn.Module,
        said: str = "the model",
        loss: Rows = cross_entropy,
        metrics: tuple[Metric, ...] = (METRICS["accuracy"],),
        precision: str = "float32",
        *,
        running: Sequence[str] = (),
        fixed: Sequence[str] = (),
        random: bool = False,
        inputs: Inputs = (),
        compiled: bool = False,
        augment: Augmentation | None = None,
    ) -> None:
        """Takes the module as it is; `validate_model` finds `running` and `random` out by trying it.

        Args:
            module: What is trained.
            said: What an error calls it.
            loss: A function of (scores, y), one number per row.
            metrics: What is reported besides the loss.
            precision: Arithmetic of the layers: "float32" or "bfloat16".
            running: The buffers that training changes, by name.
            fixed: Buffers that training would change, but may not: their layers stay in evaluation mode.
            random: Whether training draws random numbers inside the module.
            inputs: How a row is split into several inputs; empty where it is one.
            compiled: Whether the model's operations are fused on a CUDA device, where it neither draws nor has
                running statistics.
            augment: Changes the rows of each local step before the model sees them, at random.
        """
        check_module(module, said)
        self.module, self.loss, self.metrics, self.precision = module, loss, metrics, precision
        self.inputs = inputs
        self.quiet = sorted({name.rpartition(".")[0] for name in fixed})  # layers that stay in evaluation mode
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.shapes = {name: p.shape for name, p in trained.items()}
        self.sizes = [p.numel() for p in trained.values()]
        self.size = sum(self.sizes)
        buffers = dict(module.named_buffers())
        self.running = {name: buffers[name].shape for name in running}
        self.statistics = sum(math.prod(shape) for shape in self.running.values())
        self.augment, self.row_bytes = augment, 0
        self.random = random or augment is not None
        self._hash: str | None = None
        single = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.RNNBase  # quicker for one client than mapped over several
        slower = any(isinstance(m, single) for m in module.modules())
        self.mapped = not (slower or running or self.random)
        self.compiled = compiled and not (running or fixed or random)
        changed = running or fixed or self.random or inputs
        self.layers = None if changed else LinearLayers.find(module, loss, precision)
        self._programs: dict[bool, Program] = {}  # by whether it is for training
        self._placed: dict[torch.device, nn.Module] = {}  # whose frozen part all replicas on a device share
        self._lock = threading.Lock()
        self._local = threading.local()  # replicas: dict[torch.device, Replica]

    @property
    def layout(self) -> Layout:
        ends = list(itertools.accumulate(self.sizes))
        slices = {name: slice(end - n, end) for name, n, end in zip(self.shapes, self.sizes, ends, strict=True)}
        trained = {id(p): name for name, p in self.module.named_parameters() if p.requires_grad}

        def names_of(layer: nn.Module | None) -> tuple[str, ...]:
            own = layer.parameters(recurse=False) if layer else ()
            return tuple(trained[id(p)] for p in own if id(p) in trained)

        head = names_of(find_head(self.module))
        return Layout(slices, head or [names for layer in self.module.modules() if (names := names_of(layer))][-1])

    def init(self) -> Tensor:
        return self.flat([p.detach() for p in self.module.parameters() if p.requires_grad])

    def initial_statistics(self) -> Tensor:
        buffers = dict(self.module.named_buffers())
        return torch.cat([torch.empty(0), *(buffers[name].detach().reshape(-1) for name in self.running)])

    def targets(self, y: Tensor) -> Tensor:
        return y

    def flat(self, parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([(p.permute(0, 2, 3, 1) if p.dim() == 4 else p).reshape(-1) for p in parts])

    def named(self, w: Tensor) -> dict[str, Tensor]:
        out = {}
        for (name, shape), part in zip(self.shapes.items(), torch.split(w, self.sizes), strict=True):
            if len(shape) == 4:
                out[name] = part.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
            else:
                out[name] = part.view(shape)
        return out

    def named_statistics(self, statistics: Tensor) -> dict[str, Tensor]:
        """[S] as the module's running buffers."""
        parts = torch.split(statistics, [math.prod(shape) for shape in self.running.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.running.items(), parts, strict=True)}

    def find_variances(self) -> Tensor:
        """[S] of bool: which of the running statistics are variances, which are never negative."""
        parts = [torch.full((math.prod(v),), name.endswith("running_var")) for name, v in self.running.items()]
        return torch.cat([torch.empty(0, dtype=torch.bool), *parts])

    def state(self, model: Tensor) -> dict[str, Tensor]:
        statistics = model[self.size :] if len(model) > self.size else self.initial_statistics().to(model.device)
        found = self.named(model[: self.size]) | self.named_statistics(statistics)
        first = {id(v): name for name, v in self.module.named_parameters()}
        first |= {id(v): name for name, v in self.module.named_buffers()}
        out: dict[str, Tensor] = {}
        for name, v in self.module.state_dict(keep_vars=True).items():
            if isinstance(v, Tensor):
                known = found.get(first.get(id(v), name))
                here = v.detach().to(model.device) if known is None else known
                out[name] = here if known is not None and first.get(id(v)) == name else here.clone()
        return out

    def describe_kernels(self) -> str:
        if self.layers:
            return describe_compiler() if find_perceptron_kernel(self.layers.sizes) else PYTORCH
        describe = getattr(self.module, "describe_kernels", str)
        return str(describe())

    def hash_fixed(self) -> str:
        if self._hash is None:  # a node is asked for it with every message
            self._hash = self._hash_fixed()
        return self._hash

    def _hash_fixed(self) -> str:
        fixed: list[tuple[str, Tensor]] = [(n, p) for n, p in self.module.named_parameters() if not p.requires_grad]
        fixed += [(name, v) for name, v in self.module.named_buffers() if name not in self.running]
        found = hashlib.sha256()
        for name, v in fixed:
            found.update(repr((name, v.dtype, tuple(v.shape))).encode())
            found.update(v.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return found.hexdigest() if fixed else ""

    def gradients(
        self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None, statistics: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if kernel := self._find_kernel(w, x, y):
            return kernel.evaluate(w, x, y, weight)
        return self._gradients(w, x, y, weight, statistics, None, training=False)

    def slope(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        unit: float = 1.0,
        *,
        statistics: Tensor | None = None,
        generators: Sequence[torch.Generator] | None = None,
        loss: LocalLoss | None = None,
    ) -> Tensor:
        if kernel := self._find_kernel(w, x, y, loss):
            return kernel.find_slopes(w, x, y, unit)
        x = x if unit == 1 else x * unit
        if self.augment is not None:
            x = self._augment(self.augment, x, generators)
        return self._gradients(w, x, y, None, statistics, generators, training=True, local=loss)[1]

    def _augment(self, change: Augmentation, x: Tensor, generators: Sequence[torch.Generator] | None) -> Tensor:
        """Rows [n, B, ...] changed for one local step; each client's draws come before those of its model."""
        changed = []
        for i, rows in enumerate(x):
            with torch.no_grad(), nullcontext() if generators is None else draw_from(generators[i]):
                changed.append(change(rows))
        return torch.stack(changed) if len(changed) > 1 else changed[0][None]

    @property
    def joins_passes(self) -> bool:
        """Whether passes of several runs may become one: not in C, where one run's pass is as quick."""
        return self.layers is not None and find_perceptron_kernel(self.layers.sizes) is None

    def _find_kernel(self, w: Tensor, x: Tensor, y: Tensor, loss: LocalLoss | None = None) -> PerceptronKernel | None:
        """What computes these gradients in C, if anything does."""
        layers = self._find_plain_layers(w, y, loss)
        return find_perceptron_kernel(layers.sizes) if layers and x.dtype == torch.float32 else None

    def _find_plain_layers(self, w: Tensor, y: Tensor, loss: LocalLoss | None) -> LinearLayers | None:
        """The layers of a pass that needs no autograd: on the CPU, with their own loss, and with one label per row."""
        plain = loss is None and not w.is_cuda and y.dim() == 2 and not y.is_floating_point()
        return self.layers if plain else None

    def find_layers(self, rows: int, weighted: bool) -> LinearLayers | None:
        """The layers through which clients of several runs may pass at once; None where that changes their bytes."""
        return self.layers if self.layers and self.layers.find_way((rows, weighted)) == "batched" else None

    def losses(self, w: Tensor, x: Tensor, y: Tensor, statistics: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            scores = self.scores(w, x, statistics)
            return self.loss(scores, y).mean(), scores

    def labels(self, y: Tensor) -> Tensor:
        return y

    def scores(self, w: Tensor, x: Tensor, statistics: Tensor | None = None) -> Tensor:
        """In evaluation mode."""
        return self._replica(w.device).scores(w, x, statistics)

    def buffers_in_use(self) -> dict[str, Tensor]:
        """The buffers of this thread's replica on the CPU, which passes may have changed."""
        return dict(self._replica(torch.device("cpu")).module.named_buffers())

    def _gradients(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        statistics: Tensor | None,
        generators: Sequence[torch.Generator] | None,
        training: bool,
        local: LocalLoss | None = None,
    ) -> tuple[Tensor, Tensor]:
        if self.compiled and w.is_cuda and local is None:
            program = self._compile(training, w.device)
            found = [program(w[i], x[i], y[i], None if weight is None else weight[i]) for i in range(len(w))]
            return torch.stack([loss for _, loss in found]), torch.stack([g for g, _ in found])
        if layers := self._find_plain_layers(w, y, local):
            way = self._find_way(layers, w, x, y, weight)
            if way != "autograd":
                return layers.gradients(w, x, y, weight, way=way, want_loss=not training)
        if len(w) > FEW and self.mapped and local is None:
            replica = self._replica(w.device)
            replica.set_mode(training)
            one = partial(self._loss, replica.module)  # this thread's own: a call puts w in its parameters' place
            g, loss = vmap(grad_and_value(one), in_dims=(0, 0, 0, None if weight is None else 0))(w, x, y, weight)
            return loss, g
        return self._find_alone(w, x, y, weight, statistics, generators, training, local)

    def _find_alone(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        statistics: Tensor | None = None,
        generators: Sequence[torch.Generator] | None = None,
        training: bool = False,
        local: LocalLoss | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Client by client, with autograd."""
        replica = self._replica(w.device)
        alone = [
            replica(
                w[i],
                x[i],
                y[i],
                None if weight is None else weight[i],
                None if statistics is None else statistics[i],
                None if generators is None else generators[i],
                training,
                None if local is None else local.select(i),
            )
            for i in range(len(w))
        ]
        if len(alone) == 1:  # without a copy of the gradient
            return alone[0][0][None], alone[0][1][None]
        return torch.stack([loss for loss, _ in alone]), torch.stack([g for _, g in alone])

    def _find_way(self, layers: LinearLayers, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> Way:
        """How its layers give the bytes of autograd; the first pass of a kind compares a few clients."""
        kind = y.shape[1], weight is not None
        if way := layers.find_way(kind):
            return way
        few = [v if v is None else v[:_COMPARED] for v in (w, x, y, weight)]
        loss, g = self._find_alone(*few)  # type: ignore[arg-type]
        return layers.try_ways(kind, loss, g, *few)  # type: ignore[arg-type]

    def _loss(self, module: nn.Module, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        args, named = unpack_inputs(x, self.inputs)
        out = functional_call(module, self.named(w), args, named)
        return average_rows(per_row(self.loss(to_scores(out), y)), weight)

    def _compile(self, training: bool, device: torch.device) -> Program:
        """grad F and F of one client as fused kernels, made on the first call for rows of a shape."""
        if training not in self._programs:
            self._replica(device)
            module = copy.deepcopy(self._placed[device]).train(training)

            def loss(w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
                x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
                with torch.autocast("cuda", torch.bfloat16, enabled=self.precision == "bfloat16"):
                    args, named = unpack_inputs(x, self.inputs)
                    out = functional_call(module, self.named(w), args, named)
                return average_rows(per_row(self.loss(to_scores(out).float(), y)), weight)

            self._programs[training] = torch.compile(grad_and_value(loss), dynamic=False)
        return self._programs[training]

    def fork(self) -> ModuleProblem:
        other = ModuleProblem.__new__(ModuleProblem)
        other.__dict__.update(self.__dict__, _local=threading.local())  # the frozen part and programs are shared
        return other

    def __getstate__(self) -> dict[str, object]:
        """What a copy or another process needs: neither threads' replicas nor locks."""
        left = ("_local", "_lock", "_placed", "_programs")
        return {name: v for name, v in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._placed, self._programs, self._lock, self._local = {}, {}, threading.Lock(), threading.local()

    def _replica(self, device: torch.device) -> Replica:
        """A module changes while it is called, so each thread has its own on each device."""
        mine: dict[torch.device, Replica] = self._local.__dict__.setdefault("replicas", {})
        if device not in mine:
            with self._lock:
                if device not in self._placed:
                    self._placed[device] = copy.deepcopy(self.module).to(device)
                mine[device] = Replica(self, self._placed[device])
        return mine[device]


def check_module(module: nn.Module, said: str) -> None:
    """UserError where a module cannot be trained as a function of one vector."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        frozen = ", which are all frozen" if any(True for _ in module.parameters()) else ""
        raise UserError(f"{said} has no parameters to train{frozen}")
    for name, part in module.named_modules():
        if isinstance(part, nn.SyncBatchNorm):
            raise UserError(f"{said} has SyncBatchNorm ({name}), which needs several processes; use nn.BatchNorm2d")
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
            raise UserError(
                f"{said}: {name} has no running statistics (track_running_stats=False), so that the scores of a row "
                "change with the other rows of its batch; leave that argument out, or take fedveca.models.to_group_norm"
            )
        tracks = isinstance(part, nn.modules.batchnorm._NormBase) and part.running_mean is not None
        if tracks and part.momentum is None:
            raise UserError(
                f"{said}: {name} has momentum=None, an average over all batches so far that clients cannot share; "
                "give it a momentum such as 0.1"
            )
    other = [name for name, p in trained.items() if p.dtype != torch.float32]
    if other:
        raise UserError(
            f"{said}: parameter {other[0]} is {trained[other[0]].dtype}; what is trained is float32 "
            "(only frozen parameters may be of another type)"
        )
    broken = [name for name, p in module.named_parameters() if p.is_floating_point() and not bool(p.isfinite().all())]
    if broken:
        raise UserError(f"{said}: parameter {broken[0]} is not finite (NaN or infinity); training starts from it")
