"""The parameters of a layout in fragments that are exchanged one after another, as Streaming DiLoCo does.

A fragment is some whole tensors. The moving buffers travel with the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from paceline.training.parameters.layout import Layout

T = TypeVar("T")


@dataclass(frozen=True)
class Fragments:
    """The fragments of a layout in one shard; of any other layout there is one, which is the layout itself."""

    #: The whole, with a shard for each fragment.
    layout: Layout
    #: The layout of each fragment alone.
    each: tuple[Layout, ...]
    #: The numbers of the parameters of each fragment.
    numbers: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(layout: Layout, count: int) -> Fragments:
        names = {span.name: number for shard in layout.shards for number, span in enumerate(shard.parameters)}
        if count == 1:
            return Fragments(layout, (layout,), (tuple(range(len(names))),))
        sharded = layout.in_shards(count)
        numbers = tuple(tuple(names[span.name] for span in shard.parameters) for shard in sharded.shards)
        return Fragments(sharded, tuple(Layout(sharded.dtype, (shard,)) for shard in sharded.shards), numbers)

    def of_number(self, number: int, each: Sequence[T]) -> T:
        """Return what belongs to the fragment of the exchange of this number."""
        return each[number % len(self.each)]

    def __len__(self) -> int:
        return len(self.each)
