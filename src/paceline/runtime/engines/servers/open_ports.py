"""The ports of a plan with a server, by what its pushes bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from paceline.plans.methods import Server
from paceline.plans.plan import server_of
from paceline.runtime.engines.servers.centre import CentrePort
from paceline.runtime.engines.servers.gathering import GatheringPort
from paceline.runtime.engines.servers.gradient import GradientPort
from paceline.runtime.engines.servers.hogwild import HogwildPort
from paceline.runtime.engines.servers.pairwise import PairwisePort
from paceline.runtime.engines.servers.port import ShardPort, WorkerSide
from paceline.runtime.engines.servers.shard_memory import Locked, ShardMemory
from paceline.training.gradients.gather_buffers import GatherBuffers
from paceline.training.gradients.payload import Payload
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.optimizers import Optimizer, optimizer_over
from paceline.training.parameters.shard_version import VersionShape, version_shape
from paceline.training.parameters.worker_state import WorkerState

#: Returns the lock of a shard; a `shared` one keeps out only those who do not share it.
LockOf = Callable[[int, bool], Locked]
ServerPort = ShardPort | HogwildPort


def open_ports(
    side: WorkerSide, memories: Sequence[ShardMemory], lock_of: LockOf, buffers: Sequence[Tensor]
) -> Sequence[ServerPort]:
    """Open one worker's port to every shard; `buffers` hold the gradients of a round, if the method gathers them."""
    if not side.plan.traits.versioned:
        return [HogwildPort(side, memory, lock_of(n, True)) for n, memory in enumerate(memories)]
    return [_port(side, n, memory, lock_of(n, False), buffers) for n, memory in enumerate(memories)]


def _port(side: WorkerSide, number: int, memory: ShardMemory, lock: Locked, buffers: Sequence[Tensor]) -> ShardPort:
    """Return the port by what a push brings: replicas meet a centre or each other, or gradients are applied."""
    server = server_of(side.plan)
    if server.exchange is not None:
        return CentrePort(side, number, memory, lock, server.exchange)
    if server.pairing is not None:
        return PairwisePort(side, number, memory, lock, server.pairing)
    if server.gathers:
        return GatheringPort(side, number, memory, lock, server.rule, GatherBuffers(side.layout, buffers))
    return GradientPort(side, number, memory, lock, server.rule)


def version_shapes(
    method: Server, layout: Layout, named: Mapping[str, nn.Parameter], optimizer: Optimizer, tables: Sequence[str]
) -> list[VersionShape]:
    """Return the shape of a version of each shard."""
    shapes = []
    for shard in layout.shards:
        mine = [named[span.name] for span in shard.parameters]
        stepping = optimizer_over(optimizer, {p: p for p in mine}) if method.traits.optimizer_at_server else None
        shapes.append(version_shape(shard, layout.dtype, mine, stepping, method.exchange or method.rule, tables))
    return shapes


def put_version_0(
    memories: Sequence[ShardMemory],
    layout: Layout,
    module: nn.Module,
    method: Server,
    remembered: Mapping[Tensor, dict[str, object]],
) -> None:
    """Write what every worker starts from into every version of every shard, with the optimizer's earlier state."""
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    for shard, memory in zip(layout.shards, memories, strict=True):
        parameters, buffers = [named[p.name] for p in shard.parameters], [named[p.name] for p in shard.buffers]
        for version in memory.versions:
            version.start(parameters, [b.to(layout.dtype) for b in buffers], method.exchange or method.rule)
            for number, parameter in enumerate(parameters if version.shape.remembers else ()):
                if parameter in remembered:
                    version.state.keep(number, remembered[parameter])


def restore(memory: ShardMemory, method: Server, saved: Sequence[WorkerState]) -> None:
    """Write the state of this shard at the checkpoint, one per replica, into every version."""
    if method.pairing is not None:
        flats = [state.tensors["values"] for state in saved]
        for number, version in enumerate(memory.versions):
            version.values.copy_(method.pairing.resume(flats, number // 3, memory.machine.workers))
        return
    (state,) = saved
    for version in memory.versions:
        version.restore(state)


def gather_buffers(memories: Sequence[ShardMemory], layout: Layout) -> list[Tensor]:
    """Make private buffers for the gradients of a round."""
    slots = sum(memory.machine.slots for memory in memories)
    return [torch.zeros(Payload.length(layout), dtype=layout.dtype) for _ in range(slots)]
