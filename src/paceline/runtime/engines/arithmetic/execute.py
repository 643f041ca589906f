"""A collective's table, executed by one process over the vectors of all workers."""

from __future__ import annotations

from torch import Tensor

from paceline.algorithms.collectives import Collective, Part, lane_stride, segment_cuts, span_of
from paceline.training.gradients.segments import Segments


def execute(
    collective: Collective, flats: list[Tensor], segments: Segments | None = None, length: int | None = None
) -> None:
    """Run a collective's table over vectors of one process; `segments` says how those of bytes are cut and added.

    `length` is how many numbers a lane of a vector has, where there are several.
    """
    workers, size = len(flats), flats[0].element_size()
    length = len(flats[0]) if length is None else length
    cuts = segments.cuts if segments else segment_cuts(length, collective.segments(workers), size)
    stride = lane_stride(length, size)

    def piece(part: Part, worker: int) -> Tensor:
        start, stop = span_of(part, cuts, stride)
        return flats[worker][start:stop]

    for row in zip(*(collective.steps(worker, workers) for worker in range(workers)), strict=True):
        blocks = [None if s.receive is None else piece(s.receive, s.receive.other).clone() for s in row]
        for worker, (step, received) in enumerate(zip(row, blocks, strict=True)):
            if step.receive is not None and received is not None:
                mine = piece(step.written, worker)
                if step.reduce and segments is not None:
                    segments.adder(flats[worker], step.receive.first, step.receive.stop)(received)
                else:
                    mine.add_(received) if step.reduce else mine.copy_(received)
