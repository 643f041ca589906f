"""The workers of all nodes, as the head knows them from messages: their progress, their rows, who has ended and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from time import perf_counter_ns as now
from typing import TypeAlias

import numpy as np

from paceline.algorithms.cluster.numbered_rows import NumberedRows, Writer
from paceline.runtime.engines.checkpoint_manager import CheckpointManager
from paceline.runtime.engines.cluster.control import Began, Exited, Finished, Rows
from paceline.runtime.engines.cluster.rendezvous import Node, boot
from paceline.runtime.engines.observer import Diagnosis, Observer
from paceline.runtime.engines.outcome import Life
from paceline.runtime.runs.live import EventKind, EventLog, NodeProcess, ProcessKind, ProcessRecord, RunEvent, wall_time
from paceline.runtime.runs.record import DeathRecord
from paceline.runtime.runs.trace import DTYPE, Columns, Kind, Row, Trace


class RemoteWorkers:
    """`observer.Watched` of the workers of all nodes, with the observer that follows them."""

    def __init__(
        self, life: Life, nodes: dict[int, Node], manager: CheckpointManager | None, rows: NumberedRows | None = None
    ) -> None:
        """`rows` are those that are in the trace already."""
        self.setup, self.nodes, self.deadline, self.manager = life.setup, nodes, life.deadline, manager
        self.count, self._trace_file = self.setup.plan.workers, life.place.file("trace.arrow")
        #: By how many nanoseconds this process's clock is ahead of each node's.
        self.ahead = [nodes[rank].ahead if rank in nodes else 0 for rank in range(self.count)]
        #: The agent of each rank, which numbers its rows; 0 for this process's.
        self.agents = [nodes[rank].peer.incarnation if rank in nodes else 0 for rank in range(self.count)]
        self.numbered = rows or NumberedRows()
        self.doing = [-1] * self.count
        self.finished: dict[int, Finished] = {}
        self.dead: set[int] = set()
        self.deaths: list[DeathRecord] = []
        #: The epochs of the groups that the trace of another head tells of.
        self.groups: set[int] = set()
        self.diagnosis = Diagnosis(self.doing, lambda rank: f"It is rank {rank}", self.setup.source, life.deadline)
        self._rows: list[list[Columns]] = [[] for _ in range(self.count)]
        self.observer = Observer(life, self, self.finished, self.dead)

    def processes_started(self, head_pid: int) -> None:
        """Record the processes of all nodes; `own` is this one."""
        pids = [self.nodes[rank].register.process if rank in self.nodes else head_pid for rank in range(self.count)]
        self.observer.processes_started([ProcessRecord.of(pid) for pid in pids])

    def training_started(self) -> None:
        """Begin the trace. No row begins earlier than now, whatever a clock of another machine says."""
        self.observer.started_at = now()
        if self.manager is not None:
            self.manager.origin = self.observer.origin
        self.observer.training_started(self._trace_file)
        for death in self.deaths:  # of ranks that were lost while workers became ready
            self.observer.worker_died(death.worker)

    def training_continues(self, origin: int, rows: Columns, deaths: Sequence[DeathRecord]) -> None:
        """Continue the trace of another head, which began at this time of this process's clock."""
        self.observer.started_at = origin
        if self.manager is not None:
            self.manager.origin = origin
        self.deaths = list(deaths)
        self.groups = set(rows["version"][rows["kind"] == Kind.REGROUP].tolist())
        marks = [
            Row(Kind.DEATH, death.worker, death.update, start=(at := int(death.seconds * 1e9)), end=at)
            for death in deaths
            if death.worker not in rows["worker"][rows["kind"] == Kind.DEATH]
        ]
        self.observer.training_started(self._trace_file, np.concatenate([rows, Trace.of(marks).rows]))
        for rank in range(self.count):
            mine = rows["update"][(rows["worker"] == rank) & (rows["kind"] == Kind.COMPUTE)]
            self.doing[rank] = int(mine.max(initial=-1)) // self.setup.agenda.shares

    @property
    def training(self) -> bool:
        """Whether the training has begun."""
        return bool(self.observer.started_at)

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        ends = [each.when + self.ahead[rank] for rank, each in self.finished.items()]
        return (max(ends) - self.observer.origin) / 1e9

    def add_rows(self, rank: int, message: Rows, content: memoryview) -> None:
        """Take rows that a worker has written, those that are not in the trace yet, and the update that it is in."""
        self.doing[rank] = max(self.doing[rank], message.doing)
        rows = np.frombuffer(content, DTYPE) if len(content) else np.empty(0, DTYPE)
        repeated = self.numbered.known(Writer(rank, self.agents[rank]), message.first, len(rows))
        self.put_rows(rows[repeated:], rank, self.ahead[rank])

    def put_rows(self, rows: Columns, rank: int = 0, ahead: int = 0) -> None:
        """Put rows into the trace, of a worker or the head's own, by a clock that this process's is ahead of."""
        rows = np.array(rows)
        for column in ("start", "end"):
            rows[column] = np.maximum(rows[column] + ahead, self.observer.started_at)
        self._rows[rank].append(rows)

    def died(self, rank: int, why: str) -> None:
        """Record a death in the run and in the trace."""
        begun = self.observer.origin if self.training else now()
        self.deaths.append(DeathRecord(rank, why, self.doing[rank], (now() - begun) / 1e9))
        if self.training:
            self.observer.worker_died(rank)

    def drain(self) -> list[Columns]:
        columns = [np.concatenate([np.empty(0, DTYPE), *parts]) for parts in self._rows]
        self._rows = [[] for _ in columns]
        return columns

    def asleep(self, worker: int) -> bool:
        return False

    def offers(self, worker: int) -> int:
        return 0


# What the head records of the processes of all nodes: live.json names those that run, events.jsonl what happened.

#: Records an event.
Note: TypeAlias = Callable[[RunEvent], None]


class ProcessLog:
    """The processes of a run, and the events of their lives."""

    def __init__(self, events: EventLog, nodes: dict[int, Node], head: int, head_pid: int) -> None:
        self.events = events
        #: The processes that run, by their kind and number.
        self.processes: dict[tuple[ProcessKind, int], NodeProcess] = {}
        #: Nanoseconds by which this process's clock is ahead of each node's.
        self._ahead = {rank: node.ahead for rank, node in nodes.items()}
        for rank, process in [(head, ProcessRecord.of(head_pid)), *((r, _agent(node)) for r, node in nodes.items())]:
            self.processes[ProcessKind.AGENT, rank] = NodeProcess(ProcessKind.AGENT, rank, rank, -1, process)

    def note(self, event: RunEvent) -> None:
        """Record an event."""
        self.events.add(event)

    def add(self, rank: int, message: Began | Exited, observer: Observer) -> None:
        """Take what an agent says of a process."""
        at = wall_time(message.when + self._ahead.get(rank, 0))
        if isinstance(message, Began):
            node_process = NodeProcess(message.kind, rank, message.number, message.shard, message.process)
            self.processes[message.kind, message.number] = node_process
            if message.kind is ProcessKind.WORKER:
                observer.process_started(rank, message.process)
            kind, pid, shard = EventKind.STARTED, message.process.pid, message.shard
        else:
            self.processes.pop((message.kind, message.number), None)
            kind, pid, shard = EventKind.ENDED, message.pid, -1
        self.note(RunEvent(kind, at, message.kind, rank, message.number, pid, shard))

    def node_joined(self, rank: int, node: Node) -> None:
        """Take note of a node that has come while the run goes on."""
        self._ahead[rank] = node.ahead
        self.processes[ProcessKind.AGENT, rank] = NodeProcess(ProcessKind.AGENT, rank, rank, -1, _agent(node))

    def numbers(self, kind: ProcessKind) -> set[int]:
        """Return the numbers of the processes of a kind that run."""
        return {number for each, number in self.processes if each is kind}

    def node_lost(self, rank: int, why: str) -> None:
        """Take note that the agent of a node cannot be reached any longer."""
        for key in [key for key, process in self.processes.items() if process.rank == rank]:
            del self.processes[key]
        self.note(RunEvent(EventKind.LOST, time.time(), ProcessKind.AGENT, rank, rank, why=why))


def _agent(node: Node) -> ProcessRecord:
    """Identify the agent of another node; when it was started is known of processes of this machine alone."""
    pid = node.register.process
    return ProcessRecord.of(pid) if node.register.boot == boot() else ProcessRecord(pid, 0.0)
