"""Codecs that send a few numbers of a gradient: the largest, random ones, or those past a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING, ClassVar

from paceline.algorithms.codecs import OWN, Codec, Field, Fields, hashed, places_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TopK(Codec):
    """Top-k: the numbers of largest magnitude, with their places.

    Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; Lin et al., "Deep gradient
    compression", ICLR 2018, which adds momentum correction and a warm-up that are not here.

        k        =  density * numbers of the tensor, at least one
        message  =  k places in rising order, k numbers
        owed     =  all the rest

    Of numbers of equal magnitude the first are taken. Eight bytes for each number that is sent: at a density of a half
    it is as large as a dense message. Gathered among P workers it beats a dense all-reduce only where the density is
    below 1 / P. Not to be confused with `threshold`, whose messages vary in length, or `randomk`, which sends no
    places.
    """

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


@dataclass(frozen=True)
class RandomK(Codec):
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


@dataclass(frozen=True)
class Threshold(Codec):
    """Threshold: only numbers whose magnitude has reached a threshold are sent, as plus or minus that threshold.

    Strom, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015.

        word     =  2 * place + (number < 0)     for every place where |number| > threshold
        decoded  =  +threshold or -threshold there, else 0
        owed     =  number - decoded, which comes through when it has grown

    Four bytes for each number that is sent. How many there are depends on the gradient: many where the threshold is too
    small, in the first updates above all, and then a message may be as large as a dense one. The threshold is in units
    of the gradient of the mean loss; it has to be found for each job. Not to be confused with `topk`, whose messages
    have a fixed length and carry exact values.
    """

    threshold: float = 0.001
    variable: ClassVar = True

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        return Field("int32", 1), Field("int32", prod(shape))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        count, words = fields
        flat = total.view(-1)
        places = (flat.abs() > self.threshold).nonzero().view(-1)
        count.fill_(len(places))
        below = flat[places] < 0
        words[: len(places)] = 2 * places + below
        flat[places] += below * (2 * self.threshold) - self.threshold

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        count, words = fields
        sent = words[: int(count)].long()
        out.zero_().view(-1)[sent >> 1] = self.threshold - (sent & 1).to(out.dtype) * (2 * self.threshold)

    def refusal(self, fields: Fields, shape: Sequence[int]) -> str | None:
        count, words = fields
        if not 0 <= int(count) <= len(words):
            return f"it has {int(count)} words, where {len(words)} are there"
        sent = words[: int(count)]
        if len(sent) and not bool((sent >= 0).all() and (sent >> 1 < prod(shape)).all()):
            return f"it names a place beyond the {prod(shape)} numbers of the tensor"
        return None
