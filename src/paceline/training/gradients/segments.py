"""Messages that add up, cut into the segments of a collective's table.

    message     | coded numbers ---------------- | dense numbers ------------ |
    segments    | coded 0 | dense 0 | coded 1 | dense 1 | ...

A segment has a part of the coded and a part of the dense numbers, each in its own dtype, so that a step of the table
carries and adds both at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from paceline.algorithms.collectives import segment_cuts
from paceline.training.gradients.message import GradientMessage, MessageShape, up


class Segments:
    """The segments of messages of one shape; `count` is how many the table wants.

    A message that is summed in two has two kinds of them: `part` 0 has the first fields, and `part` 1 all the rest,
    which lie behind them in the vector.
    """

    def __init__(self, shape: MessageShape, count: int, part: int = 0) -> None:
        fields = [field for fields in shape.fields for field in fields]
        coded = shape.type(fields[0]) if fields else shape.dtype
        ends = (
            [0, shape.first_bytes] if shape.codec.in_two and part == 0 else [up(shape.first_bytes), shape.field_bytes]
        )
        #: The bytes of the coded numbers in a message, and whether the dense ones belong to these segments.
        self._coded, self._dense = slice(*ends), not shape.codec.in_two or part == 1
        blocks = [(coded, (ends[1] - ends[0]) // coded.itemsize)]
        blocks += [(shape.dtype, shape.dense_numbers)] if self._dense else []
        #: For each segment and block: where it lies in the block's numbers, and its bytes in the segmented vector.
        self._parts: list[list[tuple[torch.dtype, int, int, int]]] = []
        #: Where the segments begin, in bytes, and where the last one ends.
        start = ends[0]
        self.cuts = [start]
        spans = [list(pairwise(segment_cuts(numbers, count, dtype.itemsize))) for dtype, numbers in blocks]
        for segment in range(count):
            self._parts.append([])
            for (dtype, _), block in zip(blocks, spans, strict=True):
                first, stop = block[segment]
                self._parts[-1].append((dtype, first, stop, start))
                start += up((stop - first) * dtype.itemsize)
            self.cuts.append(start)

    def scatter(self, message: GradientMessage, flat: Tensor) -> None:
        """Copy the numbers of a message into a segmented vector."""
        for block, place in self._pairs(message, flat):
            place.copy_(block)

    def gather(self, flat: Tensor, message: GradientMessage) -> None:
        """Copy the numbers of a segmented vector into a message."""
        for block, place in self._pairs(message, flat):
            block.copy_(place)

    def adder(self, flat: Tensor, first: int, stop: int) -> Callable[[Tensor], None]:
        """Return what adds segments that were received to those of a vector, where these begin at `first`."""
        begin, pairs = self.cuts[first], list[tuple[Tensor, torch.dtype, int]]()
        for parts in self._parts[first:stop]:
            for dtype, low, high, start in parts:
                size = (high - low) * dtype.itemsize
                pairs.append((flat[start : start + size].view(dtype), dtype, start - begin))

        def add(raw: Tensor) -> None:
            for mine, dtype, start in pairs:
                mine.add_(raw[start : start + mine.numel() * dtype.itemsize].view(dtype))

        return add

    def _pairs(self, message: GradientMessage, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The parts of a message with their places in a segmented vector."""
        blocks = [message.raw[self._coded], *([message.flat] if self._dense else [])]
        pairs = []
        for parts in self._parts:
            for block, (dtype, low, high, start) in zip(blocks, parts, strict=True):
                place = flat[start : start + (high - low) * dtype.itemsize].view(dtype)
                pairs.append((block.view(dtype)[low:high], place))
        return pairs


def segments_of(shape: MessageShape, count: int) -> list[Segments]:
    """Return the segments of each part in which messages are summed."""
    return [Segments(shape, count, part) for part in range(2 if shape.codec.in_two else 1)]
