"""What travels when a value is placed in one way and wanted in another, and what travels back with its gradient.

    from -> to          forward                             backward
    ----------------    --------------------------------    --------------------------------
    whole -> copied     nothing                             sum of the workers' gradients
    whole -> split      cut: each worker keeps its part     gather
    split -> whole      gather of the parts                 cut
    split -> copied     gather                              scatter
    partial -> whole    sum of the workers' summands        nothing
    partial -> copied   sum                                 sum
    partial -> split    scatter: each part summed once      gather
    split -> split      exchange, from all to all           exchange
    with borders ->     trim: each worker drops borders     trim: zeros in their place
    without, or less

The backward of a movement is the movement from the dual of its target to the dual of its source. Every movement is one
or two exchanges, in which each worker sends a box of numbers to each other worker of its group and takes one from it:
with a message between every two workers in every exchange, no worker can be more than one exchange ahead. Where workers
have borders of their neighbours' parts as well, each sends its own part alone, and what comes back is zero there: the
gradient of a border is in that of the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from paceline.algorithms.splits import COPIED, FLAT, WHOLE, Box, Cut, Placement, even
from paceline.errors import PlanError

NOTHING, CUT, GATHER, SUM, SCATTER = "nothing", "cut", "gather", "sum", "scatter"
EXCHANGE, TRIM = "exchange", "trim"


class Movement(NamedTuple):
    """A movement from one placement to another."""

    source: Placement
    target: Placement

    @property
    def kind(self) -> str:
        return kind_of(self.source, self.target)

    @property
    def back(self) -> Movement:
        """The movement of the gradient."""
        return Movement(self.target.dual, self.source.dual)

    @property
    def travels(self) -> bool:
        """Whether anything goes from one worker to another."""
        return self.kind not in (NOTHING, CUT, TRIM)

    def exchanges(self, shape: Sequence[int], workers: int) -> list[AllToAll]:
        """Return the exchanges that the movement is made of."""
        source, target = self.source.own, self.target.own
        match self.kind:
            case "gather" | "exchange":
                return [AllToAll(source, target if self.kind == EXCHANGE else WHOLE, False, tuple(shape), workers)]
            case "scatter":
                return [AllToAll(WHOLE, target, True, tuple(shape), workers)]
            case "sum":
                dealt = Placement("split", (Cut(FLAT, even(prod(shape), workers)),))
                return [
                    AllToAll(WHOLE, dealt, True, tuple(shape), workers),
                    AllToAll(dealt, WHOLE, False, tuple(shape), workers),
                ]
        return []

    def numbers(self, shape: Sequence[int], place: int, workers: int) -> int:
        """Return how many numbers the worker at this place sends."""
        return sum(each.sent(place) for each in self.exchanges(shape, workers))


class AllToAll(NamedTuple):
    """Every worker sends to each other worker what that one wants of what it has."""

    has: Placement
    wants: Placement
    #: Whether what arrives is added up, or put side by side.
    adds: bool
    shape: tuple[int, ...]
    workers: int

    @property
    def extent(self) -> tuple[int, ...]:
        """The shape that boxes refer to: of the tensor, or of its numbers in a row."""
        return self.wants.extent(self.has.extent(self.shape))

    def box(self, sender: int, receiver: int) -> Box:
        """Return what goes from one worker to another, in the coordinates of the whole tensor."""
        extent = self.extent
        return intersection(self.has.box(extent, sender), self.wants.box(extent, receiver))

    def sent(self, place: int) -> int:
        """Return how many numbers a worker sends."""
        return sum(volume(self.box(place, other)) for other in range(self.workers) if other != place)


def kind_of(source: Placement, target: Placement) -> str:
    """Return what has to travel; raise `PlanError` where nothing leads from one placement to the other."""
    if source == target or (source == WHOLE and target == COPIED):
        return NOTHING
    if source.own == target.own:
        kind = TRIM if source.is_split else None
    elif target.kind in ("whole", "copied"):
        kind = {"split": GATHER, "partial": SUM}.get(source.kind)
    elif target.is_split:
        kind = {"whole": CUT, "partial": SCATTER, "split": EXCHANGE}.get(source.kind)
    else:
        kind = None
    if kind is None:
        raise PlanError(f"nothing leads from a value that is {source} to one that is {target}")
    return kind


def intersection(one: Box, other: Box) -> Box:
    """Return the box of what lies in both."""
    ranges = ((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return tuple((first, max(first, stop)) for first, stop in ranges)


def volume(box: Box) -> int:
    """Return how many numbers are in a box."""
    return prod(stop - first for first, stop in box)
