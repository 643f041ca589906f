"""Ternary gradients: -1, 0 or 1 times the largest magnitude of the row.

Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning", NeurIPS 2017, with a
scale for each row of a tensor instead of one for each tensor, and without the paper's clipping of outliers.

    scale    =  max |row|
    decoded  =  sign * scale  with probability |number| / scale,  else 0

Two bits a number. The mean of what is decoded is the number, so nothing is owed; it is `qsgd` with a single level. A
row with one large number has almost all others zero: then smaller rows, or more levels, do better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.algorithms.codecs import OWN, Codec, Field, Fields, rows_and_columns
from paceline.algorithms.codecs.bits import packed, packed_length, places_of, uniform, unpacked

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ternary(Codec):
    feedback: ClassVar = False

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        rows, columns = rows_and_columns(shape)
        return Field(OWN, rows), Field("uint8", rows * packed_length(columns, 2))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        scales, raw = fields
        scales.copy_(total.abs().amax(1))
        mask = uniform(places_of(total), chance) * scales[:, None] < total.abs()
        packed(mask * (1 + (total < 0).byte()), raw.view(len(total), -1), 2)

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        scales, raw = fields
        codes = unpacked(raw.view(len(out), -1), out.shape[1], 2)
        out.copy_((codes == 1).to(out.dtype) - (codes == 2).to(out.dtype)).mul_(scales[:, None])
