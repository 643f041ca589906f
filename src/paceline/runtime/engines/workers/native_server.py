"""A server as generated code sees it: the machines, the memory and the locks of an arena, by their addresses.

Desk, Shard, VersionSlots      one update of a call, in generated code
─────────────────────────      ──────────────────────────────────────
DoubleBuffer        ◀───────▶  integers: a lease, a version, a slot; one store makes a change valid
ShardVersion        ◀───────▶  parameters and the optimizer's state, version by version
RecordLock          ────────▶  the same locks of the kernel
TraceRing           ◀────────  a row of the gradient, and one of each push before its commit
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
from torch import Tensor

from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.gates import Asynchronous, StaleSynchronous
from paceline.kernels.exchange import places_of
from paceline.kernels.serve import OPEN, SPAN, DeskInMemory, Integers, Served, ShardInMemory, addresses
from paceline.kernels.served_steps import ServedRule, ServedStep
from paceline.runtime.engines.servers.shard_memory import ShardMemory
from paceline.runtime.engines.workers.arena import DESK_LOCK, Arena
from paceline.runtime.links import futex
from paceline.runtime.links.double_buffer import DoubleBuffer
from paceline.runtime.links.waiting import LONGEST_SLEEP, SPIN_SECONDS, Waiter
from paceline.runtime.runs.trace import TraceRing
from paceline.training.gradients.native_versions import remembers
from paceline.training.parameters.layout import ShardLayout


class NativeServer:
    """One worker's access to the server of a run, as a call of generated code has it."""

    def __init__(
        self,
        arena: Arena,
        worker: int,
        waiter: Waiter,
        spans: Sequence[np.ndarray],
        cancelled: memoryview,
        in_place: bool,
    ) -> None:
        """Collect the addresses; `in_place` where there is one version, into which all workers write."""
        assert arena.desk is not None
        ring = arena.traces[worker]
        sent, drained, rows = map(futex.address_of, ring.memory)
        rooms = [[shard.newest] if in_place else shard.versions for shard in arena.shards]
        versions = [addresses([version.raw for version in shard]) for shard in rooms]
        self.shards = (ShardInMemory * len(arena.shards))(
            *map(shard_in_memory, range(len(spans)), arena.shards, versions, spans)
        )
        doorbells = np.array([doorbell.address for doorbell in arena.doorbells], np.int64)
        self.served = Served(
            shards=ctypes.addressof(self.shards),
            desk=desk_in_memory(arena.desk.desk, arena.desk.integers),
            doorbells=doorbells.ctypes.data,
            sent=sent,
            taken=drained,
            rows=rows,
            cancelled=futex.address_of(cancelled),
            count=len(self.shards),
            worker=worker,
            workers=arena.shape.workers,
            locks=arena.locks.descriptor,
            room=TraceRing.ROWS,
            spin=waiter.spin.nanoseconds,
            shortest=int(SPIN_SECONDS * 1e9),
            longest=int(LONGEST_SLEEP * 1e9),
            deadline=int(waiter.deadline * 1e9),
        )
        self._alive = (versions, doorbells, spans)  # the structures have only their addresses


def spans_of(
    layout: ShardLayout,
    memory: ShardMemory,
    step: ServedStep | None,
    rule: ServedRule,
    gradients: Mapping[str, Tensor],
    padded: Tensor,
    groups: Mapping[str, int],
) -> np.ndarray | None:
    """Return where each parameter of a shard lies in its versions and in padded memory; None where that is not known.

    Args:
        layout: of the shard.
        memory: its versions.
        step: the optimizer's; None where each worker has a memory of its own.
        rule: the server's.
        gradients: by the names of parameters, as views of `padded`.
        padded: where generated code leaves a gradient.
        groups: the optimizer's parameter group of each parameter.
    """
    places = places_of(gradients, padded, {span.name: span.start for span in layout.parameters})
    version = memory.versions[0]
    if places is None or version.shape.tables or not remembers(version.shape, step, rule):
        return None
    spans = np.zeros(len(places), SPAN)

    def at(tensors: Iterable[Tensor]) -> list[int]:
        return [tensor.data_ptr() - version.raw.data_ptr() for tensor in tensors]

    spans["value"], spans["present"] = at(version.parameters), at(version.state.present)
    for number, name in enumerate(step.states if step is not None else ()):
        spans["state"][:, number] = at(views[name] for views in version.state.views)
    if step is not None and step.counts:
        spans["count"] = at(views["step"] for views in version.state.views)
    if rule.memory is not None:
        spans["memory"] = at(views[rule.memory] for views in version.memory)
    spans["place"] = places["from"]
    for name in ("rows", "width", "stride"):
        spans[name] = places[name]
    spans["group"] = [groups[span.name] for span in layout.parameters]
    return spans


def bound_of(desk: Desk) -> int | None:
    """Return the bound of the desk's gate, or `OPEN`; None where generated code does not know the gate."""
    if type(desk.gate) is Asynchronous:
        return OPEN
    return desk.gate.bound if type(desk.gate) is StaleSynchronous else None


def shard_in_memory(number: int, memory: ShardMemory, versions: np.ndarray, spans: np.ndarray) -> ShardInMemory:
    return ShardInMemory(
        integers=_integers(memory.integers, memory.machine.ints + memory.slots.ints),
        versions=versions.ctypes.data,
        spans=spans.ctypes.data,
        parameters=len(spans),
        lock=number + 1,
        bytes=2 * memory.versions[0].values.nbytes,
        slots=memory.machine.ints,
    )


def desk_in_memory(desk: Desk, integers: object) -> DeskInMemory:
    (lease, gate), bound = desk.places, bound_of(desk)
    assert bound is not None
    return DeskInMemory(
        integers=_integers(integers, desk.ints),
        lock=DESK_LOCK,
        batches=desk.batches,
        lease=lease,
        gate=gate,
        bound=bound,
    )


def _integers(double_buffer: object, count: int) -> Integers:
    flip, *copies = cast(DoubleBuffer, double_buffer).addresses
    integers = Integers(flip=flip, count=count)
    integers.copies[:] = copies
    return integers
