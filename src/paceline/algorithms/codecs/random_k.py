"""Random-k with a shared seed: all workers send the same places, which need not be named.

Konečný et al., "Federated learning: strategies for improving communication efficiency", 2016 (random masks); Stich,
Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018, for error feedback.

    k        =  density * numbers of the tensor, at least one
    places   =  one at random in each of k equal parts of the tensor; a function of seed and update
    message  =  k numbers
    owed     =  all the rest

Since every worker sends the same places, messages are summed number by number, on any collective, without loss. A
place comes through every 1 / density updates on average, however large its gradient is, so it learns later than
`topk` with as many numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING, ClassVar

from paceline.algorithms.codecs import OWN, Codec, Field, Fields
from paceline.algorithms.codecs.bits import hashed, places_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RandomK(Codec):
    density: float = 0.05
    adds: ClassVar = True
    shares_chance: ClassVar = True

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        return (Field(OWN, max(1, ceil(self.density * prod(shape)))),)

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        (numbers,) = fields
        flat = total.view(-1)
        places = _places(numbers, len(flat), chance)
        numbers.copy_(flat[places])
        flat[places] = 0.0

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        (numbers,) = fields
        flat = out.zero_().view(-1)
        flat[_places(numbers, len(flat), chance)] = numbers


def _places(numbers: Tensor, count: int, chance: int) -> Tensor:
    """Return a random place in each of as many equal parts of `count` places as there are numbers."""
    part = places_of(numbers)
    first, stop = part * count // len(numbers), (part + 1) * count // len(numbers)
    return first + hashed(part, chance) % (stop - first)
