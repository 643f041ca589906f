"""Native pushes: a worker at a server computes batch after batch in one call of generated code.

    the worker's program             NativePushes                      generated code
    ────────────────────             ────────────                      ──────────────
    compute this lease  ───────────▶ until something unusual
                                     happens, and for 20 ms ─────────▶ gradient, push with pull, finish and lease, ...
    continue with that one  ◀─────── module and ports look at
                                     the slots that were made last ◀── rows of the trace, versions, leases

Unusual is whatever is not "pushed, finished, and here is the next batch": a gate that is shut, a batch that was lost
with its worker, a snapshot or a checkpoint that is due, the last batches, another epoch. Generated code stops before it
changes anything there, and the machines in Python answer.

Under Hogwild all workers write into one memory, and each has an optimizer of its own, whose memory generated code
changes in place: such calls begin after a first update in Python, when the optimizer has something to remember.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns as now
from typing import cast

import numpy as np
import torch
from torch import Tensor

from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.gates import Asynchronous, StaleSynchronous
from paceline.algorithms.server.messages import Lease
from paceline.errors import NotFinite
from paceline.kernels.exchange import Ended, places_of
from paceline.kernels.one_pass import ServedRule, ServedStep
from paceline.kernels.serve import OPEN, SPAN, BatchStage, DeskInMemory, Integers, Served, ShardInMemory, addresses
from paceline.plans.plan import server_of
from paceline.runtime.engines.servers.gradient import GradientPort
from paceline.runtime.engines.servers.ports import ServerPort
from paceline.runtime.engines.servers.shard_memory import ShardMemory
from paceline.runtime.engines.workers.arena import DESK_LOCK, Arena, DoubleBuffer
from paceline.runtime.engines.workers.methods.runner import GradientRequest, PlanRunner
from paceline.runtime.engines.workers.worker_context import norm
from paceline.runtime.links import waiting
from paceline.runtime.links.membership import RecordLock
from paceline.runtime.links.waiting import LONGEST_SLEEP, SPIN_SECONDS, Cancelled, Waiter
from paceline.runtime.runs.trace import TraceRing
from paceline.training.gradients.fused_replica import FusedGradients, ServedNetwork
from paceline.training.gradients.native_step import ScheduledSettings, remembers
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import ShardLayout, trainable

NANOSECONDS = 20_000_000  # of a call: between two calls, the parent is asked to read a trace that fills up
AHEAD, MOST = 64, 4096  # updates whose settings generated code has ahead, at least and at most


def native_pushes(
    runner: PlanRunner, arena: Arena, ports: Sequence[ServerPort], desk: RecordLock
) -> NativePushes | None:
    """Return what makes the updates of a worker at a server; None where Python has to make every update.

    `desk` is the desk's lock, as this worker takes it.
    """
    job, method, reader, agenda = runner.job, server_of(runner.plan), runner.learner.reader, runner.agenda
    gradients = runner.replica.gradients
    in_place = not method.traits.versioned
    if not in_place and (method.traits.gathers or not method.traits.optimizer_at_server):
        return None
    if in_place and runner.state_writer.state_buffer is not None:
        return None  # a checkpoint takes each worker's own optimizer as it was at the last push
    if job.on_nan == "skip" or job.accumulate_grad_batches > 1 or agenda.parts > 1 or runner.replica.moving:
        return None
    if reader is None or runner.plan.codec is not None or not isinstance(gradients, FusedGradients):
        return None
    assert arena.desk is not None
    if bound_of(arena.desk.desk) is None:
        return None
    network = gradients.served(runner.replica, reader.source, runner.optimizer, method.rule, in_place)
    if network is None:
        return None
    names = {id(p): name for name, p in runner.replica.module.named_parameters()}
    groups = {names[id(p)]: n for n, group in enumerate(runner.optimizer.param_groups) for p in group["params"]}
    step, compiled = None if in_place else network.step, network.made
    spans = [
        spans_of(layout, memory, step, network.rule, compiled.gradients, compiled.memory["gradients"], groups)
        for layout, memory in zip(runner.layout.shards, arena.shards, strict=True)
    ]
    present_spans = [span for span in spans if span is not None]
    return (
        NativePushes(runner, arena, ports, desk, network, present_spans, in_place)
        if len(present_spans) == len(spans)
        else None
    )


class NativePushes:
    """Makes the updates of one worker at a server, as many as possible in one call."""

    def __init__(
        self,
        runner: PlanRunner,
        arena: Arena,
        ports: Sequence[ServerPort],
        desk: RecordLock,
        network: ServedNetwork,
        spans: Sequence[np.ndarray],
        in_place: bool,
    ) -> None:
        assert runner.learner.reader is not None
        self.runner, self.network, self.order = runner, network, runner.learner.reader.order
        #: To shards with versions: none under Hogwild.
        self.ports = [port for port in ports if isinstance(port, GradientPort)]
        self.locks = [desk, *(port.lock for port in self.ports)]
        #: Of the batch in hand, where generated code has left it before every shard had its gradient.
        self.gradients: list[Tensor | None] = []
        #: Whether the gradient of that batch is computed, and perhaps at every shard already.
        self.computed = False
        self._memory = network.made.memory["gradients"][: network.made.plan.sizes["weights"]]
        self._names, self._settle = list(trainable(runner.replica.module)), ports[0].finalize
        self.settings = ScheduledSettings(runner.optimizer, runner.job.lr_scheduler, network.step, network.constants)
        #: The settings that generated code has, and the newest update when it was told them.
        self._told, self._newest = np.zeros(0), 0
        self.native = NativeServer(arena, runner.number, runner.waiter, spans, runner.shared.cancelled, in_place)
        self.remembered = OwnState(runner, spans[0], network.step) if in_place else None
        for shard in self.native.shards:
            shard.base = -1  # of what has no versions
        self.call, self._alive = network.call(runner.job.seed, np.frombuffer(runner.shared.doing, np.int64))
        served = self.native.served
        served.clipping = ctypes.addressof(network.clipping) if network.clipping is not None else None
        served.run, served.finite = network.address, runner.job.on_nan == "stop"
        writer, every = runner.state_writer, runner.resume_point.checkpoint_every
        served.snapshots = runner.host.snapshots_every
        served.checkpoints = every if every and writer.state_buffer is not None else 0

    def make(self, lease: Lease) -> Lease | None:
        """Make updates from this lease on, and return the one that the worker has then; None if it came no further.

        A batch that was leased before may be at a shard already, which Python finds out.
        """
        served, agenda, self.gradients = self.native.served, self.runner.agenda, []
        if lease.again or (self.remembered is not None and not self.remembered.find()) or not self._notify(lease.batch):
            return None
        epoch = lease.batch // agenda.updates_per_epoch
        served.first = epoch * agenda.updates_per_epoch
        served.last = min(served.first + agenda.updates_per_epoch, agenda.updates)
        served.batch, served.stage, served.made, served.ended = lease.batch, BatchStage.COMPUTE, 0, Ended.MADE
        served.waited, self.runner.waited = self.runner.waited, 0
        for shard, port in zip(self.native.shards, self.ports, strict=False):
            shard.base, shard.own = port.base, -1
        served.until = now() + NANOSECONDS
        self.network.make(self.call, served, self.order.span(epoch, 0, agenda.samples), agenda.batch_size)
        self._end()
        if served.stage == BatchStage.PUSH:
            self.gradients = self._settled()
        if not served.made and not self.gradients:
            return None
        self.runner.meter.after_step(partial(norm, [self._memory]), served.batch, self._rate())
        self.computed = served.stage != BatchStage.COMPUTE
        return Lease(served.batch, again=False, pushed=served.pushed if self.computed else 0)

    def _notify(self, batch: int) -> bool:
        """Tell generated code the settings of the next updates; False where it has no text for the first of them."""
        served, settings = self.native.served, self.settings
        counts = [batch] if self.remembered is not None else [shard.made for shard in self.native.shards]
        first, newest = min(counts), max(counts)
        # A schedule may refuse to go further than the run.
        last = min(newest + min(MOST, max(AHEAD, 2 * (newest - self._newest))), self.runner.agenda.updates)
        self._newest, self._told = newest, settings.after(range(first, first + 1 if settings.fixed else last))
        served.settings, served.since, served.told = self._told.ctypes.data, first, first + len(self._told)
        served.pace = 0 if settings.fixed else self._told[:1].size
        return served.told > newest or (settings.fixed and len(self._told) == 1)

    def _rate(self) -> float:
        """Return the learning rate of the last update, which every text reads first."""
        served = self.native.served
        update = self.native.shards[0].base - 1 if self.remembered is None else served.batch
        return float(self._told[min(max(0, update - served.since), len(self._told) - 1), 0, 0])

    def _settled(self) -> list[Tensor | None]:
        """Return the gradients of the batch in hand, for Python to push to the shards that do not have it yet."""
        served, views = self.native.served, self.network.made.gradients
        gradients: list[Tensor | None] = [views[name].clone() for name in self._names]
        samples = sum(chunk.samples for chunk in self.runner.agenda.task(served.batch))
        return self._settle(served.batch, GradientSum(gradients, [], served.loss, 1.0, samples))

    def _end(self) -> None:
        """Let Python continue from where generated code is."""
        runner, served = self.runner, self.native.served
        runner.trace.catch_up()
        runner.waited = served.waited
        for shard, port in zip(self.native.shards, self.ports, strict=False):
            port.base = shard.base
            if shard.own >= 0:
                port.store.bind_to_slot(shard.own)
        if runner.trace.crowded and runner.resume_point.notify is not None:
            runner.resume_point.notify()
        if served.ended not in (Ended.MADE, Ended.UNTOLD):
            self._fail()

    def _fail(self) -> None:
        """Say why generated code could not continue."""
        runner, served = self.runner, self.native.served
        chunks = runner.agenda.task(served.batch)
        runner.doing(served.batch)
        runner.due = GradientRequest(served.batch, chunks, self.native.shards[0].base)
        if served.ended == Ended.CANCELLED:
            raise Cancelled
        if served.ended == Ended.TOO_LATE:
            lock = self.locks[served.lock]
            assert isinstance(lock, RecordLock)
            raise runner.waiter.too_long(lock.holder())
        raise NotFinite(served.loss, served.batch, [n for c in chunks for n in self.order.indices(c).tolist()])


class OwnState:
    """What a worker's own optimizer remembers of each parameter, for generated code to change in place."""

    def __init__(self, runner: PlanRunner, spans: np.ndarray, step: ServedStep) -> None:
        named = dict(runner.replica.module.named_parameters())
        self.parameters = [named[span.name] for span in runner.layout.shards[0].parameters]
        self.state, self.spans, self.step = runner.optimizer.state, spans, step

    def find(self) -> bool:
        """Note where it lies, and return whether there is all of it yet."""
        for number, name in enumerate(self.step.states):
            if not self._find(name, None, self.spans["state"][:, number]):
                return False
        return not self.step.counts or self._find("step", torch.float32, self.spans["count"])

    def _find(self, name: str, dtype: torch.dtype | None, addresses: np.ndarray) -> bool:
        tensors = [self.state.get(parameter, {}).get(name) for parameter in self.parameters]
        pointers = [
            tensor.data_ptr() for tensor in tensors if tensor is not None and tensor.dtype is (dtype or tensor.dtype)
        ]
        if len(pointers) == len(tensors):
            addresses[:] = pointers
        return len(pointers) == len(tensors)


# A server as generated code sees it: the machines, the memory and the locks of an arena, by their addresses.
#
# Desk, Shard, VersionSlots      one update of a call, in generated code
# ─────────────────────────      ──────────────────────────────────────
# DoubleBuffer        ◀───────▶  integers: a lease, a version, a slot; one store makes a change valid
# ShardVersion        ◀───────▶  parameters and the optimizer's state, version by version
# RecordLock          ────────▶  the same locks of the kernel
# TraceRing           ◀────────  a row of the gradient, and one of each push before its commit


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
        sent, drained, rows = map(waiting.address_of, ring.memory)
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
            cancelled=waiting.address_of(cancelled),
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
