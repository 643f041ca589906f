"""Ways to split a layer that are more than a cut: by outputs, by experts, and by strips of an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paceline.algorithms.splits import COPIED, WHOLE, Cut, Layout, Placement, SplitNode, even, split


@dataclass(frozen=True)
class Columns:
    """columns: each worker computes some of a layer's outputs, by their columns of the (transposed) weight matrix.

        y = x W^T + b      W = [W_0; W_1; ...]      worker w computes y_w = x W_w^T + b_w

    Shoeybi et al., "Megatron-LM", 2019, call it column parallel, and it is the first half of their pairs of layers; the
    distribution by neurons of a fully connected net is the same. Every worker needs all of x, and adds a part to its
    gradient. An embedding is split by the columns of its table. Not to be confused with `rows`, which splits what is
    taken.
    """

    name = "columns"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in ("linear", "embedding"):
            return "only linear layers and embeddings have columns"
        return few(outputs(node), "outputs", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        bounds = even(outputs(node), workers)
        assert node.shape is not None
        gives = split(len(node.shape) - 1, bounds)
        if node.kind == "embedding":
            return Layout((WHOLE,), gives, {"weight": split(1, bounds)})
        return Layout((COPIED,), gives, {"weight": split(0, bounds), "bias": split(0, bounds)})


def outputs(node: SplitNode) -> int:
    return node.shape_of("weight")[1 if node.kind == "embedding" else 0]


def few(count: int, what: str, workers: int) -> str:
    """Return why so few cannot be divided among the workers; an empty string if they can."""
    return "" if count >= workers else f"it has {count} {what}, too few for {workers} workers"


DISPATCH, COMPUTE, COMBINE = KINDS = ("dispatch_tokens", "compute_experts", "combine_tokens")


@dataclass(frozen=True)
class Experts:
    """experts: each worker holds some experts of a mixture, and tokens travel to them and back, from all to all.

        worker w: routes its samples --exchange--> its experts, tokens of all workers --exchange--> its samples

    Fedus, Zoph and Shazeer, "Switch transformers", 2021; Lepikhin et al., "GShard", 2020. Tokens lie in slots (experts,
    groups, capacity, width): a worker fills those of its groups of samples, and computes those of its experts. The two
    placements are cuts of different dimensions, so the exchange is derived like any other. A layer becomes three
    operations, of which the last has its name.
    """

    name = "experts"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in ("experts", *KINDS):
            return "only paceline.training.jobs.modules.Experts has experts"
        experts, groups = _slots(node)[:2]
        return few(experts, "experts", workers) or few(groups, "groups of samples", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        """Return the layout of one of the three operations; `steps` makes them of a layer."""
        experts, groups = _slots(node)[:2]
        of_groups, of_experts = even(groups, workers), even(experts, workers)
        if node.kind == COMPUTE:
            mine = split(0, of_experts)
            return Layout((mine,), mine, {parameter.role: mine for parameter in node.held})
        tokens = node.shapes[-1]
        assert tokens is not None
        starts = even(tokens[0], groups)
        samples = split(0, [starts[group] for group in of_groups])
        if node.kind == DISPATCH:
            return Layout((samples, samples), split(1, of_groups), {})
        return Layout((split(1, of_groups), samples), samples, {})


def steps(node: SplitNode, workers: int) -> Iterator[SplitNode]:
    """Yield the operations that a layer of experts is computed by."""
    slots, (_, probabilities) = _slots(node), node.takes
    dispatch, compute = f"{node.name}#dispatch", f"{node.name}#compute"
    yield replace(node, name=dispatch, kind=DISPATCH, shape=slots, held=())
    yield replace(node, name=compute, kind=COMPUTE, takes=(dispatch,), shapes=(slots,), shape=slots)
    shapes = (slots, node.shapes[1])
    yield replace(node, kind=COMBINE, takes=(compute, probabilities), shapes=shapes, held=())


def _slots(node: SplitNode) -> tuple[int, ...]:
    """Return the shape of the slots: experts, groups, capacity, width."""
    return node.numbers("slots")


Windows = tuple[tuple[int, int], ...]
DIM = 2  # of (batch, channels, rows, ...)


@dataclass(frozen=True)
class Strips:
    """strips: each worker computes some rows of an image, and some of its neighbours' rows again.

        output rows [a, b)  need  input rows [a s - p, (b - 1) s - p + d (k - 1) + 1)     kernel k, stride s, padding p,
                                                                                          dilation d
    A chain of convolutions, pooling and activations then needs no messages: a worker begins with as many further rows
    as the chain looks beyond its own. Muller and Gunzinger, "Neural net simulation on parallel computers", 1994, let
    each processor compute up to twice its neurons in exchange for less communication; borders here are kept below
    that, and a chain that would need more is interrupted by a gather. Also known as halos or ghost zones with
    overlapped tiling.

    Which rows a layer computes depends on the layers that follow, so windows are found for the whole model
    (`with_windows`), and are facts of its operations.
    """

    name = "strips"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.shape is None or len(node.shape) <= DIM or not _local(node):
            return "it does not compute a row of an image from some neighbouring rows"
        if "windows" not in node.facts:
            return "the rows that it needs depend on the whole model; take the plan redundant"
        if why := few(node.shape[DIM], "rows", workers):
            return why
        mine = _pairs(node.numbers("windows"))
        bounds = even(node.shape[DIM], workers)
        fits = len(mine) == workers and all(
            first <= bounds[place] and bounds[place + 1] <= stop for place, (first, stop) in enumerate(mine)
        )
        for windows in filter(None, _taken(node)):
            fits = fits and all(_within(need, has) for need, has in zip(_needed(node, mine), windows, strict=True))
        return "" if fits else "its workers would lack rows"

    def layout(self, node: SplitNode, workers: int) -> Layout:
        assert node.shape is not None
        takes = []
        for shape, windows in zip(node.shapes, _taken(node), strict=True):
            assert shape is not None
            takes.append(_placed(shape[DIM], workers, windows) if windows else COPIED)
        return Layout(
            tuple(takes),
            _placed(node.shape[DIM], workers, _pairs(node.numbers("windows"))),
            {parameter.role: COPIED for parameter in node.held},
        )


def _placed(rows: int, workers: int, windows: Windows) -> Placement:
    bounds = even(rows, workers)
    ranges = tuple(pairwise(bounds))
    return Placement("split", (Cut(DIM, bounds, windows=() if windows == ranges else windows),))


def with_windows(nodes: Sequence[SplitNode], workers: int) -> list[SplitNode]:
    """Return the operations, with the rows that each worker takes and computes where they form chains of strips."""
    chained = _chained(nodes, workers)
    users: dict[str, list[SplitNode]] = {}
    for node in nodes:
        for value in node.takes:
            users.setdefault(value, []).append(node)
    computed: dict[str, Windows] = {}
    gathered: set[str] = set()
    for node in reversed(nodes):
        if node.name not in chained:
            continue
        assert node.shape is not None
        bounds = even(node.shape[DIM], workers)
        ranges = tuple(pairwise(bounds))
        needs = [_needed(user, computed[user.name]) for user in users.get(node.name, []) if user.name in computed]
        mine = tuple(_hull(rows) for rows in zip(ranges, *needs, strict=True))
        if any(stop - first > 2 * (b - a) for (first, stop), (a, b) in zip(mine, ranges, strict=True)):
            gathered.add(node.name)
            mine = ranges
        computed[node.name] = mine
    return [_with_facts(node, computed, gathered) if node.name in computed else node for node in nodes]


def _chained(nodes: Sequence[SplitNode], workers: int) -> set[str]:
    """Return the operations in chains of strips; each begins with one that looks at neighbouring rows."""
    chained: set[str] = set()
    for node in nodes:
        if node.shape is None or len(node.shape) <= DIM or node.shape[DIM] < workers or not _local(node):
            continue
        if "rows" in node.facts or (node.takes and all(value in chained for value in node.takes)):
            chained.add(node.name)
    return chained


def _local(node: SplitNode) -> bool:
    """Whether a row of what the operation makes is computed from some neighbouring rows of what it takes."""
    if "rows" in node.facts:
        return len(node.takes) == 1
    return node.kind in ("elementwise", "dropout") and bool(node.takes) and all(s == node.shape for s in node.shapes)


def _needed(node: SplitNode, mine: Windows) -> Windows:
    """Return the rows that workers need of what the operation takes."""
    if "rows" not in node.facts:
        return mine
    kernel, stride, padding, dilation = node.numbers("rows")
    shape = node.shapes[0]
    assert shape is not None
    reach = dilation * (kernel - 1) + 1
    return tuple(
        (max(0, first * stride - padding), min(shape[DIM], (stop - 1) * stride - padding + reach))
        for first, stop in mine
    )


def _with_facts(node: SplitNode, computed: Mapping[str, Windows], gathered: set[str]) -> SplitNode:
    """Add the windows of an operation: of what it makes, and of what it takes, none where that is gathered first."""
    needed = _needed(node, computed[node.name])
    inside = [value in computed and value not in gathered for value in node.takes]
    takes = tuple(_flat(needed) if each else () for each in inside)
    return replace(node, facts={**node.facts, "windows": _flat(computed[node.name]), "taken": takes})


def _taken(node: SplitNode) -> list[Windows]:
    windows = node.facts["taken"]
    assert isinstance(windows, tuple)
    return [_pairs(each) for each in windows]


def _flat(windows: Windows) -> tuple[int, ...]:
    return tuple(row for window in windows for row in window)


def _pairs(numbers: Sequence[int]) -> Windows:
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _hull(rows: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min(first for first, _ in rows), max(stop for _, stop in rows)


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
