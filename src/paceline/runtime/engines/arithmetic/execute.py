"""A collective's table, executed by one process over the vectors of all workers."""

from __future__ import annotations

from torch import Tensor

from paceline.algorithms.collectives import Collective, Part, segment_cuts
from paceline.training.gradients.segments import Segments


def execute(collective: Collective, flats: list[Tensor], segments: Segments | None = None) -> None:
    """Run a collective's table over vectors of one process; `segments` says how those of bytes are cut and added."""
    workers = len(flats)
    cuts = (
        segments.cuts
        if segments
        else segment_cuts(len(flats[0]), collective.segments(workers), flats[0].element_size())
    )

    def piece(part: Part, worker: int) -> Tensor:
        return flats[worker][cuts[part.first] : cuts[part.stop]]

    for row in zip(*(collective.steps(worker, workers) for worker in range(workers)), strict=True):
        blocks = [None if s.receive is None else piece(s.receive, s.receive.other).clone() for s in row]
        for worker, (step, received) in enumerate(zip(row, blocks, strict=True)):
            if step.receive is not None and received is not None:
                mine = piece(step.receive, worker)
                if step.reduce and segments is not None:
                    segments.adder(flats[worker], step.receive.first, step.receive.stop)(received)
                else:
                    mine.add_(received) if step.reduce else mine.copy_(received)
