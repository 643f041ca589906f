"""cannon: a square grid of workers multiplies matrices block by block, each with one block of each matrix at a time.

    worker (i, j) of q x q      step s = 0 ... q-1      Y(i,j) += X(i,k) W(j,k)^T      k = i + j + s (mod q)

Cannon, "A cellular computer to implement the Kalman filter algorithm", 1969. In every step each block of X and of W is
with one worker that can use it, and goes on to the next. Backward, the same blocks come by again, and the gradients
that a worker has made of them go to where the blocks lie. Each worker sends 2 (q-1)/q^2 of a square matrix forward: at
most 2 n^2 / sqrt(P) numbers for P workers. Blocks go straight to the worker that needs them next: as many numbers as by
shifts from neighbour to neighbour, without the first skew. Not to be confused with `columns` or `rows`, under which
every worker has all of X or all of Y.

A layer becomes an operation that deals out X, and q products, of which the last has the layer's name. The bias is added
in the last, by every worker to its own block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt

from paceline.algorithms.splits import COPIED, Cut, Layout, Placement, SplitNode, even

DEALT, PRODUCT = KINDS = ("dealt_blocks", "block_product")


@dataclass(frozen=True)
class Cannon:
    name = "cannon"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in ("linear", *KINDS):
            return "only linear layers are products of matrices"
        if node.kind == DEALT:
            return ""
        if isqrt(workers) ** 2 != workers:
            return f"{workers} workers are no square grid; give 4, 9 or 16"
        shape, side = node.shapes[0], isqrt(workers)
        if shape is None or len(shape) < 2:
            return "it is given a vector, not a matrix"
        least = min(shape[0], *node.shape_of("weight"))
        return "" if least >= side else f"one of its matrices has a side of {least}, less than that of the grid, {side}"

    def layout(self, node: SplitNode, workers: int) -> Layout:
        """Return the layout of one step; `steps` makes them of a layer."""
        side = isqrt(workers)
        shape = node.shapes[0]
        assert shape is not None
        if node.kind == DEALT:
            dealt = Placement("split", (Cut(0, even(shape[0], side), side), Cut(len(shape) - 1, even(shape[-1], side))))
            return Layout((dealt,), dealt, {})
        (step,), (outputs, inputs) = node.numbers("step"), node.shape_of("weight")
        samples, last = even(shape[0], side), len(shape) - 1
        across = Cut(last, even(inputs, side), 1, side, step)
        x = Placement("split", (Cut(0, samples, side), across))
        y = Placement("split", (Cut(0, samples, side), Cut(last, even(outputs, side))))
        weight = Placement("split", (Cut(0, even(outputs, side)), Cut(1, even(inputs, side), side, 1, step)))
        return Layout((x, y)[: len(node.takes)], y, {"weight": weight, "bias": COPIED})


def steps(node: SplitNode, workers: int) -> Iterator[SplitNode]:
    """Yield the operations that a linear layer is computed by, the last under its own name."""
    side = isqrt(workers)
    blocks, before = f"{node.name}#blocks", ""
    yield SplitNode(blocks, DEALT, node.takes, node.shapes, node.shapes[0], layer=node.layer)
    for step in range(side):
        name = node.name if step + 1 == side else f"{node.name}#{step}"
        yield replace(
            node,
            name=name,
            kind=PRODUCT,
            takes=(blocks, before) if step else (blocks,),
            shapes=(*node.shapes, node.shape) if step else node.shapes,
            held=tuple(parameter for parameter in node.held if parameter.role == "weight" or step + 1 == side),
            facts={**node.facts, "step": (step,)},
        )
        before = name
