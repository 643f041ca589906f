"""QSGD: each number is rounded at random to one of a few levels, so that its mean is the number itself.

Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and encoding",
NeurIPS 2017, with the largest magnitude in place of the norm, as in the paper's experiments, a row of the tensor as the
bucket, and codes of a fixed length in place of Elias codes.

    s       =  2^(bits - 1) - 1 levels                 scale   =  max |row|
    level   =  floor(|number| / scale * s + u)         u uniform in [0, 1), a function of seed, update, chunk and place
    decoded =  sign * level * scale / s

Nothing is owed: the error has mean zero and is not sent later. Fewer bits mean more noise, as a smaller batch would.
Not to be confused with `int8`, which rounds to the nearest and owes the rest.
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
class Qsgd(Codec):
    bits: int = 4
    feedback: ClassVar = False

    @property
    def levels(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        rows, columns = rows_and_columns(shape)
        return Field(OWN, rows), Field("uint8", rows * packed_length(columns, self.bits))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        scales, raw = fields
        scales.copy_(total.abs().amax(1))
        over = (self.levels / scales).nan_to_num_(0.0, 0.0)[:, None]
        level = (total.abs() * over).add_(uniform(places_of(total), chance)).floor_().clamp_(0, self.levels)
        packed(level + (total < 0) * (self.levels + 1), raw.view(len(total), -1), self.bits)

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        scales, raw = fields
        codes = unpacked(raw.view(len(out), -1), out.shape[1], self.bits).to(out.dtype)
        signed = codes.where(codes <= self.levels, self.levels + 1 - codes)
        out.copy_(signed).mul_((scales / self.levels)[:, None])
