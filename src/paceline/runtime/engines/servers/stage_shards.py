"""The shards of a server between replicas that are pipelines: one for each place of a replica.

A shard has the parts of the model that the workers of one place have, one in each replica (DistBelief). So a worker
pushes to one shard alone and pulls from it, while others of its replica do so at theirs; and a *replica* is what the
desk and the machines of the shards call a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from paceline.plans.plan import Plan
from paceline.runtime.engines.servers.gradient import GradientPort
from paceline.runtime.engines.servers.shard_memory import Locked, ShardMemory, ShardPort, WorkerSide
from paceline.runtime.engines.setup import Setup
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.replica import Replica
from paceline.training.parameters.layout import Layout, lay_out_tensors, trainable
from paceline.training.parameters.optimizers import optimizer_over
from paceline.training.parameters.shard_version import ShardVersion, VersionShape, version_shape
from paceline.training.splits.slicing import assembled, sliced
from paceline.training.stages.cutting import Blueprint, skeleton
from paceline.training.stages.segment import Segment


class StageShard(NamedTuple):
    """What one place of a replica holds: its parameters and moving buffers, by name."""

    parameters: list[tuple[str, nn.Parameter]]
    buffers: list[tuple[str, Tensor]]

    @property
    def layout(self) -> Layout:
        return lay_out_tensors(self.parameters, self.buffers)

    def shape(self, setup: Setup) -> VersionShape:
        """Return the shape of the shard's versions."""
        layout, mine = self.layout, [p for _, p in self.parameters]
        module = setup.fresh_module()
        optimizer = setup.job.make_optimizer(module, list(trainable(module).values()))
        named = trainable(module)
        shard_optimizer = optimizer_over(optimizer, {named[name]: p for name, p in self.parameters})
        method = setup.pipeline.spread.server if setup.pipeline is not None else None
        assert method is not None
        return version_shape(layout.shards[0], layout.dtype, mine, shard_optimizer, method.rule)

    def put_version_0(self, memory: ShardMemory, setup: Setup) -> None:
        """Write what every replica starts from into every version."""
        assert setup.pipeline is not None
        assert setup.pipeline.spread.server is not None
        dtype, rule = self.layout.dtype, setup.pipeline.spread.server.rule
        for version in memory.versions:
            version.start([p for _, p in self.parameters], [b.to(dtype) for _, b in self.buffers], rule)


def stage_shards(setup: Setup) -> list[StageShard]:
    """Return what every place of a replica holds, in the order of its workers."""
    blueprint, pipeline = setup.blueprint, setup.pipeline
    assert blueprint is not None
    assert pipeline is not None
    shards = []
    for names in blueprint.holdings(setup.module):
        for place in range(pipeline.spread.inside):
            module = sliced(skeleton(setup.module, names), blueprint.stored, place)
            parameters = [(name, p) for name, p in trainable(module).items() if name in names]
            buffers = dict(module.named_buffers())
            assert parameters, "set_up refuses a stage without any"
            shards.append(StageShard(parameters, [(name, buffers[name]) for name in blueprint.moving if name in names]))
    return shards


def whole_values(blueprint: Blueprint, names: Sequence[str], versions: Sequence[ShardVersion]) -> list[Tensor]:
    """Return the model's tensors of these names from a version of every shard."""
    parts: dict[str, list[Tensor]] = {}
    for version in versions:
        spans = (*version.shape.layout.parameters, *version.shape.layout.buffers)
        for span, value in zip(spans, (*version.parameters, *version.buffers), strict=True):
            parts.setdefault(span.name, []).append(value)
    stored, shapes = blueprint.stored, blueprint.shapes
    return [assembled(parts[name], stored.get(name), shapes.get(name, ())) for name in names]


def open_stage_port(
    segment: Segment,
    plan: Plan,
    replica: int,
    shard: int,
    memory: ShardMemory,
    lock: Locked,
    ensure_trace_space: Callable[[], None],
    record: Callable[..., None],
) -> ShardPort:
    """Open the port of one worker to its shard; its stage computes with the shard's versions from now on."""
    ((number, stage),) = segment.stages.items()
    named = list(segment.named(number))
    count, module = len(stage.parameters), nn.Module()
    for (name, _), parameter in zip(named[:count], stage.parameters, strict=True):
        _hold(module, name).register_parameter(name.rpartition(".")[2], parameter)
    for name, buffer in named[count:]:
        _hold(module, name).register_buffer(name.rpartition(".")[2], buffer)
    learner = Learner(Replica(segment.job, module, tuple(name for name, _ in named[count:])))
    side = WorkerSide(
        replica,
        plan,
        learner,
        stage.weights.store.optimizer,
        segment.layout(number),
        None,
        ensure_trace_space,
        record,
        lambda version, state: None,
    )
    server = plan.method.spread.server  # type: ignore[attr-defined]
    return GradientPort(side, shard, memory, lock, server.rule, part=0)


def _hold(root: nn.Module, name: str) -> nn.Module:
    """Return the module at the path of a name, made where it is missing."""
    for word in name.split(".")[:-1]:
        if word not in root._modules:
            root.add_module(word, nn.Module())
        root = root.get_submodule(word)
    return root
