"""All segments of a pipeline in one process. Their work runs in an order that every worker's program allows.

The bits do not depend on which of these orders it is.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from paceline.core.schedules import ALL_REDUCE, Table, Work
from paceline.core.schedules.clock import Channel, Walk, channel_of, sends, takes
from paceline.core.schedules.passes import Pass, passes
from paceline.data.source import Reader
from paceline.engines.arithmetic.common import Snapshots
from paceline.engines.outcome import Snapshot
from paceline.engines.setup import Setup
from paceline.stages.segment import Message, Segment, skeleton
from paceline.stages.stage import Sums


class StageUpdate(NamedTuple):
    """An update of one stage, which made its next version."""

    stage: int
    update: int
    sums: Sums


class StagedPipeline:
    """The segments of all workers, and the messages between them."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots = setup, Snapshots(setup, self.values)
        blueprint = setup.blueprint
        assert blueprint is not None
        self.segments = []
        reader = Reader(setup.source, setup.order(), 0, lambda _: None)
        for worker, mine in enumerate(blueprint.holdings(setup.module)):
            self.segments.append(Segment(worker, setup.job, skeleton(setup.module, mine), blueprint, reader))
        #: Messages that were sent and not yet received.
        self.in_flight: dict[Channel, deque[Message]] = defaultdict(deque)
        #: The squared norm of the gradient that all segments agree on, and how many have yet to read it.
        self.squares, self.readers_left = 0.0, 0
        #: Snapshots that not every stage has reached, by their number of updates.
        self.drafts: dict[int, dict[str, Tensor]] = defaultdict(dict)

    def passes(self, stop: int | None = None) -> Iterator[tuple[Pass, Table]]:
        """Yield one table after another, up to an update, when every segment has begun it."""
        pipeline = self.setup.pipeline
        assert pipeline is not None
        for passing in passes(pipeline.schedule.span, self.setup.agenda, stop=stop):
            table = self.setup.table(passing.counts)
            for segment in self.segments:
                segment.begin(passing)
            yield passing, table

    def do(self, worker: int, work: Work) -> Sums | None:
        """Run a piece of one worker's work; an update returns its loss."""
        segment = self.segments[worker]
        if sends(work):
            self.in_flight[channel_of(work)].append(segment.fetch(work))
        elif takes(work):
            segment.hand(work, self.in_flight[channel_of(work)].popleft())
        elif work.what == ALL_REDUCE:
            self._agree(segment)
        else:
            return segment.do(work)
        return None

    def _agree(self, segment: Segment) -> None:
        """Give a segment the squared norm of the whole gradient, which is complete when the first one asks."""
        if not self.readers_left:
            self.squares, self.readers_left = sum(s.squares() for s in self.segments), len(self.segments)
        segment.agree(self.squares)
        self.readers_left -= 1

    def replay(self, stop: int | None) -> Iterator[StageUpdate]:
        """Make every version up to that of `stop` updates."""
        for passing, table in self.passes(stop):
            for worker, work in Walk(table):
                sums = self.do(worker, work)
                if sums is not None:
                    yield StageUpdate(work.stage, passing.first + work.version - 1, sums)

    @property
    def stage_to_worker(self) -> tuple[int, ...]:
        assert self.setup.blueprint is not None
        return self.setup.blueprint.stage_to_worker

    def finite(self, done: StageUpdate) -> bool:
        """Return whether the stage as it is now, and the loss that led to it, are finite."""
        segment = self.segments[self.stage_to_worker[done.stage]]
        return math.isfinite(done.sums.loss) and all(bool(v.isfinite().all()) for _, v in segment.named(done.stage))

    def keep_snapshot(self, done: StageUpdate, seconds: float) -> None:
        """Keep the stage as it is after this update, if a snapshot is due; the last stage completes the snapshot."""
        updates = done.update + 1
        if not self.setup.agenda.reaches(updates, self.setup.snapshots_every):
            return
        draft, segment = self.drafts[updates], self.segments[self.stage_to_worker[done.stage]]
        draft.update({n: v.clone() for n, v in segment.named(done.stage)})
        if len(draft) == len(self.setup.names):
            del self.drafts[updates]  # or a stage without parameters would complete it again
            values = [draft[name] for name in self.setup.names]
            self.snapshots.kept.append(Snapshot(updates, seconds, lambda: values))

    def values(self) -> list[Tensor]:
        found = {name: value for s in self.segments for stage in s.stages for name, value in s.named(stage)}
        return [found[name].clone() for name in self.setup.names]
