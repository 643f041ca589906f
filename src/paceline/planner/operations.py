"""One operation of a model's step, and the figures of a step by which its time is predicted.

The seconds of a step are taken to be linear in these figures. Their coefficients are a machine's: see `card`.

    call, view              operations that compute, and operations that only make another view: dispatch and Python
    matmul.*                floating-point operations, by the least dimension; its calls
    convolution.*           floating-point operations forward and backward; calls
    recurrent.*             floating-point operations of an LSTM or GRU; time steps, which come one after another
    near, far               bytes of all other operations, where they fit into a cache and where they do not
    slow                    elements of exp, tanh, softmax, pooling and normalisation
    random                  elements drawn, as by dropout
    gather                  bytes moved row by row, as by an embedding
    optimizer               tensors that an optimizer's operation changes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NEAR = 1 << 20  # bytes of one operation that are taken to lie in a core's cache
SMALL, MIDDLE = 16, 64  # least dimensions of a matrix product, between buckets

#: Figures of a step, each with a coefficient in seconds.
FIGURES = (
    "call", "view", "matmul.call", "matmul.small", "matmul.middle", "matmul.large", "convolution.call",
    "convolution.forward", "convolution.backward", "recurrent.steps", "recurrent.forward", "recurrent.backward",
    "near", "far", "slow", "random", "gather", "optimizer",
)  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One call of the dispatcher."""

    #: Its name, such as `aten.addmm`.
    name: str
    #: One of `FORWARD`, `BACKWARD` and `UPDATE`.
    phase: str
    #: The path of the module that called it, "" outside of one.
    module: str
    #: A class of operations: view, matmul, convolution, recurrent, gather, random, slow, optimizer or plain.
    kind: str
    #: Floating-point operations; 0 where they are not counted.
    flops: float = 0.0
    #: Bytes read and written.
    bytes: float = 0.0
    #: Elements of the largest tensor.
    elements: float = 0.0
    #: The least dimension of a matrix product, or the time steps of a recurrent layer, or the tensors of an optimizer.
    extent: int = 0
    #: Bytes of what it returns.
    made: float = 0.0


FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


def figures(operations: Iterable[Operation]) -> dict[str, float]:
    """Add up the figures of these operations."""
    found = dict.fromkeys(FIGURES, 0.0)
    for operation in operations:
        _add(found, operation)
    return found


def _add(found: dict[str, float], op: Operation) -> None:
    if op.kind == "view":
        found["view"] += 1
        return
    found["call"] += 1
    if op.kind == "matmul":
        size = "small" if op.extent < SMALL else "middle" if op.extent < MIDDLE else "large"
        found["matmul.call"] += 1
        found[f"matmul.{size}"] += op.flops
    elif op.kind in ("convolution", "recurrent"):
        way = "backward" if op.phase == BACKWARD else "forward"
        found[f"{op.kind}.{way}"] += op.flops
        found["convolution.call" if op.kind == "convolution" else "recurrent.steps"] += max(1, op.extent)
    elif op.kind == "gather":
        found["gather"] += op.bytes
        return
    elif op.kind in ("slow", "random"):
        found[op.kind] += op.elements
    elif op.kind == "optimizer":
        found["optimizer"] += op.extent
    found["near" if op.bytes < NEAR else "far"] += op.bytes


def seconds(coefficients: Mapping[str, float], found: Mapping[str, float]) -> float:
    """Return the seconds of a step with these figures."""
    return sum(coefficients.get(name, 0.0) * value for name, value in found.items())
