"""The head: the agent of rank 0 gathers the traces, decides who belongs to the group, and ends the run."""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns as now
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.core.cluster import group
from paceline.core.cluster.group import Accuse, Excluded, Formed, Output, Send
from paceline.engines.checkpoints import Checkpoint
from paceline.engines.cluster.checkpointing import GroupCheckpoints
from paceline.engines.cluster.control import (
    Asked,
    Deliver,
    Ended,
    Failed,
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
from paceline.engines.cluster.rendezvous import Node
from paceline.engines.diagnosis import Diagnosis
from paceline.engines.observer import Observer
from paceline.engines.setup import Setup
from paceline.engines.workers.messages import FailureReport
from paceline.engines.workers.snapshot_file import SnapshotFile
from paceline.errors import DeathWarning, RunFailed
from paceline.errors.failure import Position
from paceline.links.tcp.address import Address
from paceline.links.tcp.connection import Buffer
from paceline.links.tcp.waiting import DELAYS
from paceline.parameters.replicas import mean_of
from paceline.plans.methods.local_steps import Gossip
from paceline.runs.events import Event, EventKind, ProcessKind
from paceline.runs.live import Heartbeat, ProcessRecord
from paceline.runs.progress import ProgressCallback
from paceline.runs.record import DeathRecord
from paceline.runs.trace import DTYPE, Columns, Kind, Row


class ToRank(Protocol):
    """Sends a message to the agent of a rank."""

    def __call__(self, rank: int, message: Message, content: Sequence[Buffer] = ()) -> None: ...


class FarWorkers:
    """What the head knows of the workers: `Watched`, from messages instead of shared memory."""

    def __init__(self, ahead: Sequence[int]) -> None:
        """`ahead` is by how many nanoseconds this process's clock is ahead of each node's."""
        self.ahead = list(ahead)
        self.doing = [-1] * len(ahead)
        #: When the run began; no row begins earlier, whatever a clock of another machine says.
        self.started_at = 0
        self._rows: list[list[Columns]] = [[] for _ in ahead]

    def took(self, rank: int, doing: int, content: memoryview) -> None:
        """Take rows that a worker has written."""
        self.doing[rank] = max(self.doing[rank], doing)
        rows = np.array(np.frombuffer(content, DTYPE)) if len(content) else np.empty(0, DTYPE)
        for column in ("start", "end"):
            rows[column] = np.maximum(rows[column] + self.ahead[rank], self.started_at)
        self._rows[rank].append(rows)

    def drain(self) -> list[Columns]:
        found = [np.concatenate([np.empty(0, DTYPE), *parts]) for parts in self._rows]
        self._rows = [[] for _ in found]
        return found

    def asleep(self, worker: int) -> bool:
        return False

    def offers(self, worker: int) -> int:
        return 0


class Head:
    """The head's side of a run."""

    def __init__(
        self, setup: Setup, nodes: dict[int, Node], to_rank: ToRank, deadline: float, patience: float,
        snapshots: SnapshotFile | None, note: Callable[[Event], None], checkpoints: GroupCheckpoints | None,
        delay: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        """`delay` returns by how many seconds processes have run too late of late, which ranks are given on top."""
        self._patience, self._delay = patience, delay
        self.setup, self.to_rank, self.snapshots, self.note = setup, to_rank, snapshots, note
        self.checkpoints = checkpoints
        count = setup.plan.workers
        self.machine = group.Head({0, *nodes}, patience, gives=not isinstance(setup.plan.method, Gossip))
        self.far = FarWorkers([nodes[rank].ahead if rank in nodes else 0 for rank in range(count)])
        self.addresses: dict[int, Address] = {}
        self.finished: dict[int, Finished] = {}
        self.dead: set[int] = set(range(count)) - self.machine.alive
        self.deaths: list[DeathRecord] = []
        #: Results that were delivered: the flat values of a worker.
        self.results: dict[int, Tensor] = {}
        self.wanted: tuple[int, ...] = ()
        self.diagnosis = Diagnosis(self.far.doing, lambda rank: f"It is rank {rank}", setup.source, deadline)
        self.observer: Observer | None = None

    def observe(self, observer: Observer, trace_file: Path | None) -> None:
        """Report to this observer from now on."""
        self.observer, self._trace_file = observer, trace_file

    @property
    def done(self) -> bool:
        """Whether every result that is wanted was delivered."""
        return bool(self.wanted) and all(rank in self.results for rank in self.wanted)

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        assert self.observer is not None
        ends = [each.when + self.far.ahead[rank] for rank, each in self.finished.items()]
        return (max(ends) - self.observer.origin) / 1e9

    def values(self) -> list[Tensor]:
        """Return the trainable parameters in the module's order, then the moving buffers."""
        layout, names = self.setup.layout, self.setup.names
        return mean_of([layout.collect([self.results[rank]], names) for rank in self.wanted])

    # --- what the head hears ---

    def hear(self, rank: int, message: Message, content: memoryview) -> None:
        """Take a message of the agent of a rank."""
        at = time.monotonic()
        if isinstance(message, Reported):
            self.addresses[rank] = message.address
            self._act(self.machine.report(at, rank, message.report))
        elif isinstance(message, Accuse):
            self._act(self.machine.accuse(at, rank, message))
        elif isinstance(message, Rows):
            self.far.took(rank, message.doing, content)
        elif isinstance(message, Snapshot) and self.snapshots is not None:
            self.snapshots.put(message.updates, content)
        elif isinstance(message, Finished):
            self.finished[rank] = message
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
            raise self.diagnosis.failed(rank, report_of(message), self._victims(rank))

    def lost(self, rank: int, why: str) -> None:
        """A worker has died, or its node cannot be reached."""
        self._act(self.machine.gone(time.monotonic(), rank, why))

    def look(self) -> None:
        """Do what is due; called several times a second."""
        self.machine.patience = self._patience + DELAYS * self._delay()
        self._act(self.machine.tick(time.monotonic()))
        if self.checkpoints is not None and self.observer is not None and self.observer.started_at:
            due = self.checkpoints.take(self.machine.alive, self.far.doing)
            if due is not None:
                self.checkpoints.manager.save(due, self.observer)

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
        assert self.observer is not None
        group = formed.group
        self.note(Event(EventKind.GROUP, time.time(), number=group.epoch, members=group.ranks))
        if formed.group.epoch == 1:
            self.far.started_at = self.observer.started_at = now()
            if self.checkpoints is not None:
                self.checkpoints.manager.origin = self.observer.origin
                self.checkpoints.ask = lambda update: self._tell_all(Wanted(update))
            self.observer.training_started(self._trace_file)
        if formed.group.epoch > 1 or self.observer.start is not None:
            self.observer.note(_rows_of(formed, now()))

    def _excluded(self, excluded: Excluded) -> None:
        """A rank is no longer part of the run: the others go on, or no one is left."""
        rank, alive = excluded.rank, self.machine.alive
        self.note(Event(EventKind.LOST, time.time(), ProcessKind.WORKER, rank, rank, why=excluded.why))
        self.dead.add(rank)
        begun = self.observer.origin if self.observer is not None and self.observer.started_at else now()
        self.deaths.append(DeathRecord(rank, excluded.why, self.far.doing[rank], (now() - begun) / 1e9))
        self.finished.pop(rank, None)
        if self.observer is not None and self.observer.started_at:
            self.observer.worker_died(rank)
        if not alive:
            raise RunFailed(f"rank {rank} {excluded.why}, and no other is left to finish the run")
        update = self.far.doing[rank]
        where = f"in update {update}" if update >= 0 else "before its first update"
        others = ", ".join(map(str, sorted(alive)))
        go_on = f"ranks {others} go on and compute" if len(alive) > 1 else f"rank {others} goes on and computes"
        what = f"rank {rank} {excluded.why}. It was {where}; {go_on} its part of each batch"
        warnings.warn(what, DeathWarning, stacklevel=2)
        self._want()

    def _tell_all(self, message: Message) -> None:
        for rank in sorted(self.machine.alive):
            self.to_rank(rank, message)

    def _want(self) -> None:
        """Ask for the results as soon as every living worker has finished."""
        if self.finished.keys() != self.machine.alive:
            return
        results = self.setup.plan.results
        self.wanted = tuple(sorted(self.machine.alive)[:results])
        for rank in self.wanted:
            if rank not in self.results:
                self.to_rank(rank, Deliver())

    def _victims(self, rank: int) -> list[int]:
        return sorted(self.machine.alive - {rank} - self.finished.keys())


def _rows_of(formed: Formed, at: int) -> list[Row]:
    """Return the rows of a group for the trace, one for each of its ranks."""
    group, pairs = formed.group, zip(formed.group.ranks, formed.held, strict=True)
    return [
        Row(Kind.REGROUP, rank, group.since, base=held, version=group.epoch, start=at, end=at) for rank, held in pairs
    ]


def report_of(failed: Failed) -> FailureReport:
    position = Position(failed.update, failed.version, failed.samples)
    return FailureReport(
        failed.what, position, failed.traceback, failed.advice, failed.waited_for, failed.complete, now()
    )


class Followed(Protocol):
    """What an observer needs of a head."""

    far: FarWorkers
    finished: dict[int, Finished]
    dead: set[int]


def observer_of(
    setup: Setup, head: Followed, nodes: dict[int, Node], own: int, heartbeat: Heartbeat,
    progress: ProgressCallback | None, start: Checkpoint | None,
) -> Observer:  # fmt: skip
    """Return the observer of a run, with the processes of all nodes."""
    observer = Observer(setup, head.far, start, head.finished, head.dead, heartbeat, progress)
    pids = [nodes[rank].register.process if rank in nodes else own for rank in range(setup.plan.workers)]
    observer.processes_started([ProcessRecord.of(pid) for pid in pids])
    return observer
