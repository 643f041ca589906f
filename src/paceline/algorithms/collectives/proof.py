"""Proof of a collective's table before a process starts.

The table is executed with symbols: a segment is the set of workers whose contribution is in it. Proved are

- no worker waits for ever: every offer has its taker in the same step and the other way round, so at each step all
  waits are for the step's own offers, which need nothing of that step;
- nothing is overwritten while it may still be read: a worker that writes a segment it offered knows, from what it has
  received since, that the taker is done with it;
- at the end every worker has every contribution exactly once;
- of a canonical sum, every addition is that of the two halves of a subtree: here contributions are chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from paceline.algorithms.collectives import Collective, Part, Step, table_rounds
from paceline.algorithms.collectives.canonical import Canonical, ChunkRange, join
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.errors import PlanError


def prove(collective: Collective, workers: int) -> int:
    """Raise PlanError with the first fault; otherwise return the number of steps."""
    symbols = _Symbols(collective, workers)
    readers = _Readers(symbols.name, workers)
    tables = [list(collective.steps(worker, workers)) for worker in range(workers)]
    for number, row in enumerate(zip_longest(*tables)):
        if None in row:
            raise PlanError(f"{symbols.name}: step {number} is missing for worker {row.index(None)} of {workers}")
        _every_offer_is_taken(symbols.name, number, row)
        readers.step(number, row)
        symbols.step(number, row)
    symbols.check_end()
    return len(tables[0])


class _Symbols:
    """What each segment of each worker is made of: the set of its contributions, a bit for each."""

    def __init__(self, collective: Collective, workers: int) -> None:
        self.name, segments = type(collective).__name__, collective.segments(workers)
        self.workers, self.segments = workers, segments
        #: Of a canonical sum: what contributions are chunks of.
        self.chunks = collective.chunks if isinstance(collective, Canonical) else 0
        self.whole = (1 << (self.chunks or workers)) - 1
        self.masks = [[1 << worker] * segments for worker in range(workers)]
        if isinstance(collective, Canonical):
            lanes = collective.lanes(workers)
            trees = [collective.partial_sums(worker, workers) for worker in range(workers)]
            starts = [[*map(_mask, each), *[0] * (lanes - len(each))] for each in trees]
            self.masks = [[mask for mask in each for _ in range(segments)] for each in starts]

    def step(self, number: int, row: Sequence[Step]) -> None:
        """Make the steps of one row."""
        offered = [
            [] if s.receive is None else self.masks[s.receive.other][s.receive.first : s.receive.stop] for s in row
        ]
        for worker, (step, received) in enumerate(zip(row, offered, strict=True)):
            for segment, contributions in enumerate(received, start=step.written.first if step.receive else 0):
                mine, where = self.masks[worker][segment], f"in step {number} worker {worker}"
                if not contributions:
                    raise PlanError(f"{self.name}: {where} takes what holds nothing for segment {segment}")
                if step.reduce and mine & contributions:
                    twice = self._names(mine & contributions)
                    raise PlanError(f"{self.name}: {where} adds {twice} twice to segment {segment}")
                if step.reduce and self.chunks and not join(_run(mine), _run(contributions), self.chunks):
                    raise PlanError(
                        f"{self.name}: {where} adds {self._names(contributions)} to {self._names(mine) or 'nothing'} "
                        f"in segment {segment}, which are not the two halves of a subtree"
                    )
                self.masks[worker][segment] = mine | contributions if step.reduce else contributions

    def check_end(self) -> None:
        """Raise unless every worker has the whole sum in its first lane."""
        for worker, mine in enumerate(self.masks):
            for segment, contributions in enumerate(mine[: self.segments]):
                if contributions != self.whole:
                    raise PlanError(
                        f"{self.name}: worker {worker} of {self.workers} ends with segment {segment} made of "
                        f"{self._names(contributions)} instead of one contribution of each"
                    )

    def _names(self, contributions: int) -> str:
        what = "chunk" if self.chunks else "worker"
        return ", ".join(f"{what} {n}" for n in range(contributions.bit_length()) if contributions >> n & 1)


def _mask(run: ChunkRange) -> int:
    return (1 << run.stop) - (1 << run.first)


def _run(mask: int) -> ChunkRange:
    """Return the run of these contributions, which are neighbours in all that `join` has let pass."""
    first = (mask & -mask).bit_length() - 1
    return ChunkRange(first, mask.bit_length())


def prove_mixing(collective: Neighbours, workers: int) -> int:
    """Prove that offers match, that weights keep the mean, and that every worker's values reach all others."""
    name, rows = type(collective).__name__, [dict(collective.weights(worker, workers)) for worker in range(workers)]
    tables = [list(collective.steps(worker, workers)) for worker in range(workers)]
    for number, row in enumerate(zip(*tables, strict=True)):
        _every_offer_is_taken(name, number, row)
    for worker, weights in enumerate(rows):
        sent = {step.receive.other for step in tables[worker] if step.receive is not None}
        if sent != set(weights) - {worker}:
            raise PlanError(f"{name}: worker {worker} is sent {sorted(sent)} and mixes {sorted(weights)}")
        for what, total in (("row", sum(weights.values())), ("column", sum(w.get(worker, 0.0) for w in rows))):
            if abs(total - 1) > 1e-12:
                raise PlanError(f"{name}: the weights of {what} {worker} sum to {total}: mixing would move the mean")
    reached = {0}
    for _ in range(workers):
        reached |= {worker for worker, weights in enumerate(rows) if reached & set(weights)}
    if len(reached) < workers:
        raise PlanError(f"{name}: nothing that worker 0 sends ever reaches worker {min(set(range(workers)) - reached)}")
    return len(tables[0])


def _every_offer_is_taken(name: str, number: int, row: Sequence[Step]) -> None:
    for worker, step in enumerate(row):
        for mine, theirs, waits in ((step.receive, "send", "waits for"), (step.send, "receive", "offers")):
            if mine is None or mine.other == worker:
                continue
            answer: Part | None = getattr(row[mine.other], theirs)
            if answer != Part(worker, mine.first, mine.stop):
                does = "does nothing of the kind" if answer is None else f"says {theirs} {_describe(answer)}"
                raise PlanError(
                    f"{name}: in step {number} worker {worker} {waits} {_describe(mine)}, who {does}: it waits for ever"
                )


def _describe(part: Part) -> str:
    return f"segments {part.first} to {part.stop - 1} with worker {part.other}"


class _Readers:
    """Tracks which parts may still be read, by what each worker knows of the others' progress (a vector clock)."""

    def __init__(self, name: str, workers: int) -> None:
        self.name = name
        self.known = [[0] * workers for _ in range(workers)]  # steps that others have completed, as each worker knows
        self.offers: list[list[tuple[int, Part]]] = [[] for _ in range(workers)]  # (step, to whom what)

    def step(self, number: int, row: Sequence[Step]) -> None:
        before = [list(steps) for steps in self.known]
        for worker, step in enumerate(row):
            if step.send is not None:
                self.offers[worker].append((number, step.send))
            if step.receive is not None:
                # What arrives was sent after all that its sender had done and knew by then.
                self.known[worker] = list(map(max, self.known[worker], before[step.receive.other]))
                self._check(worker, number, step.written)
        for worker in range(len(row)):
            self.known[worker][worker] = number + 1

    def _check(self, worker: int, number: int, written: Part) -> None:
        clock = self.known[worker]
        # Whoever has completed the step of an offer has read it.
        self.offers[worker] = [(when, part) for when, part in self.offers[worker] if clock[part.other] <= when]
        for when, part in self.offers[worker]:
            if part.first < written.stop and written.first < part.stop:
                raise PlanError(
                    f"{self.name}: in step {number} worker {worker} writes segments {written.first} to "
                    f"{written.stop - 1}, which worker {part.other} may still be reading since step {when}"
                )


def has_its_rounds(collective: Collective, workers: int) -> bool:
    """Whether the closed form agrees with the table in every step on who takes how much from whom."""
    closed = (each._replace(steps=1) for each in collective.rounds(workers) for _ in range(each.steps))
    return all(
        mine is not None and theirs is not None and list(map(list, mine[1:])) == list(map(list, theirs[1:]))
        for mine, theirs in zip_longest(closed, table_rounds(collective, workers))
    )
