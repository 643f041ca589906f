"""All segments of a pipeline in one process. Their work runs in an order that every worker's program allows.

Work of the table is done by all workers that it stands for: those that share the layers of a stage do it together, from
movement to movement, and replicas one after another. The bits do not depend on which order it is.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.schedules import ALL_REDUCE, UPDATE, Table, Work
from paceline.core.schedules.clock import Channel, Walk, channel_of, sends, takes
from paceline.core.schedules.passes import Pass, passes
from paceline.data.source import Reader
from paceline.engines.arithmetic.common import Snapshots
from paceline.engines.arithmetic.execute import execute
from paceline.engines.outcome import Snapshot
from paceline.engines.setup import Setup
from paceline.gradients.payload import GradientSum, Payload
from paceline.links.mailbox import bytes_of
from paceline.splits.planning import run_together
from paceline.splits.slicing import assembled, sliced
from paceline.splits.stages import SplitStages
from paceline.stages.blueprint import skeleton
from paceline.stages.segment import Message, Segment

#: One segment for each replica and place inside: the workers that do the same work of the table.
Team = list[list[Segment]]


class StageUpdate(NamedTuple):
    """An update of one stage, which made its next version."""

    stage: int
    update: int
    sums: GradientSum


class StagedPipeline:
    """The segments of all workers, and the messages between them."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots = setup, Snapshots(setup, self.values)
        assert setup.blueprint is not None
        assert setup.pipeline is not None
        self.blueprint, self.spread = setup.blueprint, setup.pipeline.spread
        self.collective = self.spread.collective
        self.reader = Reader(setup.source, setup.order(), 0, lambda _: None)
        #: By the place along the axis `layers`.
        self.teams = [
            [
                [self._segment(worker, mine, place) for place in range(self.spread.inside)]
                for _ in range(self.spread.data)
            ]
            for worker, mine in enumerate(self.blueprint.holdings(setup.module))
        ]
        #: Messages that were sent and not yet received, by replica; each is those of all places.
        self.in_flight: dict[tuple[int, Channel], deque[list[Message]]] = defaultdict(deque)
        #: The bytes of the message that was sent last.
        self.sent = 0
        #: The squared norm of the gradient that all segments agree on, and how many have yet to read it.
        self.squares, self.readers_left = 0.0, 0
        #: Snapshots that not every stage has reached, by their number of updates.
        self.drafts: dict[int, dict[str, Tensor]] = defaultdict(dict)

    def _segment(self, worker: int, names: list[str], place: int) -> Segment:
        setup, module = self.setup, skeleton(self.setup.module, names)
        if self.spread.inside == 1:
            return Segment(worker, setup.job, module, self.blueprint, self.reader)
        module = sliced(module, self.blueprint.stored, place)
        inside = SplitStages(module, self.blueprint, place)
        return Segment(worker, setup.job, module, self.blueprint, self.reader, inside)

    def passes(self, stop: int | None = None) -> Iterator[list[tuple[Pass, Table]]]:
        """Yield what replicas run together, up to an update: a table for each, when every segment has begun it."""
        pipeline = self.setup.pipeline
        assert pipeline is not None
        span, agenda, data = pipeline.schedule.span, self.setup.agenda, self.spread.data
        for together in zip(*(passes(span, agenda, 0, stop, d, data) for d in range(data)), strict=True):
            for team in self.teams:
                for passing, replica in zip(together, team, strict=True):
                    for segment in replica:
                        segment.begin(passing)
            yield [(passing, self.setup.table(passing.counts)) for passing in together]

    def do(self, replica: int, worker: int, work: Work) -> list[GradientSum]:
        """Run a piece of one replica's table; an update returns the sums of each replica.

        All-reduces and updates are those of all replicas; the last one comes to them when all others have.
        """
        team = self.teams[worker]
        if work.what in (ALL_REDUCE, UPDATE):
            if replica + 1 < len(team):
                return []
            if work.what == UPDATE:
                self._add_up(team, work.stage)
                return [sums for each in team if (sums := self._together(each, work)) is not None]
            self._agree(team)
        elif sends(work):
            messages = [each.fetch(work) for each in team[replica]]
            self.in_flight[replica, channel_of(work)].append(messages)
            self.sent = bytes_of(messages[0])
        elif takes(work):
            messages = self.in_flight[replica, channel_of(work)].popleft()
            for segment, message in zip(team[replica], messages, strict=True):
                segment.hand(work, message)
        else:
            self._together(team[replica], work)
        return []

    def _together(self, segments: Sequence[Segment], work: Work) -> GradientSum | None:
        """Let the workers that share a stage do a piece of work."""
        return run_together([segment.do(work) for segment in segments], self.blueprint.carries_chance)[0]

    def _add_up(self, team: Team, number: int) -> None:
        """Add the gradient of a stage up over all replicas, as their workers do."""
        if self.spread.data == 1 or team[0][0].stages[number].summed is not None:
            return
        for place in range(self.spread.inside):
            stages = [replica[place].stages[number] for replica in team]
            shares = [stage.share() for stage in stages]
            layout = team[0][place].layout(number)
            flats = [torch.zeros(Payload.length(layout), dtype=layout.dtype) for _ in stages]
            payloads = [Payload(layout, flat) for flat in flats]
            for payload, share in zip(payloads, shares, strict=True):
                payload.write(share)
            execute(self.collective, flats)
            for stage, payload, share in zip(stages, payloads, shares, strict=True):
                stage.settle(payload.read(share.samples))

    def _agree(self, team: Team) -> None:
        """Give a worker the squared norm of the whole gradient, which is complete when the first one asks."""
        if not self.readers_left:
            for each in self.teams:
                for number in each[0][0].stages:
                    self._add_up(each, number)
            self.squares, self.readers_left = sum(each[0][0].squares() for each in self.teams), len(self.teams)
        for replica in team:
            replica[0].squares()
            replica[0].agree(self.squares)
        self.readers_left -= 1

    def replay(self, stop: int | None) -> Iterator[StageUpdate]:
        """Make every version up to that of `stop` updates."""
        for together in self.passes(stop):
            for replica, (passing, table) in enumerate(together):
                for worker, work in Walk(table):
                    for sums in self.do(replica, worker, work)[:1]:
                        yield StageUpdate(work.stage, passing.first + work.version - 1, sums)

    @property
    def stage_to_worker(self) -> tuple[int, ...]:
        return self.blueprint.stage_to_worker

    def finite(self, done: StageUpdate) -> bool:
        """Return whether the stage as it is now, and the loss that led to it, are finite."""
        values = self._named(done.stage).values()
        return math.isfinite(done.sums.loss) and all(bool(value.isfinite().all()) for value in values)

    def keep_snapshot(self, done: StageUpdate, seconds: float) -> None:
        """Keep the stage as it is after this update, if a snapshot is due; the last stage completes the snapshot."""
        updates = done.update + 1
        if not self.setup.agenda.reaches(updates, self.setup.snapshots_every):
            return
        draft = self.drafts[updates]
        draft.update(self._named(done.stage))
        if len(draft) == len(self.setup.names):
            del self.drafts[updates]  # or a stage without parameters would complete it again
            values = [draft[name] for name in self.setup.names]
            self.snapshots.kept.append(Snapshot(updates, seconds, lambda: values))

    def values(self) -> list[Tensor]:
        found: dict[str, Tensor] = {}
        for stage in range(len(self.stage_to_worker)):
            found |= self._named(stage)
        return [found[name] for name in self.setup.names]

    def _named(self, stage: int) -> dict[str, Tensor]:
        """Return copies of a stage's newest parameters and its moving buffers, whole, by name."""
        places = self.teams[self.stage_to_worker[stage]][0]
        parts = [dict(segment.named(stage)) for segment in places]
        stored, shapes = self.blueprint.stored, self.blueprint.shapes
        return {
            name: assembled([each[name] for each in parts], stored.get(name), shapes.get(name, ())) for name in parts[0]
        }
