"""The worker's side of checkpoints: when it writes its state into its buffer."""

from __future__ import annotations

from collections.abc import Callable

from paceline.runtime.engines.workers.worker_context import REQUESTED, TAKEN, WorkerContext
from paceline.training.parameters.worker_state import WorkerState


class StateWriter:
    """Writes one worker's state into its buffer, when a checkpoint is due."""

    def __init__(self, runner: WorkerContext) -> None:
        self.runner, self.resume_point = runner, runner.resume_point
        self.state_buffer = self.resume_point.state_buffer
        self.checkpoints, self.last = runner.shared.checkpoints, runner.agenda.updates
        #: This worker's state in the checkpoint that the run was resumed from, if there is one.
        self.found = self.state_buffer.newest if self.state_buffer is not None else None

    def in_step(self, before: int, done: int, worker_state: Callable[[], WorkerState]) -> None:
        """Write the state between two updates of a plan without a server, if a checkpoint is due there.

        This worker has made all updates below `done`; at the last call it had made those below `before`.
        """
        if self.state_buffer is None:
            return
        requested = self.checkpoints[REQUESTED]
        every = self.resume_point.checkpoint_every
        due = done // every * every if every else 0
        if due <= before:
            due = requested
        if self.resume_point.at_end and done >= self.last:
            due = self.last
        elif not before < due <= done or due >= self.last:
            return
        slot = self.state_buffer.next
        # The parent may still need the older state: another worker may not have written its part of that checkpoint.
        if slot.tag > self.checkpoints[TAKEN]:
            self.runner.waiter.until(lambda: self.checkpoints[TAKEN] >= slot.tag, lambda: "the parent", rung=False)
        slot.write(due, worker_state() | self._owed())
        self._notify()

    def server_optimizer(self, version: int, worker_state: Callable[[], WorkerState]) -> None:
        """Write the state under the shard's lock, before the commit that gives this worker a version.

        The state belongs to a checkpoint if the shard says there that the worker holds this version.
        """
        if self.state_buffer is not None:
            self.state_buffer.next.write(version, worker_state())

    def leave(self, updates: int, state: WorkerState) -> None:
        """Write a state for a checkpoint after so many updates, between two batches."""
        assert self.state_buffer is not None
        self.state_buffer.next.write(updates, state)
        self._notify()

    def finished(self, before: int, updates: int) -> None:
        """Notify the parent if a checkpoint of a plan with a server is due between these two numbers of updates."""
        every = self.resume_point.checkpoint_every
        if self.state_buffer is not None and every and before // every < updates // every:
            self._notify()

    def _notify(self) -> None:
        assert self.resume_point.notify is not None
        self.resume_point.notify()

    def _owed(self) -> WorkerState:
        encoder = self.runner.encoder
        return encoder.state() if encoder is not None else WorkerState()
