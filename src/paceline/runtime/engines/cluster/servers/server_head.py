"""The head's side of a plan with servers: it places them, follows the training, and reads the result."""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Collection
from time import perf_counter_ns as now

import numpy as np
import torch
from torch import Tensor

from paceline.algorithms.cluster.group import Release
from paceline.algorithms.cluster.messages import Applied, Process, Role
from paceline.algorithms.server.checkpoint_cut import Cut, UnderWay
from paceline.algorithms.server.gates import Asynchronous
from paceline.errors import DeathWarning, RunFailed
from paceline.plans.plan import server_of
from paceline.runtime.engines.checkpoint_manager import CheckpointManager
from paceline.runtime.engines.checkpoints import Checkpoint
from paceline.runtime.engines.cluster.agent import Agent
from paceline.runtime.engines.cluster.control import (
    Asked,
    DeskMoved,
    Ended,
    Finished,
    Message,
    Rows,
    Serve,
    ServerFailed,
    ShardStart,
    Spare,
    State,
    Wanted,
    state_of,
)
from paceline.runtime.engines.cluster.group_head import owes
from paceline.runtime.engines.cluster.rendezvous import Node
from paceline.runtime.engines.cluster.second_home import Office, Succeeds
from paceline.runtime.engines.cluster.servers.collector import Collector, ShardsCut
from paceline.runtime.engines.cluster.servers.history import by_rank
from paceline.runtime.engines.cluster.servers.node_servers import DeskSupervisor, Placement, ServerLauncher
from paceline.runtime.engines.cluster.servers.processes import ServerConfig
from paceline.runtime.engines.servers.ports import version_shapes
from paceline.runtime.engines.setup import Setup
from paceline.runtime.engines.workers.messages import Failed
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import listen
from paceline.runtime.links.tcp.link import raw
from paceline.runtime.runs.live import EventKind, ProcessKind, RunEvent
from paceline.runtime.runs.trace import Columns, Kind, Row, Trace
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.shard_version import ShardVersion, VersionShape
from paceline.training.parameters.worker_state import WorkerState

BLOCK = 16  # batches that are leased at once, at most
READ_SECONDS = 30.0  # that servers may take to answer the head
#: The epochs of desks, and the numbers of lives of a rank, that belong to one term of the head.
DESKS, LIVES = 256, 256


class ServerHead:
    """The head's side of a run with servers."""

    def __init__(self, office: Office, agent: Agent, backups: int, replaces: bool) -> None:
        """`replaces` is whether a node that ends is replaced."""
        workers, succeeds, snapshots = office.workers, office.succeeds, office.snapshots
        self.workers, self.note, self.to_rank, self.replaces = workers, office.note, office.to_rank, replaces
        self.second_home, term = office.second_home, succeeds.term if succeeds else 0
        setup, manager = workers.setup, workers.manager
        #: Nodes that cannot be reached any longer.
        self._lost: set[int] = set(range(workers.count)) - set(succeeds.ranks) if succeeds else set()
        #: How many nodes each rank has had before; numbers of another term are never given out again.
        self.lives = [term * LIVES] * workers.count
        #: Since when no worker is left.
        self._deserted: float | None = None
        self.setup, self.snapshots, self.nodes = setup, snapshots, workers.count
        self._values: list[Tensor] = []
        #: Shards whose first view was heard of.
        self._viewed: set[int] = set()
        self._snapshot_at = setup.snapshots_every
        rank_config = agent.config
        listener = listen(Address(rank_config.host, 0), rank_config.credentials)
        config = ServerConfig.of(rank_config, Address(rank_config.host, listener.getsockname()[1]))
        self._rank = rank_config.rank
        self.placement = placement = self._placed(1 + backups, succeeds)
        self.collector = self._collector(config, term)
        self.desk_supervisor = DeskSupervisor(
            ServerLauncher(agent.children, config, agent.assignment),
            listener,
            placement,
            lambda: self.collector.loop.addresses or (succeeds.servers() if succeeds else ()),
            block_of(setup),
            term * DESKS,
        )
        self.collector.desk_met, self.collector.desk_lost = self._desk_met, self._desk_lost
        #: The epoch of the desk that is connected, or was last.
        self._epoch = 0
        self._servers = [tuple(shard for _, shard in placement.on(rank)) for rank in range(self.nodes)]
        self._desk = config.desk
        self.collector.meanwhile = agent.poll
        self.checkpoints = ServerCheckpoints(manager, self.collector, READ_SECONDS) if manager is not None else None
        if self.checkpoints is not None:
            self.checkpoints.ask, self.checkpoints.record = self._ask_workers, self._notify
        if succeeds is None:
            self._start_nodes(manager.request.start if manager is not None else None)
        else:
            self._snapshot_at = max(office.second_home.known, default=0) + setup.snapshots_every

    def _placed(self, copies: int, succeeds: Succeeds | None) -> Placement:
        """Place the servers on the nodes with which the run begins; the others count as lost until they join."""
        self.workers.dead |= self.absent
        shards, present = len(self.setup.layout.shards), self.nodes - len(self.absent)
        if succeeds is not None and self.replaces:
            present = 1  # every node that joins gets a server for each shard, as under the head before
        return Placement(self.nodes, shards, min(self.nodes, copies), present)

    def _collector(self, config: ServerConfig, term: int) -> Collector:
        hub, server = config.hub(Process(Role.HEAD, term)), server_of(self.setup.plan)
        return Collector(hub, config.desk, config.timing, self.setup.layout, self._event, server, term)

    def _start_nodes(self, begun: Checkpoint | None) -> None:
        """Let every node start its servers and its worker, from a checkpoint if the run is resumed."""
        starts = starts_of(self.setup, begun) if begun is not None else {}
        for rank, mine in enumerate(self._servers):
            shard_starts = [starts[shard] for shard in mine if shard in starts]
            serve = Serve(self._desk, mine, starts=tuple(start for start, _ in shard_starts))
            self.to_rank(rank, serve, [content for _, content in shard_starts])
        if begun is not None:
            every = self.setup.snapshots_every
            self._snapshot_at = begun.updates // every * every + every if every else 0

    def reached(self, rank: int) -> None:
        """A rank follows this head, which has taken over: its processes are to find the next desk."""
        self.to_rank(rank, DeskMoved(self._desk))

    def complete(self) -> None:
        """All ranks have said what they run: the desk can ask the servers what they hold."""
        self.desk_supervisor.start()  # which waits for the servers that there are, not for spares that start
        for rank in set(range(self.nodes)) - self._lost:
            self.to_rank(rank, Spare())

    @property
    def absent(self) -> frozenset[int]:
        """The ranks that no node has had."""
        return frozenset(range(self.nodes)) - {self._rank, *self.workers.nodes}

    @property
    def done(self) -> bool:
        """Whether the result was read."""
        return bool(self._values)

    def values(self) -> list[Tensor]:
        """Return the trainable parameters in the module's order, then the moving buffers."""
        return self._values

    def handle_message(self, rank: int, message: Message, content: memoryview) -> None:
        """Take a message of the agent of a rank."""
        if isinstance(message, Rows):
            self.workers.add_rows(rank, message, content)
            if rank in self.workers.dead - self._lost and message.doing >= 0:
                self.workers.dead.discard(rank)  # another worker takes part in its place
                self._deserted = None
        elif isinstance(message, Finished):
            self.workers.finished[rank] = message
        elif isinstance(message, State) and self.checkpoints is not None:
            self.checkpoints.put(rank, message.update, state_of(message, content))
        elif isinstance(message, Asked):
            self._asked(rank, message.signal)
        elif isinstance(message, Ended):
            self._worker_died(rank, f"died ({message.how})", message.replaced)
        elif isinstance(message, Failed):
            others = [r for r in range(self.nodes) if r != rank and r not in self.workers.finished]
            raise self.workers.diagnosis.failed(rank, message.report, others)
        elif isinstance(message, ServerFailed):  # what the job's own code raises, it would raise at the backups, too
            report = message.report
            advice = f"\n  advice   {report.advice}" if report.advice else ""
            what = f"server {message.number}, of rank {rank}, failed: {report.what}"
            raise RunFailed(f"{what}{advice}\n{report.traceback}".rstrip())

    def lost(self, rank: int, why: str) -> None:
        """A node cannot be reached any longer: its worker's batch goes to another one, its shards to their backups."""
        if rank in self._lost:
            return  # it was asked to end, and has left
        self._worker_died(rank, why)
        self._lost.add(rank)
        if self.placement.on(rank):
            for other in set(range(self.nodes)) - self._lost:
                self.to_rank(other, Spare())

    def _asked(self, rank: int, number: int) -> None:
        """A node was sent a signal: Ctrl-C stops the run, any other ends that node alone."""
        if number == signal.SIGINT:
            if self.checkpoints is None:
                raise KeyboardInterrupt
            self.checkpoints.manager.signals.take_of_another(number)
            return
        self.lost(rank, f"was asked to end ({signal.Signals(number).name})")
        self.to_rank(rank, Release(0))

    def joined(self, rank: int, node: Node) -> None:
        """A node has come in the place of one that was lost: it gets a worker, and servers that hold no shard yet."""
        self._lost.discard(rank)
        self.workers.ahead[rank] = node.ahead
        self.lives[rank] += 1
        self.to_rank(rank, Serve(self._desk, (), self.placement.spares(rank), self.lives[rank]))

    def poll(self) -> None:
        """Follow the training; called several times a second."""
        collector, workers = self.collector, self.workers
        collector.turn(0.0)
        if not workers.training and collector.workers:
            workers.training_started()
        if collector.lost_shard is not None:
            raise RunFailed(
                f"shard {collector.lost_shard} of the parameters is lost, since every server that held it has died"
            )
        if self._deserted is not None and time.monotonic() - self._deserted > workers.deadline:
            raise RunFailed(f"no worker is left, and none has taken their place within {workers.deadline:g} s")
        if self.checkpoints is not None and workers.training:
            alive = set(range(self.nodes)) - workers.dead - workers.finished.keys()
            due = self.checkpoints.take(collector.finished, alive)
            if due is not None:
                self.checkpoints.manager.save(due, workers.observer)
        if self.snapshots is not None and 0 < self._snapshot_at <= self._updates < self.setup.agenda.updates:
            self._snapshot()
        if collector.done and not self._values and workers.finished.keys() | workers.dead >= set(range(self.nodes)):
            self._read()

    @property
    def _updates(self) -> int:
        return self.setup.agenda.done_by(self.collector.finished)

    def _snapshot(self) -> None:
        """Read the parameters for an evaluation. They are newer than asked for by what was pushed meanwhile."""
        assert self.snapshots is not None
        every, start = self.setup.snapshots_every, now()
        updates = self._updates // every * every
        self.snapshots.write(updates, self._collect())
        row = Row(Kind.SNAPSHOT, 0, updates, start=start, end=now())
        self.workers.put_rows(Trace.of([row]).rows)
        self.second_home.snapshot(updates)
        self._snapshot_at = updates + every

    def _read(self) -> None:
        """Read the result, and the pushes that it is made of."""
        values = self._collect()
        self._notify(self.collector.pushes(READ_SECONDS))
        if lacking := self.collector.lacking(self.setup.agenda.leases):
            raise RunFailed(
                f"shard {' and '.join(map(str, lacking))} has lost its last pushes, since the servers that had them "
                "died after every batch was finished"
            )
        self._values = values

    def _notify(self, pushes: Columns) -> int:
        """Put rows of pushes into the trace; return when the last of them ended, in nanoseconds."""
        by_rank(pushes, self.nodes)
        ahead = np.array([self.workers.ahead[server % self.nodes] for server in self.collector.sources], np.int64)
        for column in ("start", "end"):
            pushes[column] += ahead
        self.workers.put_rows(pushes)
        return int(pushes["end"].max(initial=0))

    def _ask_workers(self, updates: int) -> None:
        """Let all workers leave what they owe."""
        for rank in set(range(self.nodes)) - self.workers.dead:
            self.to_rank(rank, Wanted(updates))

    def _collect(self) -> list[Tensor]:
        flats = self.collector.values(READ_SECONDS)
        return [value.clone() for value in self.setup.layout.collect(flats, self.setup.names)]

    def _event(self, event: RunEvent) -> None:
        """Record an event that the desk tells of, and report a change of the servers, after the first views."""
        self.note(event)
        if event.kind is EventKind.VIEW and event.shard not in self._viewed:
            self._viewed.add(event.shard)
        elif line := _line(event):
            warnings.warn(line, DeathWarning, stacklevel=2)

    def _desk_met(self) -> None:
        self._epoch = self.desk_supervisor.epoch

    def _desk_lost(self, why: str) -> None:
        """Replace a desk that does not answer, as its process is stopped; one that has ended is replaced already."""
        self.note(RunEvent(EventKind.LOST, time.time(), ProcessKind.DESK, 0, self._epoch, why=why))
        if self._epoch == self.desk_supervisor.epoch:
            self.desk_supervisor.replace()

    def _worker_died(self, rank: int, why: str, replaced: bool = False) -> None:
        workers = self.workers
        if rank in workers.dead or rank in workers.finished:  # a worker that has finished ends
            return
        workers.died(rank, why)
        if replaced:
            what = f"the worker of rank {rank} {why}; another one is started in its place"
            warnings.warn(what, DeathWarning, stacklevel=2)
            return
        workers.dead.add(rank)
        alive = [r for r in range(self.nodes) if r not in workers.dead]
        if not alive and not self.replaces:
            raise RunFailed(f"rank {rank} {why}, and no other is left to finish the run")
        if not alive:
            self._deserted = time.monotonic()
        until = " until another takes its place" if self.replaces else ""
        warnings.warn(
            f"the worker of rank {rank} {why}; its batch is computed by another one, and the run continues with "
            f"{len(alive)} of {self.nodes} workers{until}",
            DeathWarning,
            stacklevel=2,
        )


def block_of(setup: Setup) -> int:
    """Return how many batches a worker is leased at once.

    A lease costs its worker and the desk as much as some small batches do. But a worker that dies has its block
    computed again, workers end their last blocks at different times, and the head counts batches in whole blocks. A
    gate counts batches one by one, and what loader processes read ahead is forecast one by one.
    """
    if not isinstance(server_of(setup.plan).gate, Asynchronous) or setup.job.num_workers:
        return 1
    workers, every = setup.plan.workers, setup.snapshots_every or setup.agenda.leases
    return max(1, min(BLOCK, setup.agenda.leases // (64 * workers), every // (8 * workers)))


def _line(event: RunEvent) -> str:
    """Return the line that reports an event of the servers; empty if none does."""
    if event.kind is EventKind.VIEW:
        primary, *backups = event.members
        with_backups = f" with backup {', '.join(map(str, backups))}" if backups else " without a backup"
        lossy = "; acknowledged pushes may be missing, and are computed again" if event.lossy else ""
        return f"shard {event.shard}: server {primary} is primary{with_backups}{lossy}"
    return f"{event.kind} {event.why}" if event.kind is EventKind.AGAIN else ""


# --- Checkpoints of plans with servers: the desk drains its leases, the head reads every shard, the desk goes on ------
#     head                          desk                             shards
#     ----                          ----                             ------
#     HOLD ------------------------> leases nothing new; workers finish what they have, and wait
#     <----------------- drained --- everything that was leased is finished
#     HISTORY (whole) --------------------------------------------> version, batches, optimizer, pushes
#     HOLD off --------------------> leases again
#
# The cut does not depend on the desk's word: the shards say which batches they have, and it is taken only if each has
# the first so many and no other. A desk that dies meanwhile forgets the hold; then the head asks the next one.

AGAIN = 0.2  # seconds between two requests to hold the leases
STATES = 10.0  # seconds that workers may take to send what is their own


class ServerCheckpoints:
    """Takes the checkpoints of one run with servers."""

    def __init__(self, manager: CheckpointManager, collector: Collector, deadline: float) -> None:
        self.manager, self.setup, self.collector, self._deadline = manager, manager.setup, collector, deadline
        #: Called with the updates of a checkpoint for which all workers leave what is their own.
        self.ask: Callable[[int], None] = lambda updates: None
        #: Called with the rows of pushes that led to a checkpoint; returns when the last of them ended, in nanoseconds.
        self.record: Callable[[Columns], int] = lambda rows: 0
        #: What workers owe, by update and rank.
        self._owed: dict[int, dict[int, WorkerState]] = {}
        #: Since when the workers were asked for that, and for which checkpoint.
        self._asked, self._updates = 0.0, -1
        #: When the desk was asked last to hold its leases, and whether it is to.
        self._held_at, self._holds = 0.0, False
        self._shapes = shapes_of(self.setup)
        #: Whether workers keep something of their own between two batches.
        self._keeps = owes(self.setup.plan) or self.setup.plan.method.exchange is not None

    def put(self, rank: int, updates: int, state: WorkerState) -> None:
        """Take what a worker owes."""
        self._owed.setdefault(updates, {})[rank] = state

    def take(self, finished: int, alive: Collection[int]) -> Checkpoint | None:
        """Return a checkpoint, if one was due and all leases are drained; `finished` are the batches, `alive` the ranks
        that have a worker.
        """
        agenda, manager = self.setup.agenda, self.manager
        done = agenda.done_by(finished)
        waits = manager.writer.busy and not manager.signals.ending
        if not manager.due(done) or waits or done >= agenda.updates:
            self._let_go()
            return None
        if not self.collector.drained:
            self._hold()
            return None
        if self._keeps and not self._all_owed(done, alive):
            return None
        cut = self.collector.cut(self._deadline)
        if cut is None or agenda.done_by(cut.batches) < done:
            return None
        self._let_go()
        return self._checkpoint(cut)

    def _hold(self) -> None:
        if time.monotonic() - self._held_at >= AGAIN:
            self._held_at, self._holds = time.monotonic(), True
            self.collector.hold(True)

    def _let_go(self) -> None:
        if self._holds:
            self._holds = False
            self.collector.drained = False
            self.collector.hold(False)

    def _all_owed(self, updates: int, alive: Collection[int]) -> bool:
        """Whether every worker has sent what is its own; one that does not answer in time has nothing."""
        if self._updates != updates:
            self._updates, self._asked = updates, time.monotonic()
            self.ask(updates)
        complete = set(alive) <= self._owed.get(updates, {}).keys()
        return complete or time.monotonic() - self._asked > STATES

    def _checkpoint(self, cut: ShardsCut) -> Checkpoint:
        updates = self.setup.agenda.done_by(cut.batches)
        ended = self.record(cut.pushes)
        holders: dict[str, WorkerState] = {}
        for number, (body, shape) in enumerate(zip(cut.whole, self._shapes, strict=True)):
            content = torch.frombuffer(bytearray(body[: shape.size]), dtype=torch.uint8)
            holders[f"shard.{number}"] = ShardVersion(shape, content).worker_state()
        owed = self._owed.pop(updates, {})
        holders |= {f"worker.{rank}": state for rank, state in sorted(owed.items())}
        self._owed = {later: state for later, state in self._owed.items() if later > updates}
        return self.manager.checkpoint(updates, holders, self._cut(cut), max(time.perf_counter_ns(), ended))

    def _cut(self, cut: ShardsCut) -> Cut:
        """Return where the desk and the shards are. What a shard holds for a round is computed again."""
        needed = server_of(self.setup.plan).gathers
        if not needed:
            return Cut(cut.batches, tuple(cut.versions), ())
        (version,) = cut.versions
        batches = sorted(self.collector.newest(0, version % needed))
        return Cut(cut.batches, (version // needed,), tuple(UnderWay(batch, ()) for batch in batches))


def shapes_of(setup: Setup) -> list[VersionShape]:
    """Return the shape of a version of each shard."""
    named = trainable(setup.module)
    optimizer = setup.job.make_optimizer(setup.module, list(named.values()))
    return version_shapes(server_of(setup.plan), setup.layout, named, optimizer, ())


def starts_of(setup: Setup, start: Checkpoint) -> dict[int, tuple[ShardStart, memoryview]]:
    """Return what the servers of each shard begin with in a resumed run: which batches, and the bytes of a version."""
    assert start.cut is not None
    starts = {}
    for shard, (version, shape) in enumerate(zip(start.cut.versions, shapes_of(setup), strict=True)):
        missing = {batch for batch, shards in start.cut.under_way if shard not in shards}
        applied = Applied(0, (batch for batch in range(start.cut.given_out) if batch not in missing))
        shard_version = ShardVersion(shape, torch.zeros(shape.size, dtype=torch.uint8))
        shard_version.restore(start.holders[f"shard.{shard}"])
        pushes = version * (server_of(setup.plan).gathers or 1)
        starts[shard] = ShardStart(shard, pushes, *applied.key, shape.size), raw(shard_version.raw)
    return starts
