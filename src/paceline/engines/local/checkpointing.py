"""The parent's side of checkpoints: when one is due, what it holds, and a thread that writes it.

Under a plan without a server each worker writes its state into its buffer after the same update, and continues; the
parent reads the buffers when all workers have. Under a plan with a server the parent holds every lock while it copies
the newest version of each shard and the integers; the workers' buffers hold their own state as of their last push.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
import warnings
from collections.abc import Callable

from torch import Tensor

from paceline.core.server.checkpoint_cut import take_cut
from paceline.core.server.version_slots import ReplicaSlots
from paceline.engines import checkpoints
from paceline.engines.checkpoints import Checkpoint, CheckpointRequest
from paceline.engines.servers.shard_memory import DeskMemory
from paceline.engines.setup import Setup
from paceline.engines.signals import Signals
from paceline.engines.workers.arena import DESK_LOCK, TAKEN, WANTED, Arena
from paceline.engines.workers.state_buffers import StateBuffer
from paceline.errors import CheckpointWarning, RunFolderError
from paceline.links.locks import RecordLock
from paceline.links.waiting import Waiter
from paceline.parameters.layout import trainable
from paceline.parameters.replicas import mean_of
from paceline.parameters.shard_version import ShardVersion
from paceline.parameters.worker_state import WorkerState, copied
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.splits.slicing import assembled

#: Seconds without an update after which a run that a signal is to end does so without a checkpoint.
PATIENCE = 30.0
NICE = 10  # of the thread that writes: workers are to keep their cores, and a checkpoint can wait
MARGIN = 2  # updates from the furthest worker to the update after which all write their state


class CheckpointCoordinator:
    """Takes the checkpoints of one run, between two looks of the parent at its workers."""

    def __init__(self, setup: Setup, arena: Arena, request: CheckpointRequest, waiter: Waiter) -> None:
        self.setup, self.arena, self.request = setup, arena, request
        self.state_buffers = [StateBuffer() for _ in range(setup.plan.workers)]
        shards = range(len(arena.shards))
        self.locks = [RecordLock(arena.locks, number + 1, waiter, f"shard {number}") for number in shards]
        self.locks.append(RecordLock(arena.locks, DESK_LOCK, waiter, "the desk"))
        #: The updates of the newest checkpoint, and when it was taken.
        self.last = request.start.updates if request.start else 0
        self.taken_at = time.monotonic()
        #: When the training began, less the nanoseconds that it took before the run was resumed.
        self.origin = 0
        #: What signals, and the clock, have requested.
        self.signals = Signals()
        #: Grows when a worker has passed the requested update before it saw the request.
        self.margin = MARGIN
        #: What the workers were doing when that last changed, or when the signal came that ends the run.
        self._moved: tuple[list[int], float] = ([], 0.0)
        self.writer = Writer(self._write)
        arena.control[TAKEN] = self.last
        if request.start is not None:
            self._fill_buffers(request.start)

    def _fill_buffers(self, start: Checkpoint) -> None:
        """Give each worker the state that the worker of its number had, or that all had where all hold the same."""
        tag = start.cut.versions[0] if start.cut else start.updates
        common = start.holders["worker.0"].without("owed") if self.setup.plan.traits.agrees else WorkerState()
        for number, state_buffer in enumerate(self.state_buffers):
            if f"worker.{number}" in start.holders:
                state_buffer.next.write(tag, common | start.holders[f"worker.{number}"])

    # --- when ------------------------------------------------------------------------------------------------------

    def take(self, finished: set[int]) -> Checkpoint | None:
        """Take a checkpoint, if one is due and the workers have written their states for it."""
        self.writer.warn()
        seconds = self.request.interval.seconds
        if seconds and time.monotonic() - self.taken_at >= seconds:
            self.signals.requested = True
        found = self._take_in_step(finished) if self.arena.desk is None else self._take_at_server(self.arena.desk)
        if found is not None:
            self.signals.requested, self.margin = False, MARGIN
            self.last, self.taken_at = found.updates, time.monotonic()
        return found

    def take_last(self, finished: set[int]) -> Checkpoint | None:
        """Take the checkpoint of a run that is done, from which it can continue with more epochs."""
        if self.arena.desk is not None:
            return self._cut(self.arena.desk)
        return self._take_in_step(finished)

    @property
    def stuck(self) -> float:
        """Seconds without an update of a run that a signal is to end, if it should not be waited for any longer."""
        doing, now = list(self.arena.doing), time.monotonic()
        if not self.signals.ending or doing != self._moved[0]:
            self._moved = doing, now
        still = now - self._moved[1]
        return still if still > PATIENCE else 0.0

    def _take_in_step(self, finished: set[int]) -> Checkpoint | None:
        """Take a checkpoint after the newest update at which every worker has written its state."""
        arena, found = self.arena, None
        # Read before the tags: a worker that is past an update by now has written its state for it, or never will.
        doing = list(arena.doing)
        tags = [state_buffer.tags for state_buffer in self.state_buffers]
        for update in sorted({tag for mine in tags for tag in mine if tag > arena.control[TAKEN]}):
            missing = [worker for worker, mine in enumerate(tags) if update not in mine]
            if not missing:
                kept = [state_buffer.read(update) for state_buffer in self.state_buffers]
                holders = {f"worker.{n}": mine for n, mine in enumerate(kept) if mine is not None}
                found = Checkpoint(update, time.perf_counter_ns() - self.origin, self.request.lives, None, holders)
            elif not any(w in finished or doing[w] >= update or max(tags[w], default=0) > update for w in missing):
                break
            arena.control[TAKEN] = update  # taken, or skipped: a worker was already past this update
        wanted = arena.control[WANTED]
        if found is None and self.signals.requested and (wanted <= arena.control[TAKEN] or min(doing) >= wanted):
            arena.control[WANTED] = max(self.last, *doing, *arena.reach) + self.margin
            self.margin *= 2  # a worker may pass that update before it sees the request; then a later one is tried
        return found

    def _take_at_server(self, desk: DeskMemory) -> Checkpoint | None:
        """Take a checkpoint of a plan with a server, if one is due before the end."""
        setup, every = self.setup, self.request.interval.updates
        done = setup.agenda.done_by(desk.finished)
        due = self.signals.requested or (every and done // every > self.last // every)
        if not due or self.writer.busy or done >= setup.agenda.updates:
            return None
        return self._cut(desk)

    def _cut(self, desk: DeskMemory) -> Checkpoint:
        """Copy the state of a plan with a server, under all locks."""
        setup, shards = self.setup, self.arena.shards
        with contextlib.ExitStack() as held:
            for lock in self.locks:
                held.enter_context(lock)
            states = [shard.integers.current for shard in shards]
            cut = take_cut(desk.desk, desk.integers.current, shards[0].machine, states)
            at = time.perf_counter_ns() - self.origin
            newest = [version for shard in shards for version in shard.all_newest]
            copies = [ShardVersion(version.shape, copied(version.raw)) for version in newest]
            own = [self._state_at_push(worker) for worker in range(len(self.state_buffers))]
        kind = "replica" if isinstance(shards[0].slots, ReplicaSlots) else "shard"
        holders = {f"{kind}.{number}": version.worker_state() for number, version in enumerate(copies)}
        holders |= {f"worker.{number}": mine for number, mine in enumerate(own) if mine is not None}
        return Checkpoint(setup.agenda.done_by(cut.finished), at, self.request.lives, cut, holders)

    def _state_at_push(self, worker: int) -> WorkerState | None:
        """Read the state that a worker had when it last pushed."""
        state_buffer, shard = self.state_buffers[worker], self.arena.shards[0]
        if not self.setup.plan.traits.versioned:
            return state_buffer.newest
        return state_buffer.read(shard.machine.base(shard.integers.current, worker))

    # --- writing ---------------------------------------------------------------------------------------------------

    def _write(self, checkpoint: Checkpoint, sync_trace: Callable[[], None]) -> None:
        sync_trace()
        checkpoints.write(self.request.run, checkpoint, model_of(self.setup, checkpoint))

    def close(self) -> None:
        self.writer.close()
        for state_buffer in self.state_buffers:
            state_buffer.close()


class Writer:
    """A thread that writes checkpoints. If the disk is too slow, it leaves out all but the newest one."""

    def __init__(self, write: Callable[[Checkpoint, Callable[[], None]], None]) -> None:
        self._write, self._changed = write, threading.Condition()
        self._next: tuple[Checkpoint, Callable[[], None]] | None = None
        self._busy = self._end = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-checkpoints")
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written or waits to be."""
        return self._busy or self._next is not None

    def offer(self, checkpoint: Checkpoint, sync_trace: Callable[[], None]) -> None:
        """Hand over a checkpoint; one that still waits is replaced by it."""
        with self._changed:
            self._next = (checkpoint, sync_trace)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until the last checkpoint is written; RunFolderError if it could not be."""
        with self._changed:
            self._changed.wait_for(lambda: not self.busy)
        if self._error is not None:
            raise RunFolderError(f"the last checkpoint could not be written: {self._error}") from self._error

    def warn(self) -> None:
        """Warn of a checkpoint that could not be written. The run goes on, and the last good one stays."""
        error, self._error = self._error, None
        if error is not None:
            warnings.warn(
                f"a checkpoint could not be written ({type(error).__name__}: {error}); the run goes on, and the last "
                "good checkpoint is kept",
                CheckpointWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        with self._changed:
            self._end = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        """Write the newest checkpoint on offer, until the writer is closed."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        for module in ("torch.distributed.checkpoint", "safetensors.torch"):
            importlib.import_module(module)  # takes half a second, in which the training goes on
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._end)
                if self._next is None:
                    return
                given, self._next, self._busy = self._next, None, True
            try:
                self._write(*given)
                self._error = None
            except Exception as error:
                self._error = error
            with self._changed:
                self._busy = False
                self._changed.notify_all()


def model_of(setup: Setup, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Make a `state_dict` of the model with the parameters and buffers of a checkpoint."""
    module, found, seen = setup.module, dict[str, Tensor](), set[int]()
    tensors = dict((*module.named_parameters(), *module.named_buffers()))
    made_of = [*trainable(module).values(), *(tensors[name] for name in setup.probe.moving)]
    made = {id(old): new for old, new in zip(made_of, result_of(setup, checkpoint), strict=True)}
    for name, old in module.state_dict(keep_vars=True).items():
        new = made.get(id(old), old.detach())
        if not old.is_floating_point() and new.is_floating_point():
            new = new.round()
        new = new.to("cpu", old.dtype)
        found[name] = new.clone() if id(old) in seen else new  # tied weights have two names
        seen.add(id(old))
    return found


def result_of(setup: Setup, checkpoint: Checkpoint) -> list[Tensor]:
    """Return the trainable parameters, then the moving buffers, of the model at this checkpoint."""
    plan = setup.plan
    if setup.blueprint is not None:
        stored, shapes, workers = setup.blueprint.stored, setup.blueprint.shapes, checkpoint.workers()
        first = workers[: len(workers) // setup.pipeline.spread.data] if setup.pipeline is not None else workers
        named = {name: [w.tensors[name] for w in first if name in w.tensors] for name in setup.names}
        return [assembled(named[name], stored.get(name), shapes.get(name, ())) for name in setup.names]
    if setup.split is not None:
        parts = [mine.many("values") for mine in checkpoint.workers()[: setup.split.program.workers]]
        stored, shapes = setup.split.stored, setup.split.shapes
        return [assembled([m[n] for m in parts], stored.get(name), shapes[name]) for n, name in enumerate(setup.names)]
    if checkpoint.cut is None:
        workers = checkpoint.workers()[: plan.results]
        return mean_of([_result(setup, mine) for mine in workers])
    flats = [[holder.tensors["values"]] for name, holder in checkpoint.holders.items() if name.startswith("replica")]
    if flats:
        return mean_of([setup.layout.collect(flat, setup.names) for flat in flats])
    values = [checkpoint.holders[f"shard.{n}"].tensors["values"] for n in range(plan.shards)]
    return setup.layout.collect(values, setup.names)


def _result(setup: Setup, mine: WorkerState) -> list[Tensor]:
    values, method = mine.many("values"), setup.plan.method
    if not isinstance(method, LocalSteps | Gossip):
        return values
    count = len(trainable(setup.module))
    memories = mine.remembered("rule", count)
    return [*(method.averaging.result(v, m) for v, m in zip(values, memories, strict=False)), *values[count:]]
