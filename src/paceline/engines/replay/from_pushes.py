"""Replaying a run whose servers were processes of their own: from the pushes that their shards are made of.

Nothing else is sure to be there: a machine that died has taken its workers' rows with it, and clocks of several
machines do not agree. A push tells its batch, its worker, and the version of every shard that its gradient was computed
from. So each gradient is computed again from exactly these versions, and each shard takes the pushes in its order.

    worker 1      pulls version 7 of shard 0 and 9 of shard 1, computes batch 12, makes version 8 of shard 0 and ...
    shard 0       makes version 8 only when every worker that pulled version 7 has done so again

A batch that two workers have computed, since one was taken for dead, may be of one worker on a shard and of the other
on another shard. Then PULL rows tell the versions of the shards that did not take it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from paceline.core.server.actions import Apply
from paceline.core.server.events import Pull, Push
from paceline.engines.arithmetic.servers import ServerArithmetic
from paceline.engines.replay.from_trace import NextUpdate, ReplayedVersion
from paceline.engines.setup import Setup
from paceline.errors import ReplayDiverged
from paceline.runs.trace import Columns, Kind


@dataclass
class Computation:
    """A worker's gradient of one batch."""

    worker: int
    batch: int
    #: For each shard, the version that it was computed from.
    bases: dict[int, int] = field(default_factory=dict)
    #: For each shard that took it, the version that it made.
    makes: dict[int, int] = field(default_factory=dict)
    loss: float = 0.0
    finite: bool = True


class Line:
    """A worker's computations, in the order in which it made them."""

    def __init__(self, computations: list[Computation]) -> None:
        self._ahead = list(reversed(computations))
        self.now: Computation | None = None
        #: Shards that the current computation has not pulled yet, or not pushed to since it was computed.
        self.pulling, self.pushing, self.computed = set[int](), set[int](), True
        #: Shards that the next computation has pulled already: their answer came while others were awaited.
        self.early = set[int]()

    @property
    def after(self) -> Computation | None:
        """The computation after the current one."""
        return self._ahead[-1] if self._ahead else None

    @property
    def due(self) -> list[tuple[int, int]]:
        """What may be pulled now: (shard, version)."""
        if not self.computed and self.now is not None:
            return [(shard, self.now.bases[shard]) for shard in self.pulling]
        taken = self.pushing | self.early
        return [(shard, base) for shard, base in self.after.bases.items() if shard not in taken] if self.after else []

    def pulled(self, shard: int) -> None:
        """Take note that a shard was pulled, of those that were due."""
        if self.computed:
            self.early.add(shard)
        else:
            self.pulling.discard(shard)

    def begin(self) -> None:
        """Turn to the next computation, if the current one was pushed."""
        if self.computed and not self.pushing and self._ahead:
            self.now, self.computed = self._ahead.pop(), False
            self.pulling, self.early = set(self.now.bases) - self.early, set()


class PushReplayer:
    """Replays a plan with servers from the rows of its pushes."""

    def __init__(self, setup: Setup, rows: Columns) -> None:
        self.setup, self.agenda = setup, setup.agenda
        resumed = rows[rows["kind"] == Kind.RESUME]["version"]
        self.versions = [int(v) for v in resumed] if len(resumed) else [0] * len(setup.layout.shards)
        self.sums = ServerArithmetic(setup, self.versions)
        self.last = self.agenda.leases // self.agenda.shares
        made = _computations(rows)
        self.lines = [Line(line) for line in made.values()]
        everything = [each for line in made.values() for each in line]
        #: Computations that still have to pull a version of a shard, by (shard, version).
        self.pulls = Counter(at for each in everything for at in each.bases.items())
        self.by_version = {at: each for each in everything for at in each.makes.items()}
        #: The last version of every shard that these rows tell of: another part of the run may follow.
        self.end = min(max([at for s, at in self.by_version if s == n], default=v) for n, v in enumerate(self.versions))

    @property
    def done(self) -> int:
        return min(self.versions)

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every version up to `until` of every shard. A shard that has to go on for another one is held there."""
        stop, moved = min(self.end, self.last if until is None else until), True
        while moved:
            moved = False
            for line in self.lines:
                for made in self._advance(line, stop):
                    moved = True
                    if made is not None:
                        yield made
        if self.done < stop:
            raise ReplayDiverged(_stuck(self.versions))

    def _advance(self, line: Line, stop: int) -> Iterator[ReplayedVersion | None]:
        """Do what a worker can do now; None stands for a step that makes no version."""
        # 1. Begin with the next batch when the last one was pushed everywhere.
        line.begin()
        now = line.now
        # 2. Pull the versions that the gradient was computed from, while the shards are there.
        for shard in [shard for shard, base in line.due if self.versions[shard] == base]:
            self.sums.pull(Pull(now.worker if now else 0, shard))
            self.pulls[shard, self.versions[shard]] -= 1
            line.pulled(shard)
            yield None
        if now is None or line.pulling:
            return
        # 3. Compute it, once.
        if not line.computed:
            self._compute(now)
            line.computed, line.pushing = True, set(now.makes)
            yield None
        # 4. Push it where it is the next one, and no worker needs the version before any longer.
        for shard in [s for s in line.pushing if self.done < stop and self._next(s, now)]:
            line.pushing.discard(shard)
            if self.versions[shard] == stop:
                self.sums.hold(shard)
            yield self._push(now, shard)

    def next(self, shard: int, until: int) -> NextUpdate:
        """Describe the update that comes next."""
        found = self.by_version[shard, until + 1]
        chunks = [chunk for task in self.agenda.tasks(found.batch) for chunk in self.agenda.task(task)]
        return NextUpdate(chunks, found.worker, found.loss)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()

    def _next(self, shard: int, now: Computation) -> bool:
        at = self.versions[shard]
        return now.makes[shard] == at + 1 and not self.pulls[shard, at]

    def _compute(self, now: Computation) -> None:
        for task in self.agenda.tasks(now.batch):
            computed = self.sums.compute(now.worker, self.agenda.task(task))
            now.finite = now.finite and computed.finite()
            now.loss = computed.loss / computed.weight if computed.weight else math.nan

    def _push(self, now: Computation, shard: int) -> ReplayedVersion:
        action = self.sums.push(Push(now.worker, shard, now.batch))
        assert isinstance(action, Apply)
        self.versions[shard] += 1
        finite = now.finite and all(bool(version.values.isfinite().all()) for version in self.sums.newest(shard))
        return ReplayedVersion(shard, self.versions[shard], finite)


class CentreReplayer:
    """Replays a plan whose workers exchange replicas with a centre, one exchange after another.

    What a worker computes follows from its own last exchange; PULL rows tell from which version it has started.
    """

    def __init__(self, setup: Setup, rows: Columns) -> None:
        self.setup, self.agenda = setup, setup.agenda
        resumed = rows[rows["kind"] == Kind.RESUME]["version"]
        self.versions = [int(resumed[0]) if len(resumed) else 0]
        self.sums = ServerArithmetic(setup, self.versions)
        self.last = self.agenda.leases
        valid = {int(row["version"]): row for row in rows[rows["kind"] == Kind.APPLY]}
        #: The worker and the batch of each version, and the workers that start from it.
        self.exchanges = {version: (int(row["worker"]), int(row["update"])) for version, row in valid.items()}
        self.joins: dict[int, list[int]] = {}
        made = set(self.exchanges.values())
        for row in rows[rows["kind"] == Kind.PULL]:
            if (int(row["worker"]), int(row["update"])) in made:
                self.joins.setdefault(int(row["base"]), []).append(int(row["worker"]))

    @property
    def done(self) -> int:
        return self.versions[0]

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every version up to `until`."""
        stop = self.last if until is None else until
        while True:
            for worker in self.joins.pop(self.done, []):
                self.sums.pull(Pull(worker, 0))
            if self.done >= stop or self.done + 1 not in self.exchanges:
                return
            worker, batch = self.exchanges[self.done + 1]
            finite = True
            for task in self.agenda.tasks(batch):
                finite = self.sums.compute(worker, self.agenda.task(task)).finite() and finite
            self.sums.push(Push(worker, 0, batch))
            self.versions[0] += 1
            finite = finite and all(bool(version.values.isfinite().all()) for version in self.sums.newest(0))
            yield ReplayedVersion(0, self.done, finite)

    def next(self, shard: int, until: int) -> NextUpdate:
        """Describe the update that comes next."""
        worker, batch = self.exchanges[until + 1]
        return NextUpdate(list(self.agenda.task(self.agenda.tasks(batch)[0])), worker, None)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()


class RoundReplayer:
    """Replays a plan whose shard gathers pushes: all pushes of a round were computed from the version before."""

    def __init__(self, setup: Setup, rows: Columns) -> None:
        self.setup, self.agenda = setup, setup.agenda
        resumed = rows[rows["kind"] == Kind.RESUME]["version"]
        self.versions = [int(resumed[0]) if len(resumed) else 0]
        self.sums = ServerArithmetic(setup, self.versions)
        self.last = self.agenda.leases // self.agenda.shares
        # After a lossy change of view a push may have been made again, in another round: the later row is valid.
        valid = {int(row["update"]): row for row in rows[rows["kind"] == Kind.APPLY]}
        self.rounds: dict[int, list[tuple[int, int]]] = {}
        for batch, row in sorted(valid.items()):
            self.rounds.setdefault(int(row["version"]), []).append((batch, int(row["worker"])))

    @property
    def done(self) -> int:
        return self.versions[0]

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every version up to `until`."""
        stop = self.last if until is None else until
        while self.done < stop and len(self.rounds.get(self.done + 1, [])) == self.agenda.shares:
            finite = True
            for batch, worker in self.rounds[self.done + 1]:
                self.sums.pull(Pull(worker, 0))
                finite = self.sums.compute(worker, self.agenda.task(batch)).finite() and finite
                self.sums.push(Push(worker, 0, batch))
            self.versions[0] += 1
            finite = finite and all(bool(version.values.isfinite().all()) for version in self.sums.newest(0))
            yield ReplayedVersion(0, self.done, finite)

    def next(self, shard: int, until: int) -> NextUpdate:
        """Describe the update that comes next."""
        found = self.rounds[until + 1]
        return NextUpdate([chunk for batch, _ in found for chunk in self.agenda.task(batch)], found[0][1], None)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()


def _computations(rows: Columns) -> dict[int, list[Computation]]:
    """Return each worker's computations, in the order in which it made them.

    Where the servers had lost versions that the trace tells of already, these are there twice; the later row is valid.
    """
    found: dict[tuple[int, int], Computation] = {}
    applied = rows[rows["kind"] == Kind.APPLY]
    valid = {(int(row["shard"]), int(row["version"])): row for row in applied}.values()
    made = {(int(row["worker"]), int(row["update"])) for row in valid}
    for row in (*rows[rows["kind"] == Kind.PULL], *valid):
        key = int(row["worker"]), int(row["update"])
        if key not in made:
            continue
        each = found.setdefault(key, Computation(*key))
        each.bases[int(row["shard"])] = int(row["base"])
        if row["kind"] == Kind.APPLY:
            each.makes[int(row["shard"])] = int(row["version"])
    lines: dict[int, list[Computation]] = {}
    for each in found.values():
        lines.setdefault(each.worker, []).append(each)
    for line in lines.values():  # what a worker holds only grows, and each push adds to it
        line.sort(key=lambda each: sum(each.bases.values()))
    return lines


def _stuck(versions: list[int]) -> str:
    shown = ", ".join(f"{version} of shard {shard}" for shard, version in enumerate(versions))
    return (
        f"the replay cannot go on after version {shown}: a gradient was computed from a version that was lost with its "
        "servers, and that no shard has"
    )
