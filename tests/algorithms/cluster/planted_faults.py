"""Machines with a fault of protocol planted in each, which histories must find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from paceline.algorithms.cluster.desk import DeskMachine
from paceline.algorithms.cluster.leases import Registration
from paceline.algorithms.cluster.messages import (
    NONE,
    Acknowledged,
    Applied,
    Enrol,
    InSync,
    NextBatch,
    Process,
    Propose,
    Pulled,
    Push,
    Pushed,
    Release,
    Replicate,
    Replicated,
)
from paceline.algorithms.cluster.outputs import Adopt, Again, Output, Send
from paceline.algorithms.cluster.shard import NEVER, ShardMachine
from paceline.algorithms.cluster.views import EPOCH_BITS, ShardViews, Trust
from paceline.algorithms.cluster.worker import Stage, WorkerMachine
from paceline.algorithms.server.gates import Backup
from paceline.runtime.engines.virtual.network import Machines

# Of a shard server


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
        for batch, (_, workers) in self.waiting.items():
            yield from (Send(worker, Pushed(self.shard, self.view, batch, self.version)) for worker in workers)


class ShowsTheNewest(ShardMachine):
    """Sends its newest parameters with an answer, although a backup may lack them."""

    def _acknowledge(self) -> Iterator[Output]:
        for output in super()._acknowledge():
            if isinstance(output, Send) and isinstance(output.message, Pushed | Pulled):
                output = Send(output.to, output.message._replace(version=self.version))
            yield output


class AcknowledgesRepeats(ShardMachine):
    """Acknowledges a repeated push although the backup does not have it yet."""

    def _push(self, now: float, sender: Process, push: Push) -> Iterator[Output]:
        if push.batch in self.waiting:
            yield Send(sender, Pushed(self.shard, self.view, push.batch, self.version))
        yield from super()._push(now, sender, push)


class AcknowledgesWhatItInherited(ShardMachine):
    """Acknowledges at once what it had before it became the primary, although another backup may lack it."""

    def _push(self, now: float, sender: Process, push: Push) -> Iterator[Output]:
        current = self.primary and push.view == self.view
        if current and push.batch in self.applied and push.batch not in self.waiting:
            yield Send(sender, Pushed(self.shard, self.view, push.batch, self.version))
        else:
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
            yield Send(self._server(number), InSync(self.view, message.version, self.entered_at, self.starts))


class ComparesVersionsOnly(ShardMachine):
    """Takes a backup's versions for its own if there are not more of them, whichever primary they came from."""

    def _enrol(self, now: float, number: int, message: Enrol) -> Iterator[Output]:
        if message.version <= self.entered_at:
            self.lineage[message.follows] = self.entered_at
        return super()._enrol(now, number, message)


class CopiesOnce(ShardMachine):
    """Never sends a follower a second copy, although the first may have been lost."""

    def _copy_for(self, now: float, number: int) -> Iterator[Output]:
        if self.followers[number].copied == NEVER:
            yield from super()._copy_for(now, number)


class FeedsOnce(ShardMachine):
    """Takes a spare that was fed for one that still has everything."""

    def _feed(self, now: float, spare: int) -> Iterator[Output]:
        if spare != self.feeding:
            yield from super()._feed(now, spare)


class ComparesViewsOfShards(ShardMachine):
    """Refuses a copy of one shard because it has been in a later view of another."""

    def _on_desk_message(self, now: float, message: Any) -> Iterator[Output]:
        before = self.view
        yield from super()._on_desk_message(now, message)
        if isinstance(message, Release) and self.shard == NONE:
            self.view = before


class EntersOlderViews(ShardMachine):
    """Enters every view that a desk proposes, also one that was replaced meanwhile."""

    def _on_desk_message(self, now: float, message: Any) -> Iterator[Output]:
        if isinstance(message, Propose) and message.view < self.view:
            self.view = 0
        return super()._on_desk_message(now, message)


class WaitsForEver(ShardMachine):
    """Never says that it does not reach its backup."""

    def status(self) -> Send:
        to, message = super().status()
        return Send(to, message._replace(missing=NONE))  # type: ignore[union-attr]


class TakesOldGradients(ShardMachine):
    """Gathers whatever comes, also what was computed from the parameters of an earlier round."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments[:-1])


class TakesLostParameters(ShardMachine):
    """Applies a gradient of parameters that were lost with their servers."""

    def _push(self, now: float, sender: Process, push: Push) -> Iterator[Output]:
        return super()._push(now, sender, push._replace(shown=self.view))


# Of a desk


class _OtherViews(DeskMachine):
    """A desk whose views are of another class."""

    Views: type[ShardViews]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.views = [self.Views(view.shard, view.copies, view.since) for view in self.views]


class SpareIsSafe(_OtherViews):
    """Counts a spare as safe as soon as it has entered the view."""

    class Views(ShardViews):
        def finalize(self) -> bool:
            news = super().finalize()
            self.safe |= frozenset(self.view.members) if news else frozenset()
            return news


class OneShardIsEnough(_OtherViews):
    """Rebuilds its leases as if a batch that any server has were finished."""

    class Views(ShardViews):
        @property
        def durable(self) -> Applied:
            return Applied(self.end)


class TrustsEveryAcknowledgement(_OtherViews):
    """Counts a batch as finished whose acknowledgement is older than a lossy change."""

    class Views(ShardViews):
        def _propose(self, number: int, members: tuple[int, ...]) -> Iterator[Output]:
            yield from super()._propose(number, members)
            self.trust = Trust()

        def recover(self, *arguments: Any) -> Iterator[Output]:
            yield from super().recover(*arguments)
            self.trust = Trust()


class CountsViewsFromOne(DeskMachine):
    """Numbers its views without its epoch, so two desks make views of the same number."""

    def _number(self) -> int:
        self._made += 1
        return (1 << EPOCH_BITS) + self._made


class RecoversAtOnce(DeskMachine):
    """Chooses the views as soon as any server of each shard has reported."""

    def _recover(self, now: float) -> list[Output]:
        self.expected = frozenset()
        return super()._recover(now)


class BlamesOthersForItsSleep(DeskMachine):
    """Takes all others for silent when it was away itself."""

    def _notice_absence(self, now: float) -> None:
        pass


class TellsNoLosses(DeskMachine):
    """Leases lost batches again, and does not say so."""

    def _rebuild(self) -> Iterator[Output]:
        return (output for output in super()._rebuild() if not isinstance(output, Again))

    def _finish(self, registration: Registration, request: NextBatch) -> Iterator[Output]:
        return (output for output in super()._finish(registration, request) if not isinstance(output, Again))


# Of a worker


class ForgetsItsBatch(WorkerMachine):
    """Asks for another batch when a primary is replaced while it pushes."""

    def _new_views(self, now: float, message: Any) -> Iterator[Output]:
        if self.stage is Stage.PUSHING and any(v.number > self.views[v.shard].number for v in message.views):
            self.awaited.clear()
            self.acknowledged = {Acknowledged(view.shard, view.number) for view in message.views}
            outputs = self._exchanged(now, Pushed(0, self.shown[0], self.batch, self.base[0]))
            yield from (each for each in outputs if not isinstance(each, Adopt))  # no answer has come
        yield from super()._new_views(now, message)


class Plant(NamedTuple):
    """A planted fault, and the scenarios in which it is looked for."""

    machines: Machines
    settings: dict[str, Any]


def _plants() -> Iterator[Plant]:
    for shard in (
        KnowsBatchesByWorker,
        AcknowledgesFirst,
        ShowsTheNewest,
        AcknowledgesRepeats,
        BackupKnowsNoViews,
        BackupSkipsGaps,
        AlwaysInSync,
        CopiesOnce,
        FeedsOnce,
        WaitsForEver,
        EntersOlderViews,
        ComparesViewsOfShards,
        AcknowledgesWhatItInherited,
        ComparesVersionsOnly,
    ):
        lasting = {"lasting": True} if shard in (CopiesOnce, FeedsOnce, ComparesViewsOfShards) else {}
        yield Plant(Machines(shard=shard), lasting)
    for desk in (
        SpareIsSafe,
        OneShardIsEnough,
        TrustsEveryAcknowledgement,
        CountsViewsFromOne,
        RecoversAtOnce,
        BlamesOthersForItsSleep,
    ):
        yield Plant(Machines(desk=desk), {})
    yield Plant(Machines(worker=ForgetsItsBatch), {})
    yield Plant(Machines(shard=TakesOldGradients), {"gathers": 2, "gate": Backup(2), "shards": 1})
    several = {"shards": 1, "backups": 1, "most": 14, "nodes": 4, "workers": 4}
    yield Plant(Machines(shard=TakesLostParameters), several)
    yield Plant(Machines(desk=TellsNoLosses), several)


def _name(plant: Plant) -> str:
    return next(kind.__name__ for kind in vars(plant.machines).values() if kind.__module__ == __name__)


PLANTED = {_name(plant): plant for plant in _plants()}
