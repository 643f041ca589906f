"""Published figures from their inputs: Cannon's numbers sent for a product of n x n matrices on P workers."""

from __future__ import annotations

from typing import Any

from paceline.algorithms.splits import Held, SplitNode
from paceline.algorithms.splits.derivation import PARAMETER, derive
from paceline.algorithms.splits.recipes import Cannon

SIDE, WORKERS = 720, (4, 9, 16)


def sent_forward(side: int, workers: int) -> int:
    """Return how many numbers the busiest worker sends for the product itself, without the first deal of the blocks."""
    shape, held = (side, side), Held("weight", "layer.weight", (side, side))
    node = SplitNode("layer", "linear", ("x",), (shape,), shape, (held,), "layer")
    program = derive([node], {"x": shape}, ["layer"], {"layer", PARAMETER + "layer.weight"}, workers, Cannon().choose)
    moves = [s for s in program.forward if s.value and s.source.is_split and s.target.is_split]
    return max(
        sum(move.movement.numbers(program.shapes[move.value], place, workers) for move in moves)
        for place in range(workers)
    )


def measure_published() -> dict[str, Any]:
    rows = []
    for workers in WORKERS:
        bound, sent = round(2 * SIDE**2 / workers**0.5), sent_forward(SIDE, workers)
        rows.append({"workers": workers, "sent": sent, "2 n^2 / sqrt(P)": bound, "share": round(sent / bound, 3)})
        print(rows[-1])
    return {"n": SIDE, "cannon": rows}
