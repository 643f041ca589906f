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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import prod
from typing import NamedTuple, Protocol

from paceline.errors import PlanError

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


# The operations of a model's graph, as splits see them: shapes and names, without tensors.

Shape = tuple[int, ...]


class Held(NamedTuple):
    """A parameter or a buffer of an operation's module."""

    role: str  # its name in the module, such as "weight"
    name: str  # its name in the model
    shape: Shape
    #: Whether training changes it by its gradient; not so a buffer, or a parameter that is frozen.
    trained: bool = True


@dataclass(frozen=True)
class SplitNode:
    """One operation of the graph."""

    name: str
    #: What it computes, as far as splits care: "linear", "elementwise", "reshape", ...; "read" where it only reads a
    #: parameter by name; "any" for what is not known.
    kind: str
    #: The values that it takes, and the shape of each; None where it is not a tensor.
    takes: tuple[str, ...] = ()
    shapes: tuple[Shape | None, ...] = ()
    #: The shape of what it makes; None where that is not a tensor.
    shape: Shape | None = None
    held: tuple[Held, ...] = ()
    #: The module that it is, as users name it; empty for a function.
    layer: str = ""
    #: What else its kind needs to know, such as the dimensions of a reduction.
    facts: Mapping[str, object] = field(default_factory=dict)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a fact that is some whole numbers."""
        values = self.facts.get(name, ())
        assert isinstance(values, tuple)
        return values

    def shape_of(self, role: str) -> Shape:
        return next(each.shape for each in self.held if each.role == role)


class Layout(NamedTuple):
    """How everything around an operation is placed."""

    #: Of each value that it takes; what is not a tensor is always whole.
    takes: tuple[Placement, ...]
    gives: Placement
    #: Of its parameters and buffers while it computes, by role; whole where a role is missing.
    uses: Mapping[str, Placement]


class Split(Protocol):
    """One way to split a layer over the workers of a group. One class per way."""

    @property
    def name(self) -> str:
        """The word that users write."""

    def refusal(self, node: SplitNode, workers: int) -> str:
        """Return why this operation cannot be split so; an empty string if it can."""

    def layout(self, node: SplitNode, workers: int) -> Layout:
        """Return how what the operation takes, gives and holds is placed."""


# Cutting a run of pieces into stages so that the most expensive stage is as cheap as possible.
# Also called the linear partition problem; solved by the textbook's dynamic programme, O(pieces^2 x stages). The cost
# of a stage is the sum of its pieces' and of what it costs to cut where it begins.


def balanced(
    pieces: Sequence[float], stages: int, cut: Sequence[float], required: Sequence[bool] = ()
) -> tuple[int, ...]:
    """Return where stages begin, except the first; () where the pieces cannot make so many stages.

    `cut` is the cost of a cut before each piece, infinite where there cannot be one. Every stage has at least one of
    the `wanted` pieces; by default any will do.
    """
    sums = [0.0, *accumulate(pieces)]
    count = len(pieces)
    met = [0, *accumulate(required or [True] * count)]

    @cache
    def best(first: int, remaining: int) -> tuple[float, tuple[int, ...]]:
        """Return the cost of the most expensive of `left` stages from `first` on, and where the later ones begin."""
        enters = cut[first] if first else 0.0
        if remaining == 1:
            return (sums[count] - sums[first] + enters if met[count] > met[first] else math.inf), ()
        choice: tuple[float, tuple[int, ...]] = (math.inf, ())
        for place in range(first + 1, count - remaining + 2):
            if math.isinf(cut[place]) or met[place] == met[first]:
                continue
            mine = sums[place] - sums[first] + enters
            if mine >= choice[0]:
                break
            mine += cut[place]
            rest, places = best(place, remaining - 1)
            if max(mine, rest) < choice[0]:
                choice = max(mine, rest), (place, *places)
        return choice

    return best(0, stages)[1]


@dataclass(frozen=True)
class Mesh:
    """A mesh: workers as coordinates on named axes, and the groups along each axis.

        data=2 x inside=3      inside 0   inside 1   inside 2
        data 0                 worker 0   worker 1   worker 2       a group along `inside`
        data 1                 worker 3   worker 4   worker 5       the same
                               |
                               a group along `data`: workers 0 and 3

    The last axis varies fastest, so its groups are neighbouring workers. PyTorch's DeviceMesh numbers ranks in the same
    way.

    Named axes with the number of workers along each.
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) < len(names) or any(size < 1 for _, size in self.axes):
            raise PlanError(f"a mesh has distinct axes of at least one worker each, not {self}")

    @property
    def workers(self) -> int:
        return prod(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """Return the number of workers along an axis; 1 for an axis that the mesh lacks."""
        return dict(self.axes).get(axis, 1)

    def coordinate(self, worker: int, axis: str) -> int:
        """Return where a worker lies along an axis; 0 for an axis that the mesh lacks."""
        return worker // self._stride(axis) % self.size(axis)

    def group(self, worker: int, axis: str) -> tuple[int, ...]:
        """Return the workers that differ from this one along the axis alone, in the order of the axis."""
        stride = self._stride(axis)
        first = worker - self.coordinate(worker, axis) * stride
        return tuple(first + place * stride for place in range(self.size(axis)))

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """Return all groups along an axis; every worker is in exactly one of them."""
        return sorted({self.group(worker, axis) for worker in range(self.workers)})

    def _stride(self, axis: str) -> int:
        """Return by how much the numbers of two neighbours along an axis differ."""
        names = [name for name, _ in self.axes]
        return prod(size for _, size in self.axes[names.index(axis) + 1 :]) if axis in names else 1

    def __str__(self) -> str:
        return " x ".join(f"{name}={size}" for name, size in self.axes)
