"""Threshold: only numbers whose magnitude has reached a threshold are sent, as plus or minus that threshold.

Strom, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015.

    word     =  2 * place + (number < 0)     for every place where |number| > threshold
    decoded  =  +threshold or -threshold there, else 0
    owed     =  number - decoded, which comes through when it has grown

Four bytes for each number that is sent. How many there are depends on the gradient: many where the threshold is too
small, in the first updates above all, and then a message may be as large as a dense one. The threshold is in units of
the gradient of the mean loss; it has to be found for each job. Not to be confused with `topk`, whose messages have a
fixed length and carry exact values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from paceline.algorithms.codecs import Codec, Field, Fields

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Threshold(Codec):
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
