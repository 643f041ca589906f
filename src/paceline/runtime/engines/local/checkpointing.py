"""The checkpoints of a local run: the parent takes them from memory that it shares with the workers.

Under a plan without a server each worker writes its state into its buffer after the same update, and continues; the
parent reads the buffers when all workers have. Under a plan with a server the parent holds every lock while it copies
the newest version of each shard and the integers; the workers' buffers hold their own state as of their last push.
"""

from __future__ import annotations

import contextlib
import time

from paceline.algorithms.server.checkpoint_cut import take_cut
from paceline.algorithms.server.version_slots import ReplicaSlots
from paceline.runtime.engines.checkpoint_manager import MARGIN, CheckpointManager
from paceline.runtime.engines.checkpoints import Checkpoint
from paceline.runtime.engines.servers.shard_memory import DeskMemory
from paceline.runtime.engines.workers.arena import DESK_LOCK, Arena
from paceline.runtime.engines.workers.state_buffers import StateBuffer
from paceline.runtime.engines.workers.worker_context import REQUESTED, TAKEN
from paceline.runtime.links.membership import RecordLock
from paceline.runtime.links.waiting import Waiter
from paceline.training.parameters.shard_version import ShardVersion
from paceline.training.parameters.worker_state import WorkerState, copied


class LocalCheckpoints:
    """Takes the checkpoints of one run, between two looks of the parent at its workers."""

    def __init__(self, manager: CheckpointManager, arena: Arena, waiter: Waiter) -> None:
        self.manager, self.setup, self.arena = manager, manager.setup, arena
        self.state_buffers = [StateBuffer() for _ in range(self.setup.plan.workers)]
        shards = range(len(arena.shards))
        self.locks = [RecordLock(arena.locks, number + 1, waiter, f"shard {number}") for number in shards]
        self.locks.append(RecordLock(arena.locks, DESK_LOCK, waiter, "the desk"))
        #: Grows when a worker has passed the requested update before it saw the request.
        self._margin = MARGIN
        if (start := manager.request.start) is not None:
            self._fill_buffers(start)

    def _fill_buffers(self, start: Checkpoint) -> None:
        """Give each worker the state that the worker of its number had, or that all had where all hold the same."""
        tag = start.cut.versions[0] if start.cut else start.updates
        # What a codec owes is each worker's own, also where everything else is the same.
        common = start.holders["worker.0"].without("owed") if self.setup.plan.traits.agrees else WorkerState()
        for number, state_buffer in enumerate(self.state_buffers):
            if f"worker.{number}" in start.holders:
                state_buffer.next.write(tag, common | start.holders[f"worker.{number}"])

    def take(self, finished: set[int]) -> Checkpoint | None:
        """Take a checkpoint, if one is due and the workers have written their states for it."""
        if self.arena.desk is not None:
            return self._take_at_server(self.arena.desk)
        # Read before the tags: a worker that is past an update by now has written its state for it, or never will.
        doing = list(self.arena.doing)
        checkpoint, requested = self._take_in_step(finished, doing), self.manager.requested
        if checkpoint is not None:
            self._margin = MARGIN
        elif requested:
            self._request_states(doing)
        return checkpoint

    def take_last(self, finished: set[int]) -> Checkpoint | None:
        """Take the checkpoint of a run that is done, from which it can continue with more epochs."""
        if self.arena.desk is not None:
            return self._cut(self.arena.desk)
        return self._take_in_step(finished, list(self.arena.doing))

    def _take_in_step(self, finished: set[int], doing: list[int]) -> Checkpoint | None:
        """Take a checkpoint after the newest update at which every worker has written its state."""
        arena, checkpoint = self.arena, None
        tags = [state_buffer.tags for state_buffer in self.state_buffers]
        for update in sorted({tag for mine in tags for tag in mine if tag > arena.checkpoints[TAKEN]}):
            missing = [worker for worker, mine in enumerate(tags) if update not in mine]
            if not missing:
                worker_states = [state_buffer.read(update) for state_buffer in self.state_buffers]
                holders = {f"worker.{n}": mine for n, mine in enumerate(worker_states) if mine is not None}
                checkpoint = self.manager.checkpoint(update, holders)
            elif not any(w in finished or doing[w] >= update or max(tags[w], default=0) > update for w in missing):
                break
            arena.checkpoints[TAKEN] = update  # taken, or skipped: a worker was already past this update
        return checkpoint

    def _request_states(self, doing: list[int]) -> None:
        """Let all workers write their states after the same later update, unless they have yet to do so."""
        arena, requested = self.arena, self.arena.checkpoints[REQUESTED]
        if requested <= arena.checkpoints[TAKEN] or min(doing) >= requested:
            arena.checkpoints[REQUESTED] = max(self.manager.last, *doing, *arena.reach) + self._margin
            self._margin *= 2  # a worker may pass that update before it sees the request; then a later one is tried

    def _take_at_server(self, desk: DeskMemory) -> Checkpoint | None:
        """Take a checkpoint of a plan with a server, if one is due before the end."""
        agenda, manager = self.setup.agenda, self.manager
        done = agenda.done_by(desk.finished)
        if not manager.due(done) or manager.writer.busy or done >= agenda.updates:
            return None
        return self._cut(desk)

    def _cut(self, desk: DeskMemory) -> Checkpoint:
        """Copy the state of a plan with a server, under all locks."""
        setup, shards = self.setup, self.arena.shards
        with contextlib.ExitStack() as stack:
            # All of them: no push may come between the copies of two shards.
            for lock in self.locks:
                stack.enter_context(lock)
            states = [shard.integers.current for shard in shards]
            cut = take_cut(desk.desk, desk.integers.current, shards[0].machine, states)
            at = time.perf_counter_ns()
            newest = [version for shard in shards for version in shard.all_newest]
            # Copied under the locks, written to the disk after them.
            copies = [ShardVersion(version.shape, copied(version.raw)) for version in newest]
            worker_states = [self._state_at_push(worker) for worker in range(len(self.state_buffers))]
        kind = "replica" if isinstance(shards[0].slots, ReplicaSlots) else "shard"
        holders = {f"{kind}.{number}": version.worker_state() for number, version in enumerate(copies)}
        holders |= {f"worker.{number}": mine for number, mine in enumerate(worker_states) if mine is not None}
        return self.manager.checkpoint(setup.agenda.done_by(cut.finished), holders, cut, at)

    def _state_at_push(self, worker: int) -> WorkerState | None:
        """Read the state that a worker had when it last pushed."""
        state_buffer, shard = self.state_buffers[worker], self.arena.shards[0]
        if not self.setup.plan.traits.versioned:
            return state_buffer.newest
        return state_buffer.read(shard.machine.base(shard.integers.current, worker))

    def close(self) -> None:
        self.manager.close()
        for state_buffer in self.state_buffers:
            state_buffer.close()
