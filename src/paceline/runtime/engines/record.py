"""The record of a run when it begins, which run.json holds: who holds what, and the outline of the model."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from paceline.algorithms.agenda import Chunk
from paceline.plans.methods.pipeline import LAYERS
from paceline.plans.methods.split_layers import INSIDE
from paceline.runtime.engines.job_file import ARITHMETIC_VERSION, own_files
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.record import (
    AttemptRecord,
    DataOrigin,
    JobRecord,
    LayerRecord,
    MovingBuffers,
    RunRecord,
    Status,
    this_machine,
)
from paceline.training.data.opening import origins
from paceline.training.data.source import Order, Source
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job, threads
from paceline.training.jobs.several import SeveralOptimizers
from paceline.training.parameters.layout import not_trained, trainable
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.splits.slicing import Stored, stored_part
from paceline.training.stages.cutting import held


def first_record(setup: Setup, kept: bool) -> RunRecord:
    """Describe the run as it is before the first update; the model's layers only if the record is kept."""
    job, plan = setup.job, setup.plan
    return RunRecord(
        status=Status.RUNNING,
        started=datetime.now().astimezone().isoformat(timespec="milliseconds"),
        plan=str(plan),
        table=plan.own_table,
        engine=setup.engine,
        compute=job.compute,
        workers=plan.workers,
        threads=plan.threads,
        shards=plan.shards,
        adds_up=setup.placement.library,
        limit=setup.limit,
        lives=(life_record(setup, 0),),
        job=_job(setup),
        moving_buffers=MovingBuffers(
            "mean over chunks" if plan.traits.synchronous else "shard 0, the last push wins", tuple(setup.probe.moving)
        ),
        data_fingerprint=setup.source.fingerprint(),
        data=tuple(DataOrigin(str(f.resolve()), split, samples) for f, split, samples in origins(setup.source)),
        initial_sha256=setup.initial_sha256,
        arithmetic_version=ARITHMETIC_VERSION,
        files=own_files() if kept else {},
        notes=(*setup.probe.notes, *([str(setup.choice)] if setup.choice else [])),
        machine=this_machine(),
        model=_model(setup) if kept else (),
    )


def _model(setup: Setup) -> tuple[LayerRecord, ...]:
    """Describe the layers, and what each worker holds of them where none holds all."""
    layers, holdings = outline(setup.job, setup.module, setup.source), bytes_held(setup)
    if not holdings:
        return tuple(layers)
    return tuple(
        replace(
            layer,
            held=tuple(map(sum, zip(*(mine for name, mine in holdings.items() if _of(layer, name)), strict=True))),
        )
        for layer in layers
    )


def _of(layer: LayerRecord, name: str) -> bool:
    """Whether a parameter or buffer is one of a layer's."""
    inner = name.removeprefix(f"{layer.name}.") if layer.name else name
    return inner in layer.shapes or (inner != name and "." not in inner)


def life_record(setup: Setup, updates: int) -> AttemptRecord:
    """Describe the part of a run that begins after so many updates."""
    return AttemptRecord(str(setup.plan), updates, setup.engine)


def _job(setup: Setup) -> JobRecord:
    """Describe the job."""
    job = setup.job
    return JobRecord(
        name=job.name,
        origin=job.origin,
        arguments=tuple(sys.argv[1:]),
        batch_size=job.batch_size,
        epochs=job.epochs,
        accumulate_grad_batches=job.accumulate_grad_batches,
        seed=job.seed,
        precision=job.precision,
        device=str(setup.placement),
        optimizer=_optimizer(setup),
        gradient_clip_norm=job.gradient_clip_norm,
        shuffle=job.shuffle,
        evaluate_every=job.evaluate_every,
        on_nan=job.on_nan,
        num_workers=job.num_workers,
        samples=len(setup.source),
        test_samples=len(setup.test) if setup.test is not None else 0,
        parameters=sum(p.numel() for p in trainable(setup.module).values()),
    )


def _optimizer(setup: Setup) -> str:
    """Write the user's optimizers as in Python."""
    module = setup.fresh_module()
    optimizer = setup.job.make_optimizer(module, list(trainable(module).values()))
    return " + ".join(map(_written, optimizer.each if isinstance(optimizer, SeveralOptimizers) else (optimizer,)))


def _written(optimizer: Optimizer) -> str:
    """Write an optimizer with its settings; of several groups, those of the first."""
    settings = {key: value for key, value in optimizer.param_groups[0].items() if key != "params" and value is not None}
    groups = f"{len(optimizer.param_groups)} groups, first: " if len(optimizer.param_groups) > 1 else ""
    return (
        f"{type(optimizer).__name__}({groups}{', '.join(f'{key}={value}' for key, value in settings.items() if value)})"
    )


# Who holds what: the parameters and buffers of each worker, of plans whose workers hold one model between them.


class Piece(NamedTuple):
    """What one worker holds of some parameters, in the state that it writes."""

    worker: int
    #: The worker's place among those that share layers.
    place: int
    parameters: list[str]
    moving: list[str]
    #: The stage of a pipeline; -1 without stages.
    stage: int = -1

    @property
    def start(self) -> str:
        """What the names of the optimizer's tensors begin with."""
        return f"{self.stage}/" if self.stage >= 0 else ""

    def key(self, number: int) -> str:
        """Return the name of a value in the worker's state."""
        return f"values.{number}" if self.stage < 0 else (*self.parameters, *self.moving)[number]


def pieces(setup: Setup) -> Iterator[Piece]:
    """Yield what each worker holds."""
    named, workers = list(trainable(setup.module)), setup.plan.workers
    moving = list(setup.probe.moving)
    if setup.pipeline is not None and setup.blueprint is not None:
        mesh, blueprint = setup.pipeline.mesh(workers), setup.blueprint
        module = setup.fresh_module()
        stages = held(blueprint.codes(module), module)
        for worker in range(workers):
            for stage, names in enumerate(stages):
                if blueprint.stage_to_worker[stage] == mesh.coordinate(worker, LAYERS):
                    mine = [name for name in names if name in named], [name for name in moving if name in names]
                    yield Piece(worker, mesh.coordinate(worker, INSIDE), *mine, stage)
    elif setup.split is not None:
        mesh = setup.plan.method.mesh(workers)
        yield from (Piece(worker, mesh.coordinate(worker, INSIDE), named, moving) for worker in range(workers))
    else:
        yield Piece(0, 0, named, moving)


def stored_in(setup: Setup, name: str) -> Stored | None:
    """Return how a parameter or buffer lies with the workers that share its layer; None where each has all of it."""
    divided = setup.blueprint or setup.split
    return divided.stored.get(name) if divided is not None else None


def bytes_held(setup: Setup) -> dict[str, tuple[int, ...]]:
    """Return, for each parameter and moving buffer, its bytes at each worker; nothing where each holds all of them."""
    module, workers = setup.module, setup.plan.workers
    tensors = {**trainable(module), **{n: b for n, b in not_trained(module).items() if n in setup.probe.moving}}
    sizes = {name: [0] * workers for name in tensors}
    if setup.operators is not None:
        for operator, worker in setup.operators.holders.items():
            for name, tensor in tensors.items():
                if name.startswith(f"{setup.operators.names[operator]}."):
                    sizes[name][worker] = tensor.nbytes
    elif setup.blueprint is not None or setup.split is not None:
        for piece in pieces(setup):
            for name in (*piece.parameters, *piece.moving):
                sizes[name][piece.worker] = stored_part(tensors[name], stored_in(setup, name), piece.place).nbytes
    else:
        return {}
    return {name: tuple(mine) for name, mine in sizes.items()}


# The outline of a model for its record: the layers with their sizes, and which one's output reaches which.
#
# A layer is a module without modules in it, or one of PyTorch's own that holds parameters itself (attention does).
# One forward pass shows which output reaches which layer: for every tensor it is tracked which layers it comes from,
# through any function that the model calls between its layers, so a residual connection is found without being
# declared.


def outline(job: Job, module: nn.Module, source: Source) -> list[LayerRecord]:
    """Describe the layers in the order of their first call. A layer that one small batch does not reach comes last."""
    model = copy.deepcopy(module)
    parts = list(_layers(model, ""))
    tracker = _Tracker()
    hooks = [hook for number, (_, part) in enumerate(parts) for hook in tracker.watch(number, part)]
    samples = min(job.batch_size, len(source))
    chunk = Chunk(0, 0, 0, 0, samples, 1.0)
    batch = source.batch(Order(len(source), job.seed, job.shuffle).indices(chunk), 0)
    # A model that cannot be run in this way (a step that makes gradients itself) has an outline without shapes.
    with contextlib.suppress(Exception), torch.no_grad(), threads(1), tracker:
        Replica(job, model, ()).forward(model, chunk, batch)
    for hook in hooks:
        hook.remove()
    order = sorted(range(len(parts)), key=lambda n: (tracker.calls.get(n, len(parts)), n))
    position = {number: at for at, number in enumerate(order)}
    return [
        replace(
            _sizes(*parts[number]),
            output=tracker.outputs.get(number),
            after=tuple(sorted(position[n] for n in tracker.after.get(number, ()))),
        )
        for number in order
    ]


def _layers(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a module with their names."""
    children = dict(module.named_children())
    has_parameters = any(True for _ in module.parameters(recurse=False))
    if not children or (has_parameters and type(module).__module__.startswith("torch.")):
        yield name, module
        return
    if has_parameters:
        yield name, module
    for child, part in children.items():
        yield from _layers(part, f"{name}.{child}" if name else child)


def _sizes(name: str, part: nn.Module) -> LayerRecord:
    is_leaf = not dict(part.named_children()) or type(part).__module__.startswith("torch.")
    parameters = dict(part.named_parameters(recurse=is_leaf))
    count = sum(p.numel() for p in parameters.values())
    return LayerRecord(name, type(part).__name__, count, {key: tuple(p.shape) for key, p in parameters.items()})


class _Tracker(TorchFunctionMode):
    """Tracks, through one forward pass, which layers every tensor comes from."""

    def __init__(self) -> None:
        super().__init__()
        #: For each layer, its position in the order of first calls.
        self.calls: dict[int, int] = {}
        #: For each layer, the shape of its first output.
        self.outputs: dict[int, tuple[int, ...]] = {}
        #: For each layer, the layers whose outputs reach it.
        self.after: dict[int, set[int]] = {}
        #: For each tensor's id, the layers that it comes from.
        self._from: dict[int, frozenset[int]] = {}
        #: Keeps tensors alive, since a new one could get the id of an old one.
        self._alive: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._mark(result, self._origin((args, kwargs)))
        return result

    def watch(self, number: int, part: nn.Module) -> list[Any]:
        """Register the hooks of one layer."""

        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.calls.setdefault(number, len(self.calls))
            self.after.setdefault(number, set()).update(self._origin((args, kwargs)) - {number})

        def after(_: nn.Module, args: Any, result: Any) -> None:
            first = next(_tensors(result), None)
            self.outputs.setdefault(number, () if first is None else tuple(first.shape))
            self._mark(result, frozenset([number]))

        if dict(part.named_children()) and not type(part).__module__.startswith("torch."):
            return []  # it only holds parameters; its layers are watched on their own
        return [part.register_forward_pre_hook(before, with_kwargs=True), part.register_forward_hook(after)]

    def _origin(self, values: Any) -> frozenset[int]:
        return frozenset[int]().union(*(self._from.get(id(t), frozenset()) for t in _tensors(values)))

    def _mark(self, values: Any, origin: frozenset[int]) -> None:
        for tensor in _tensors(values):
            self._from[id(tensor)] = origin
            self._alive.append(tensor)


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
