"""Legs of a worker at a server: batch after batch in one call of generated code.

    the worker's protocol            legs                              generated code
    ─────────────────────            ────                              ──────────────
    a batch is to be computed ─────▶ until something unusual
                                     happens, and for 20 ms ─────────▶ gradient, push with pull, finish and lease, ...
    continue with this batch  ◀───── module and ports look at
                                     the slots that were made last ◀── rows of the trace, versions, leases

Unusual is whatever is not "pushed, finished, and here is the next batch": a gate that is shut, a batch that was lost
with its worker, a snapshot or a checkpoint that is due, the last batches, another epoch. Generated code stops before it
changes anything there, and the machines in Python answer.

Under Hogwild all workers write into one memory, and each has an optimizer of its own, whose memory generated code
changes in place: legs begin after a first update in Python, when the optimizer has something to remember.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns as now
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.core.rules.plain import Plain
from paceline.engines.local.arena import Arena
from paceline.engines.local.methods.runner import GradientRequest, PlanRunner
from paceline.engines.local.native_server import NativeServer, bound_of, spans_of
from paceline.engines.servers import ServerPort
from paceline.engines.servers.gradient import GradientExchange
from paceline.engines.servers.port import ShardPort
from paceline.errors import NotFinite
from paceline.gradients.fused_replica import FusedGradients, ServedNetwork
from paceline.kernels.exchange import Ended
from paceline.kernels.serve import Stage
from paceline.kernels.served_steps import served_step
from paceline.links.locks import RecordLock
from paceline.links.waiting import Cancelled
from paceline.plans.methods.server import Hogwild, ParameterServer

if TYPE_CHECKING:
    from paceline.core.server.worker import Worker

NANOSECONDS = 20_000_000  # of a leg: between two legs, the parent is asked to read a trace that fills up


def server_legs(runner: PlanRunner, arena: Arena, ports: Sequence[ServerPort], desk: RecordLock) -> ServerLegs | None:
    """Return the legs of a worker at a server; None where Python has to make every update.

    `desk` is the desk's lock, as this worker takes it.
    """
    job, method, reader, agenda = runner.job, runner.plan.method, runner.learner.reader, runner.agenda
    gradients, (shape, *_) = runner.replica.gradients, (memory.versions[0].shape for memory in arena.shards)
    if not isinstance(method, ParameterServer | Hogwild) or not isinstance(method.rule, Plain) or any(shape.memory):
        return None
    in_place = isinstance(method, Hogwild)
    if in_place and runner.state_writer.state_buffer is not None:
        return None  # a checkpoint takes each worker's own optimizer as it was at the last push
    if job.gradient_clip_norm is not None or job.on_nan == "skip" or job.lr_scheduler is not None:
        return None
    if job.accumulate_grad_batches > 1 or agenda.parts > 1 or runner.replica.moving:
        return None
    if reader is None or runner.plan.codec is not None or not isinstance(gradients, FusedGradients):
        return None
    assert arena.desk is not None
    if bound_of(arena.desk.desk) is None or (step := served_step(runner.optimizer)) is None:
        return None
    network = gradients.served(runner.replica, reader.source, runner.optimizer, step, in_place)
    if network is None:
        return None
    names = {id(p): name for name, p in runner.replica.module.named_parameters()}
    groups = {names[id(p)]: n for n, group in enumerate(runner.optimizer.param_groups) for p in group["params"]}
    kept, made = None if in_place else step.state, network.made
    spans = [
        spans_of(layout, memory, kept, made.gradients, made.memory["gradients"], groups)
        for layout, memory in zip(runner.layout.shards, arena.shards, strict=True)
    ]
    known = [span for span in spans if span is not None]
    return ServerLegs(runner, arena, ports, desk, network, known, in_place) if len(known) == len(spans) else None


class ServerLegs:
    """Makes the updates of one worker at a server, a leg at a time."""

    def __init__(
        self, runner: PlanRunner, arena: Arena, ports: Sequence[ServerPort], desk: RecordLock,
        network: ServedNetwork, spans: Sequence[np.ndarray], in_place: bool,
    ) -> None:  # fmt: skip
        assert runner.learner.reader is not None
        self.runner, self.network, self.order = runner, network, runner.learner.reader.order
        #: To shards with versions: none under Hogwild.
        self.ports = [port for port in ports if isinstance(port, ShardPort)]
        self.locks = [desk, *(port.lock for port in self.ports)]
        settings = torch.tensor([network.step.row(g) for g in runner.optimizer.param_groups], dtype=torch.float64)
        doing = np.frombuffer(runner.shared.doing, np.int64)
        self._gradient = network.made.memory["gradients"][: network.made.plan.sizes["weights"]]
        self.native = NativeServer(
            arena, runner.number, runner.waiter, spans, settings, runner.shared.cancelled, in_place
        )
        self.remembered = OwnState(runner, spans[0], network.step.state) if in_place else None
        for shard in self.native.shards:
            shard.base = -1  # of what has no versions
        self.call, self._alive = network.call(runner.job.seed, doing)
        served = self.native.served
        served.run, served.finite = network.address, runner.job.on_nan == "stop"
        writer, every = runner.state_writer, runner.resume_point.checkpoint_every
        served.snapshots = runner.host.snapshots_every
        served.checkpoints = every if every and writer.state_buffer is not None else 0

    def make(self, worker: Worker) -> bool:
        """Make updates from the batch that the worker has leased on, and return whether any was made.

        A batch that was leased before may be at a shard already, which Python finds out.
        """
        served, agenda = self.native.served, self.runner.agenda
        if worker.again or (self.remembered is not None and not self.remembered.find()):
            return False
        epoch = worker.batch // agenda.updates_per_epoch
        served.first = epoch * agenda.updates_per_epoch
        served.last = min(served.first + agenda.updates_per_epoch, agenda.updates)
        served.batch, served.stage, served.made, served.ended = worker.batch, Stage.COMPUTE, 0, Ended.MADE
        served.waited, self.runner.waited = self.runner.waited, 0
        for shard, port in zip(self.native.shards, self.ports, strict=False):
            shard.base, shard.own = port.base, -1
        served.until = now() + NANOSECONDS
        self.network.make(self.call, served, self.order.span(epoch, 0, agenda.samples), agenda.batch_size)
        self._end()
        if served.made:
            self.runner.meter.after_step([self._gradient], served.batch)
            worker.continue_with(served.batch, served.stage == Stage.FINISH)
        return bool(served.made)

    def _end(self) -> None:
        """Let Python continue from where generated code is."""
        runner, served = self.runner, self.native.served
        runner.trace.catch_up()
        runner.waited = served.waited
        for shard, port in zip(self.native.shards, self.ports, strict=False):
            assert isinstance(port.exchange, GradientExchange)
            port.base = shard.base
            if shard.own >= 0:
                port.exchange.store.look(shard.own)
        if runner.trace.crowded and runner.resume_point.notify is not None:
            runner.resume_point.notify()
        if served.ended != Ended.MADE:
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

    def __init__(self, runner: PlanRunner, spans: np.ndarray, name: str | None) -> None:
        named = dict(runner.replica.module.named_parameters())
        self.parameters = [named[span.name] for span in runner.layout.shards[0].parameters]
        self.state, self.spans, self.name = runner.optimizer.state, spans, name

    def find(self) -> bool:
        """Note where it lies, and return whether there is any of it yet."""
        if self.name is None:
            return True
        kept = [self.state.get(parameter, {}).get(self.name) for parameter in self.parameters]
        found = [tensor.data_ptr() for tensor in kept if tensor is not None]
        if len(found) == len(kept):
            self.spans["state"] = found
        return len(found) == len(kept)
