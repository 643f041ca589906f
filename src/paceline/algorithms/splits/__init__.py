"""Splits: which part of the model each worker holds.

    by_depth                           stages, runs of neighbouring pieces, for pipelines
    columns, rows, heads, channels,    inside a layer: a file for each way, which says how what the layer takes, gives
    samples, vocabulary, experts, ...  and holds is placed on the workers of a group
    following                          how operations without a choice of their own follow what they take
    movements                          what travels where a layer wants a value placed otherwise than it was made
    derivation                         all of it for a model: the program that every worker runs
    proof                              that the program never waits for ever and sums right

A value is placed on the P workers of a group in one of four ways. The gradient of a value is placed in the dual way:

    placement   a worker holds                                          its gradient
    ---------   -----------------------------------------------------   -------------------------------------------
    whole       all of it, the same on every worker                     whole
    copied      all of it; each worker computes another part with it    partial: the sum over workers is the gradient
    partial     a summand: the sum over workers is the value            whole
    split       the part of it between two bounds of some dimensions    split in the same way
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

#: In place of a dimension: the tensor's numbers in a row. Only what a worker stores of a parameter is cut so.
FLAT = -1
#: (first, stop) along each dimension.
Box = tuple[tuple[int, int], ...]


class Cut(NamedTuple):
    """One dimension of a tensor cut into parts."""

    dim: int
    #: Where parts begin and end: one number more than there are parts.
    bounds: tuple[int, ...]
    #: The distance between the places of two workers with neighbouring parts.
    stride: int = 1
    #: On a grid, the stride of the other direction, where a worker's part also depends on its position there; else 0.
    skew: int = 0
    #: By how many parts all workers are ahead, as in later steps of Cannon's algorithm.
    turn: int = 0
    #: (first, stop) of what each worker holds, part by part, where neighbouring parts overlap.
    windows: tuple[tuple[int, int], ...] = ()

    def part(self, place: int) -> tuple[int, int]:
        """Return (first, stop) of the part of the worker at this place of its group."""
        number = place // self.stride + (place // self.skew if self.skew else 0) + self.turn
        number %= len(self.bounds) - 1
        return self.windows[number] if self.windows else (self.bounds[number], self.bounds[number + 1])


class Placement(NamedTuple):
    """How a value is placed on the workers of a group."""

    kind: str
    cuts: tuple[Cut, ...] = ()

    @property
    def is_split(self) -> bool:
        return bool(self.cuts)

    @property
    def dual(self) -> Placement:
        """The placement of the value's gradient."""
        return {"whole": WHOLE, "copied": PARTIAL, "partial": WHOLE}.get(self.kind, self)

    @property
    def stored(self) -> Placement:
        """The placement between updates of a parameter that is used in this one."""
        return self if self.is_split else WHOLE

    @property
    def own(self) -> Placement:
        """The same placement without overlaps, so that each number lies with one worker."""
        return self._replace(cuts=tuple(cut._replace(windows=()) for cut in self.cuts))

    def cut(self, dim: int) -> Cut | None:
        """Return how this dimension is cut, if it is."""
        return next((cut for cut in self.cuts if cut.dim == dim), None)

    def box(self, shape: Sequence[int], place: int) -> Box:
        """Return the part of a tensor that the worker at this place holds."""
        cuts = {max(cut.dim, 0): cut.part(place) for cut in self.cuts}
        return tuple(cuts.get(dim, (0, size)) for dim, size in enumerate(self.extent(shape)))

    def extent(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that the placement's dimensions refer to."""
        return (prod(shape),) if self.cuts and self.cuts[0].dim == FLAT else tuple(shape)

    def __str__(self) -> str:
        if not self.is_split:
            return self.kind
        dims = " and ".join("in a row" if cut.dim == FLAT else f"dim {cut.dim}" for cut in self.cuts)
        return f"split({dims}{', with borders' * any(cut.windows for cut in self.cuts)})"


WHOLE, COPIED, PARTIAL = Placement("whole"), Placement("copied"), Placement("partial")


def split(dim: int, bounds: Sequence[int]) -> Placement:
    """Return the placement where one dimension is cut at these bounds."""
    return Placement("split", (Cut(dim, tuple(bounds)),))


def even(length: int, parts: int, unit: int = 1) -> tuple[int, ...]:
    """Return the bounds of parts that differ by one unit at most."""
    units = length // unit
    return tuple(unit * (units * part // parts) for part in range(parts + 1))


def flat(shape: Sequence[int], workers: int) -> Placement:
    """Return the placement of a parameter whose numbers are dealt out in a row."""
    return Placement("split", (Cut(FLAT, even(prod(shape), workers)),))
