"""Machines with a fault of protocol planted in each, which histories must find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.core.cluster.applied import Applied
from paceline.core.cluster.desk import DeskMachine
from paceline.core.cluster.messages import (
    Enrol,
    InSync,
    Process,
    Propose,
    Push,
    Pushed,
    Replicate,
    Replicated,
)
from paceline.core.cluster.outputs import Output, Send
from paceline.core.cluster.shard import ShardMachine
from paceline.core.cluster.views import EPOCH_BITS, ShardViews
from paceline.core.cluster.worker import Stage, WorkerMachine
from paceline.engines.virtual.network import Machines


class KnowsBatchesByWorker(ShardMachine):
    """Refuses a batch only from the worker that has pushed it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: set[tuple[Process, int]] = set()

    def _push(self, now: float, sender: Process, push: Push) -> Iterator[Output]:
        if (sender, push.batch) not in self.seen:
            self.applied = Applied(0, (b for b in range(self.applied.end) if b in self.applied and b != push.batch))
        self.seen.add((sender, push.batch))
        return super()._push(now, sender, push)


class AcknowledgesFirst(ShardMachine):
    """Acknowledges a push before the backup has it."""

    def _push(self, now: float, sender: Process, push: Push) -> Iterator[Output]:
        yield from super()._push(now, sender, push)
        for batch, workers in self.waiting.values():
            yield from (Send(worker, Pushed(self.shard, self.view, batch, self.version)) for worker in workers)


class AcknowledgesRepeats(ShardMachine):
    """Acknowledges a repeated push although the backup does not have it yet."""

    def _push(self, now: float, sender: Process, push: Push) -> Iterator[Output]:
        if any(batch == push.batch for batch, _ in self.waiting.values()):
            yield Send(sender, Pushed(self.shard, self.view, push.batch, self.version))
        yield from super()._push(now, sender, push)


class BackupKnowsNoViews(ShardMachine):
    """Confirms what an earlier primary replicates."""

    def _replicate(self, sender: Process, message: Replicate) -> Iterator[Output]:
        if message.view < self.view:
            yield Send(sender, Replicated(message.view, message.version))
        yield from super()._replicate(sender, message)


class BackupSkipsGaps(ShardMachine):
    """Confirms what it was sent last, although something before it is missing."""

    def _replicate(self, sender: Process, message: Replicate) -> Iterator[Output]:
        yield from super()._replicate(sender, message)
        if message.view == self.view and not self.primary:
            yield Send(sender, Replicated(self.view, message.version))


class AlwaysInSync(ShardMachine):
    """Never sends a copy to a backup that enrols."""

    def _enrol(self, now: float, number: int, message: Enrol) -> Iterator[Output]:
        if self.primary and message.view == self.view and number in self.followers:
            yield Send(Process(self._server(0).role, number), InSync(self.view, message.version, self.entered_at))


class EntersOlderViews(ShardMachine):
    """Enters every view that a desk proposes, also one that was replaced meanwhile."""

    def _obey(self, now: float, message: Any) -> Iterator[Output]:
        if isinstance(message, Propose) and message.view < self.view:
            self.view = 0
        return super()._obey(now, message)


class ForgetsTheLog(ShardMachine):
    """Drops what it has applied without asking what its followers lack."""

    def _push(self, now: float, sender: Process, push: Push) -> Iterator[Output]:
        yield from super()._push(now, sender, push)
        self.log.clear()


class ConfirmsOnce(ShardMachine):
    """Never repeats what it has confirmed, which may have been lost."""

    def tick(self, now: float) -> list[Output]:
        return [o for o in super().tick(now) if not (isinstance(o, Send) and isinstance(o.message, Replicated))]


class _OtherViews(DeskMachine):
    """A desk whose views are of another class."""

    Views: type[ShardViews]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.views = [self.Views(view.shard, view.copies, view.since) for view in self.views]


class SpareIsSafe(_OtherViews):
    """Counts a spare as safe as soon as it has entered the view."""

    class Views(ShardViews):
        def settle(self) -> bool:
            news = super().settle()
            self.safe |= frozenset(self.view.members) if news else frozenset()
            return news


class OneShardIsEnough(_OtherViews):
    """Rebuilds its leases as if a batch that any server has were finished."""

    class Views(ShardViews):
        @property
        def durable(self) -> Applied:
            return Applied(self.end)


class CountsViewsFromOne(DeskMachine):
    """Numbers its views without its epoch, so two desks make views of the same number."""

    def _number(self) -> int:
        self._made += 1
        return (1 << EPOCH_BITS) + self._made


class ForgetsItsBatch(WorkerMachine):
    """Asks for another batch when a primary is replaced while it pushes."""

    def _new_views(self, now: float, message: Any) -> Iterator[Output]:
        if self.stage is Stage.PUSHING and any(v.number > self.views[v.shard].number for v in message.views):
            self.awaited.clear()
            self.acknowledged = [view.number for view in sorted(message.views)]
            yield from self._exchanged(now, 0, self.base[0])
        yield from super()._new_views(now, message)


def _server(number: int) -> Process:
    from paceline.core.cluster.messages import Role

    return Process(Role.SERVER, number)


SHARDS = (
    KnowsBatchesByWorker, AcknowledgesFirst, AcknowledgesRepeats, BackupKnowsNoViews, BackupSkipsGaps, AlwaysInSync,
    EntersOlderViews, ForgetsTheLog, ConfirmsOnce,
)  # fmt: skip
DESKS = (SpareIsSafe, OneShardIsEnough, CountsViewsFromOne)
WORKERS = (ForgetsItsBatch,)
PLANTED = {
    **{kind.__name__: Machines(shard=kind) for kind in SHARDS},
    **{kind.__name__: Machines(desk=kind) for kind in DESKS},
    **{kind.__name__: Machines(worker=kind) for kind in WORKERS},
}
