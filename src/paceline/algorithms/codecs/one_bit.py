"""One bit per number: the sign, and for each row the mean of its positive and of its negative numbers.

Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its application to data-parallel distributed
training of speech DNNs", Interspeech 2014.

    up    =  mean of the row's numbers >= 0           down  =  mean of those < 0
    bit   =  number >= 0                              decoded  =  up where the bit is set, else down
    owed  =  number - decoded

The two values minimise the squared error, and keep the sum of each row. They belong to a row of the matrix, the
weights of one output (a column in the paper's notation). Without error feedback it does not converge; that is the
paper's point. Not to be confused with signSGD, which sends no means, or 1-bit Adam, which also freezes the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.codecs import OWN, Codec, Field, Fields, rows_and_columns
from paceline.algorithms.codecs.bits import packed, packed_length, row_sums, unpacked

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OneBit(Codec):
    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        rows, columns = rows_and_columns(shape)
        return Field(OWN, 2 * rows), Field("uint8", rows * packed_length(columns))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        means, bits = fields
        positive = total >= 0
        count = positive.sum(1)
        up = row_sums(total.clamp_min(0)) / count.clamp_min(1)
        down = row_sums(total.clamp_max(0)) / (total.shape[1] - count).clamp_min(1)
        means.view(2, -1)[0].copy_(up)
        means.view(2, -1)[1].copy_(down)
        packed(positive, bits.view(len(total), -1))
        up, down = means.view(2, -1, 1)
        total.sub_(up.where(positive, down))

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        means, bits = fields
        up, down = means.view(2, -1, 1)
        out.copy_(up.where(unpacked(bits.view(len(out), -1), out.shape[1]), down))
