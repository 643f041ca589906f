"""Plans whose workers hold stages of the model: all segments in one process, told what to do in an order that every
worker's program allows. Whatever that order, the bits are the same.
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
from paceline.engines.outcome import Snapshot
from paceline.engines.setup import Setup
from paceline.stages.segment import Message, Segment, skeleton
from paceline.stages.stage import Sums


class Done(NamedTuple):
    """A version of a stage was made."""

    stage: int
    update: int
    sums: Sums


class StagedPipeline:
    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots = setup, list[Snapshot]()
        plan = setup.blueprint
        assert plan is not None
        self.segments = []
        reader = Reader(setup.source, setup.order(), 0, lambda _: None)
        for worker, mine in enumerate(plan.holdings(setup.module)):
            self.segments.append(Segment(worker, setup.job, skeleton(setup.module, mine), plan, reader))
        self.lying: dict[Channel, deque[Message]] = defaultdict(deque)
        self.squares, self.leaving = 0.0, 0  # of the meeting that is on, and who is still there
        self.drafts: dict[int, dict[str, Tensor]] = defaultdict(dict)  # by updates: of stages that are so far

    def passes(self, stop: int | None = None) -> Iterator[tuple[Pass, Table]]:
        """One table after the other, up to an update; each begun."""
        pipeline = self.setup.pipeline
        assert pipeline is not None
        for passing in passes(pipeline.schedule.span, self.setup.agenda, stop=stop):
            table = self.setup.table(passing.counts)
            for segment in self.segments:
                segment.begin(passing)
            yield passing, table

    def do(self, worker: int, work: Work) -> Sums | None:
        segment = self.segments[worker]
        if sends(work):
            self.lying[channel_of(work)].append(segment.fetch(work))
        elif takes(work):
            segment.hand(work, self.lying[channel_of(work)].popleft())
        elif work.what == ALL_REDUCE:
            self._meet(segment)
        else:
            return segment.do(work)
        return None

    def _meet(self, segment: Segment) -> None:
        """All have come when the first goes on."""
        if not self.leaving:
            self.squares, self.leaving = sum(s.squares() for s in self.segments), len(self.segments)
        segment.agree(self.squares)
        self.leaving -= 1

    def play(self, stop: int | None) -> Iterator[Done]:
        """Make every version up to that of `stop` updates."""
        for passing, table in self.passes(stop):
            for worker, work in Walk(table):
                sums = self.do(worker, work)
                if sums is not None:
                    yield Done(work.stage, passing.first + work.version - 1, sums)

    @property
    def stage_to_worker(self) -> tuple[int, ...]:
        assert self.setup.blueprint is not None
        return self.setup.blueprint.stage_to_worker

    def finite(self, done: Done) -> bool:
        """The stage as it is now, and the loss that led there."""
        segment = self.segments[self.stage_to_worker[done.stage]]
        return math.isfinite(done.sums.loss) and all(bool(v.isfinite().all()) for _, v in segment.named(done.stage))

    def look(self, done: Done, seconds: float) -> None:
        """A snapshot, where it is time to: each stage as it is after that update, the last to come completes it."""
        updates = done.update + 1
        if not self.setup.agenda.reaches(updates, self.setup.snapshots_every):
            return
        draft, segment = self.drafts[updates], self.segments[self.stage_to_worker[done.stage]]
        draft.update({n: v.clone() for n, v in segment.named(done.stage)})
        if len(draft) == len(self.setup.names):
            del self.drafts[updates]  # or a stage without parameters would complete it again
            values = [draft[name] for name in self.setup.names]
            self.snapshots.append(Snapshot(updates, seconds, lambda: values))

    def values(self) -> list[Tensor]:
        found = {name: value for s in self.segments for stage in s.stages for name, value in s.named(stage)}
        return [found[name].clone() for name in self.setup.names]
