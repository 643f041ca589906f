"""How a value that lies on a group's workers gets to where it is needed: operations that follow, and what travels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from paceline.algorithms.splits import COPIED, FLAT, WHOLE, Box, Cut, Layout, Placement, Shape, SplitNode, even
from paceline.errors import PlanError

# How operations without a choice of their own follow the placement of what they take.
# An operation that computes every number along a dimension on its own leaves a cut of that dimension as it is: a `relu`
# of a worker's channels is that worker's part of the `relu`. Everything else is computed whole, by every worker: so any
# model can be split, and what is not known here costs a gather and is never wrong.
#
#     kind             keeps a cut of
#     --------------   ------------------------------------------------------------------------
#     elementwise      any dimension; what has size 1 there, or lacks it, is taken as it is
#     dropout          any dimension
#     batch_norm       the channels; a cut of the samples is exchanged for one of the channels
#     layer_norm       any dimension that is not normalised
#     along            any dimension but those it works along: softmax, means, sums
#     channelwise      samples and channels: pooling
#     batched          all dimensions but the last two: products of matrices
#     permute          any dimension, which then has another number
#     reshape          a dimension that the new shape keeps, merges with later ones, or cuts at the same bounds
#     first            the first of several results

Follow = Callable[[SplitNode, Sequence[Placement], int], Layout | None]


def follow(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout:
    """Return how an operation is placed whose values were made in these placements."""
    placements = [placed.own for placed in placements]
    rule = RULES.get(node.kind)
    layout = rule(node, placements, workers) if rule is not None and node.shape is not None else None
    return layout or Layout((WHOLE,) * len(node.takes), WHOLE, {})


def _elementwise(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    leads = next((n for n, each in enumerate(placements) if each.is_split and node.shapes[n] is not None), None)
    if leads is None:
        return None
    shape, mine = node.shape, node.shapes[leads]
    assert shape is not None
    assert mine is not None
    moved = _shifted(placements[leads].cuts, len(shape) - len(mine))
    if any(shape[cut.dim] != cut.bounds[-1] for cut in moved):
        return None  # it was stretched along the cut
    takes = []
    for other in node.shapes:
        cuts = [] if other is None else _shifted(moved, len(other) - len(shape))
        valid_cuts = tuple(cut for cut in cuts if cut.dim >= 0 and other is not None and other[cut.dim] != 1)
        if valid_cuts and len(valid_cuts) < len(moved):
            return None  # several workers of a grid would use the same part of it, and its gradient be their sum
        takes.append(WHOLE if other is None else Placement("split", valid_cuts) if valid_cuts else COPIED)
    return Layout(tuple(takes), Placement("split", moved), {})


def _shifted(cuts: Sequence[Cut], by: int) -> tuple[Cut, ...]:
    return tuple(cut._replace(dim=cut.dim + by) for cut in cuts)


def _alike(node: SplitNode, placements: Sequence[Placement], keeps: Callable[[int], bool]) -> Layout | None:
    """Keep cuts of dimensions that the operation leaves as they are."""
    placed = placements[0]
    if not placed.is_split or not all(keeps(cut.dim) for cut in placed.cuts):
        return None
    rest = (WHOLE,) * (len(node.takes) - 1)
    return Layout((placed, *rest), placed, {parameter.role: COPIED for parameter in node.held})


def _dropout(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    return _alike(node, placements, lambda dim: True)


def _batch_norm(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    assert node.shape is not None
    if not placements[0].is_split or (channels := node.shape[1]) < workers:
        return None
    cut = placements[0].cut(1)
    if cut is None or len(placements[0].cuts) > 1:
        cut = Cut(1, even(channels, workers))
    of_channels = Placement("split", (cut._replace(dim=0),))
    placed = Placement("split", (cut,))
    return Layout((placed,), placed, {parameter.role: of_channels for parameter in node.held if parameter.shape})


def _layer_norm(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    assert node.shape is not None
    (last,) = node.numbers("normalised")
    leading = len(node.shape) - last
    return _alike(node, placements, lambda dim: dim < leading)


def _channelwise(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    return _alike(node, placements, lambda dim: dim < 2)


def _along(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    """Follow an operation along some dimensions, which it may remove."""
    (before,), dims = node.shapes[:1], node.numbers("along")
    assert before is not None
    layout = _alike(node, placements, lambda dim: dim not in dims)
    if layout is None or node.shape is None or len(node.shape) == len(before):
        return layout
    after = tuple(cut._replace(dim=cut.dim - sum(dim < cut.dim for dim in dims)) for cut in layout.gives.cuts)
    return layout._replace(gives=Placement("split", after))


def _batched(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    shapes = [shape for shape in node.shapes if shape is not None]
    placed = next((each for each in placements if each.is_split), WHOLE)
    together = len({len(shape) for shape in shapes}) == 1 and len(shapes) == len(node.shapes)
    leading = len(shapes[0]) - 2
    if not placed.is_split or not together or any(cut.dim >= leading for cut in placed.cuts):
        return None
    takes = []
    for shape in shapes:
        sizes = {(shape[cut.dim] == cut.bounds[-1], shape[cut.dim] == 1) for cut in placed.cuts}
        if len(sizes) > 1 or sizes == {(False, False)}:
            return None
        takes.append(placed if sizes.pop()[0] else COPIED)  # a mask for all heads has size 1 there
    return Layout(tuple(takes), placed, {})


def _permute(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    order = node.numbers("order")
    layout = _alike(node, placements, lambda dim: True)
    if layout is None:
        return None
    after = tuple(cut._replace(dim=order.index(cut.dim)) for cut in layout.gives.cuts)
    return layout._replace(gives=Placement("split", after))


def _reshape(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    before, after = node.shapes[0], node.shape
    layout = _alike(node, placements, lambda dim: True)
    if layout is None or before is None or after is None:
        return None
    cuts = [_reshaped(cut, before, after) for cut in layout.gives.cuts]
    if any(cut is None for cut in cuts):
        return None
    return layout._replace(gives=Placement("split", tuple(cut for cut in cuts if cut is not None)))


def _reshaped(cut: Cut, before: Shape, after: Shape) -> Cut | None:
    """Return the cut of the new shape with the same numbers in each part, if there is one."""
    ahead = prod(before[: cut.dim])
    for dim, size in enumerate(after):
        if prod(after[:dim]) != ahead or size == 1:
            continue
        extent = before[cut.dim]
        if size % extent == 0:  # merged with what comes later
            return Cut(dim, tuple(bound * (size // extent) for bound in cut.bounds), cut.stride)
        step = extent // size
        if extent % size == 0 and all(bound % step == 0 for bound in cut.bounds):
            return Cut(dim, tuple(bound // step for bound in cut.bounds), cut.stride)
        return None
    return None


def _first(node: SplitNode, placements: Sequence[Placement], workers: int) -> Layout | None:
    """Follow what picks one of several results, of which a split layer gives the first."""
    return Layout((placements[0],), placements[0], {}) if node.numbers("picked") == (0,) else None


RULES: dict[str, Follow] = {
    "elementwise": _elementwise,
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "along": _along,
    "channelwise": _channelwise,
    "batched": _batched,
    "permute": _permute,
    "reshape": _reshape,
    "first": _first,
}


# What travels when a value is placed in one way and wanted in another, and what travels back with its gradient.
#     from -> to          forward                             backward
#     ----------------    --------------------------------    --------------------------------
#     whole -> copied     nothing                             sum of the workers' gradients
#     whole -> split      cut: each worker keeps its part     gather
#     split -> whole      gather of the parts                 cut
#     split -> copied     gather                              scatter
#     partial -> whole    sum of the workers' summands        nothing
#     partial -> copied   sum                                 sum
#     partial -> split    scatter: each part summed once      gather
#     split -> split      exchange, from all to all           exchange
#     with borders ->     trim: each worker drops borders     trim: zeros in their place
#     without, or less
#
# The backward of a movement is the movement from the dual of its target to the dual of its source. Every movement is
# one or two exchanges, in which each worker sends a box of numbers to each other worker of its group and takes one from
# it: with a message between every two workers in every exchange, no worker can be more than one exchange ahead. Where
# workers have borders of their neighbours' parts as well, each sends its own part alone, and what comes back is zero
# there: the gradient of a border is in that of the part.

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
