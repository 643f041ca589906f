"""One operation of a model's step, and the figures of a step by which its time is predicted.

The seconds of a step are taken to be linear in these figures. Their coefficients are a machine's: see `card`.

    step                    one for each phase of a step: what it costs before the first operation
    call, view              operations that compute, and operations that only make another view: dispatch and Python
    matmul.*                floating-point operations, by the least dimension; calls
    convolution.*           floating-point operations forward and backward, apart for few channels; calls and elements
    recurrent.*             floating-point operations of an LSTM or GRU; calls, time steps, cells
    near, far               bytes of all other operations, where they fit into a cache and where they do not
    slow, norm, pool        elements of exp, tanh, softmax and the like, of normalisation, of pooling
    random                  elements drawn, as by dropout
    gather                  bytes moved row by row, as by an embedding
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NEAR = 1 << 22  # bytes of one operation that are taken to lie in a core's cache
SMALL, MIDDLE = 16, 64  # least dimensions of a matrix product, between buckets
THIN = 8  # channels of a convolution below which vector units are not filled

#: Figures of a step, each with a coefficient in seconds.
FIGURES = (
    "step", "call", "view", "matmul.call", "matmul.small", "matmul.middle", "matmul.large", "convolution.call",
    "convolution.elements", "convolution.forward", "convolution.backward", "convolution.forward.thin",
    "convolution.backward.thin", "recurrent.call", "recurrent.steps", "recurrent.cells", "recurrent.forward",
    "recurrent.backward", "near", "far", "slow", "norm", "pool", "random", "gather",
)  # fmt: skip

#: Seconds of each figure on a usual core: what a fit falls back to where measurements do not tell figures apart.
USUAL = {
    "step": 5e-5, "call": 8e-6, "view": 1e-6, "matmul.call": 3e-6, "matmul.small": 2.4e-11, "matmul.middle": 1e-11,
    "matmul.large": 6e-12, "convolution.call": 1e-4, "convolution.elements": 1e-9, "convolution.forward": 1.5e-11,
    "convolution.backward": 1.5e-11, "convolution.forward.thin": 3e-11, "convolution.backward.thin": 3e-11,
    "recurrent.call": 1.5e-4, "recurrent.steps": 4e-6, "recurrent.cells": 1e-9, "recurrent.forward": 2e-11,
    "recurrent.backward": 2e-11, "near": 4e-11, "far": 8e-11, "slow": 1e-9, "norm": 1e-9, "pool": 1e-9,
    "random": 4e-9, "gather": 1.5e-10,
}  # fmt: skip


@dataclass(frozen=True)
class DispatchedCall:
    """One call of the dispatcher."""

    #: Its name, such as `aten.addmm`.
    name: str
    #: One of `FORWARD`, `BACKWARD` and `UPDATE`.
    phase: str
    #: The path of the module that called it, "" outside of one.
    module: str
    #: A class of operations: view, matmul, convolution, recurrent, gather, random, slow, norm, pool or plain.
    kind: str
    #: Floating-point operations; 0 where they are not counted.
    flops: float = 0.0
    #: Bytes read and written.
    bytes: float = 0.0
    #: Elements of the largest tensor, or cells of a recurrent layer.
    elements: float = 0.0
    #: The least dimension of a matrix product, the least channels of a convolution, or a recurrent layer's time steps.
    extent: int = 0
    #: Bytes of what it returns.
    made: float = 0.0


FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


def figures(operations: Iterable[DispatchedCall]) -> dict[str, float]:
    """Add up the figures of these operations, which are those of one step or of a part of one."""
    totals = dict.fromkeys(FIGURES, 0.0)
    for operation in operations:
        _add(totals, operation)
    return totals


def _add(totals: dict[str, float], op: DispatchedCall) -> None:
    if op.kind == "view":
        totals["view"] += 1
        return
    totals["call"] += 1
    way = "backward" if op.phase == BACKWARD else "forward"
    if op.kind == "matmul":
        size = "small" if op.extent < SMALL else "middle" if op.extent < MIDDLE else "large"
        totals["matmul.call"] += 1
        totals[f"matmul.{size}"] += op.flops
    elif op.kind == "convolution":
        totals["convolution.call"] += 1
        totals["convolution.elements"] += op.elements
        totals[f"convolution.{way}{'.thin' if op.extent < THIN else ''}"] += op.flops
    elif op.kind == "recurrent":
        totals["recurrent.call"] += 1
        totals["recurrent.steps"] += op.extent
        totals["recurrent.cells"] += op.elements
        totals[f"recurrent.{way}"] += op.flops
        return
    elif op.kind == "gather":
        totals["gather"] += op.bytes
        return
    elif op.kind in ("slow", "norm", "pool", "random"):
        totals[op.kind] += op.elements
    totals["near" if op.bytes < NEAR else "far"] += op.bytes


def seconds(coefficients: Mapping[str, float], step_figures: Mapping[str, float]) -> float:
    """Return the seconds of a step with these figures."""
    return sum(coefficients.get(name, 0.0) * value for name, value in step_figures.items())
