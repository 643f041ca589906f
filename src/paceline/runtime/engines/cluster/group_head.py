"""The head's side of a plan without servers: it decides who belongs to the group, and collects the result."""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter_ns as now
from typing import Protocol

import torch
from torch import Tensor

from paceline.algorithms.cluster import group
from paceline.algorithms.cluster.group import Accuse, Excluded, Formed, Output, Send
from paceline.errors import DeathWarning, RunFailed
from paceline.runtime.engines.cluster.checkpointing import GroupCheckpoints
from paceline.runtime.engines.cluster.control import (
    Asked,
    Deliver,
    Ended,
    Finished,
    Message,
    Regrouped,
    Reported,
    Result,
    Rows,
    Snapshot,
    State,
    Wanted,
    state_of,
)
from paceline.runtime.engines.cluster.remote_workers import RemoteWorkers
from paceline.runtime.engines.workers.messages import Failed
from paceline.runtime.engines.workers.snapshot_file import SnapshotFile
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.waiting import DELAYS
from paceline.runtime.runs.events import Event, EventKind, ProcessKind
from paceline.runtime.runs.trace import Kind, Row
from paceline.training.parameters.replicas import mean_of


class ToRank(Protocol):
    """Sends a message to the agent of a rank."""

    def __call__(self, rank: int, message: Message, content: Sequence[Buffer] = ()) -> None: ...


class GroupHead:
    """The head's side of a run whose ranks form a group."""

    def __init__(
        self,
        workers: RemoteWorkers,
        to_rank: ToRank,
        patience: float,
        snapshots: SnapshotFile | None,
        note: Callable[[Event], None],
        delay: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`delay` returns by how many seconds processes have run too late of late, which ranks are given on top."""
        self._patience, self._delay = patience, delay
        self.workers, self.to_rank, self.snapshots, self.note = workers, to_rank, snapshots, note
        self.setup = setup = workers.setup
        self.checkpoints = GroupCheckpoints(workers.manager) if workers.manager is not None else None
        self.machine = group.Head({0, *workers.nodes}, patience, gives=setup.plan.results == 1)
        self.addresses: dict[int, Address] = {}
        #: Results that were delivered: the flat values of a worker.
        self.results: dict[int, Tensor] = {}
        self.wanted: tuple[int, ...] = ()
        #: The ranks that no node has had: a group begins with all of them.
        self.absent = frozenset[int]()

    @property
    def done(self) -> bool:
        """Whether every result that is wanted was delivered."""
        return bool(self.wanted) and all(rank in self.results for rank in self.wanted)

    def values(self) -> list[Tensor]:
        """Return the trainable parameters in the module's order, then the moving buffers."""
        layout, names = self.setup.layout, self.setup.names
        return mean_of([layout.collect([self.results[rank]], names) for rank in self.wanted])

    # --- what the head hears ---

    def handle_message(self, rank: int, message: Message, content: memoryview) -> None:
        """Take a message of the agent of a rank."""
        at = time.monotonic()
        if isinstance(message, Reported):
            self.addresses[rank] = message.address
            self._act(self.machine.report(at, rank, message.report))
        elif isinstance(message, Accuse):
            self._act(self.machine.accuse(at, rank, message))
        elif isinstance(message, Rows):
            self.workers.add_rows(rank, message.doing, content)
        elif isinstance(message, Snapshot) and self.snapshots is not None:
            self.snapshots.put(message.updates, content)
        elif isinstance(message, Finished):
            self.workers.finished[rank] = message
            self._want()
        elif isinstance(message, Result):
            self.results[rank] = torch.frombuffer(bytearray(content), dtype=self.setup.layout.dtype)
        elif isinstance(message, State) and self.checkpoints is not None:
            self.checkpoints.put(rank, message.update, state_of(message, content))
        elif isinstance(message, Asked):
            self._asked(rank, message.signal)
        elif isinstance(message, Ended):
            self.lost(rank, f"died ({message.how})")
        elif isinstance(message, Failed) and rank in self.machine.alive:
            victims = sorted(self.machine.alive - {rank} - self.workers.finished.keys())
            raise self.workers.diagnosis.failed(rank, message.report, victims)

    def lost(self, rank: int, why: str) -> None:
        """A worker has died, or its node cannot be reached."""
        self._act(self.machine.gone(time.monotonic(), rank, why))

    def poll(self) -> None:
        """Do what is due; called several times a second."""
        self.machine.patience = self._patience + DELAYS * self._delay()
        self._act(self.machine.tick(time.monotonic()))
        if self.checkpoints is not None and self.workers.training:
            due = self.checkpoints.take(self.machine.alive, self.workers.doing)
            if due is not None:
                self.checkpoints.manager.save(due, self.workers.observer)

    def _asked(self, rank: int, number: int) -> None:
        """A node was sent a signal: Ctrl-C stops the run, any other ends that node alone."""
        if number != signal.SIGINT:
            self.lost(rank, f"was asked to end ({signal.Signals(number).name})")
        elif self.checkpoints is not None:
            self.checkpoints.manager.signals.take_of_another(number)
        else:
            raise KeyboardInterrupt

    # --- what it does ---

    def _act(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Formed):
                self._formed(output)
            elif isinstance(output, Excluded):
                self._excluded(output)
            elif isinstance(output, Send):
                message = output.message
                if isinstance(message, group.Regroup):
                    self.to_rank(output.to, Regrouped(message, tuple(self.addresses[r] for r in message.ranks)))
                else:
                    self.to_rank(output.to, message)

    def _formed(self, formed: Formed) -> None:
        group, observer = formed.group, self.workers.observer
        self.note(Event(EventKind.GROUP, time.time(), number=group.epoch, members=group.ranks))
        if group.epoch == 1:
            self.workers.training_started()
            if self.checkpoints is not None:
                self.checkpoints.ask = lambda update: self._broadcast(Wanted(update))
        if group.epoch > 1 or observer.start is not None:
            observer.note(_rows_of(formed, now()))

    def _excluded(self, excluded: Excluded) -> None:
        """A rank is no longer part of the run: the others go on, or no one is left."""
        rank, alive = excluded.rank, self.machine.alive
        self.note(Event(EventKind.LOST, time.time(), ProcessKind.WORKER, rank, rank, why=excluded.why))
        self.workers.dead.add(rank)
        self.workers.finished.pop(rank, None)
        self.workers.died(rank, excluded.why)
        if not alive:
            raise RunFailed(f"rank {rank} {excluded.why}, and no other is left to finish the run")
        update = self.workers.doing[rank]
        where = f"in update {update}" if update >= 0 else "before its first update"
        others = ", ".join(map(str, sorted(alive)))
        go_on = f"ranks {others} go on and compute" if len(alive) > 1 else f"rank {others} goes on and computes"
        what = f"rank {rank} {excluded.why}. It was {where}; {go_on} its part of each batch"
        warnings.warn(what, DeathWarning, stacklevel=2)
        self._want()

    def _broadcast(self, message: Message) -> None:
        for rank in sorted(self.machine.alive):
            self.to_rank(rank, message)

    def _want(self) -> None:
        """Ask for the results as soon as every living worker has finished."""
        if self.workers.finished.keys() != self.machine.alive:
            return
        results = self.setup.plan.results
        self.wanted = tuple(sorted(self.machine.alive)[:results])
        for rank in self.wanted:
            if rank not in self.results:
                self.to_rank(rank, Deliver())


def _rows_of(formed: Formed, at: int) -> list[Row]:
    """Return the rows of a group for the trace, one for each of its ranks."""
    group, pairs = formed.group, zip(formed.group.ranks, formed.held, strict=True)
    return [
        Row(Kind.REGROUP, rank, group.since, base=held, version=group.epoch, start=at, end=at) for rank, held in pairs
    ]
