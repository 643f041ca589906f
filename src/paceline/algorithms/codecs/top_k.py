"""Top-k: the numbers of largest magnitude, with their places.

Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; Lin et al., "Deep gradient
compression", ICLR 2018, which adds momentum correction and a warm-up that are not here.

    k        =  density * numbers of the tensor, at least one
    message  =  k places in rising order, k numbers
    owed     =  all the rest

Of numbers of equal magnitude the first are taken. Eight bytes for each number that is sent: at a density of a half it
is as large as a dense message. Gathered among P workers it beats a dense all-reduce only where the density is below
1 / P. Not to be confused with `threshold`, whose messages vary in length, or `randomk`, which sends no places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING

from paceline.algorithms.codecs import OWN, Codec, Field, Fields

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TopK(Codec):
    density: float = 0.01

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        count = max(1, ceil(self.density * prod(shape)))
        return Field("int32", count), Field(OWN, count)

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        places, numbers = fields
        flat, count = total.view(-1), len(places)
        sizes = flat.abs()
        least = sizes.topk(count).values[-1]
        equal = (sizes == least).nonzero().view(-1)
        above = (sizes > least).nonzero().view(-1)
        chosen = above.new_zeros(len(sizes)).bool()
        chosen[above] = chosen[equal[: count - len(above)]] = True
        indices = chosen.nonzero().view(-1)
        places.copy_(indices)
        numbers.copy_(flat[indices])
        flat[indices] = 0.0

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        places, numbers = fields
        out.zero_().view(-1)[places.long()] = numbers

    def refusal(self, fields: Fields, shape: Sequence[int]) -> str | None:
        places = fields[0]
        if len(places) and not bool((places >= 0).all() and (places < prod(shape)).all()):
            return f"it names a place beyond the {prod(shape)} numbers of the tensor"
        return None
