"""Checkpoints of plans with servers: the desk drains its leases, the head reads every shard, the desk goes on.

    head                          desk                             shards
    ----                          ----                             ------
    HOLD ------------------------> leases nothing new; workers finish what they have, and wait
    <----------------- drained --- everything that was leased is finished
    HISTORY (whole) --------------------------------------------> version, batches, optimizer, pushes
    HOLD off --------------------> leases again

The cut does not depend on the desk's word: the shards say which batches they have, and it is taken only if each has the
first so many and no other. A desk that dies meanwhile forgets the hold; then the head asks the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import torch

from paceline.algorithms.cluster.applied import Applied
from paceline.algorithms.server.checkpoint_cut import Cut, UnderWay
from paceline.plans.plan import server_of
from paceline.runtime.engines.checkpoint_manager import CheckpointManager
from paceline.runtime.engines.checkpoints import Checkpoint
from paceline.runtime.engines.cluster.checkpointing import owes
from paceline.runtime.engines.cluster.control import ShardStart
from paceline.runtime.engines.cluster.servers.collector import Collector, ShardsCut
from paceline.runtime.engines.servers.ports import version_shapes
from paceline.runtime.engines.setup import Setup
from paceline.runtime.links.tcp.link import raw
from paceline.runtime.runs.trace import Columns
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.shard_version import ShardVersion, VersionShape
from paceline.training.parameters.worker_state import WorkerState

AGAIN = 0.2  # seconds between two requests to hold the leases
STATES = 10.0  # seconds that workers may take to send what is their own


class ServerCheckpoints:
    """Takes the checkpoints of one run with servers."""

    def __init__(self, manager: CheckpointManager, collector: Collector, deadline: float) -> None:
        self.manager, self.setup, self.collector, self._deadline = manager, manager.setup, collector, deadline
        #: Called with the updates of a checkpoint for which all workers leave what is their own.
        self.ask: Callable[[int], None] = lambda updates: None
        #: Called with the rows of pushes that led to a checkpoint; returns when the last of them ended, in nanoseconds.
        self.tell: Callable[[Columns], int] = lambda rows: 0
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
        ended = self.tell(cut.pushes)
        holders: dict[str, WorkerState] = {}
        for number, (body, shape) in enumerate(zip(cut.whole, self._shapes, strict=True)):
            content = torch.frombuffer(bytearray(body[: shape.size]), dtype=torch.uint8)
            holders[f"shard.{number}"] = ShardVersion(shape, content).worker_state()
        owed = self._owed.pop(updates, {})
        holders |= {f"worker.{rank}": state for rank, state in sorted(owed.items())}
        self._owed = {later: found for later, found in self._owed.items() if later > updates}
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
        missing = {batch for batch, there in start.cut.under_way if shard not in there}
        applied = Applied(0, (batch for batch in range(start.cut.given_out) if batch not in missing))
        shard_version = ShardVersion(shape, torch.zeros(shape.size, dtype=torch.uint8))
        shard_version.restore(start.holders[f"shard.{shard}"])
        pushes = version * (server_of(setup.plan).gathers or 1)
        starts[shard] = ShardStart(shard, pushes, *applied.key, shape.size), raw(shard_version.raw)
    return starts
