"""Signed bytes with a shared exponent.

Köster et al., "Flexpoint: an adaptive numerical format for efficient training of deep neural networks", NeurIPS 2017,
with 8 instead of 16 bits of mantissa, and an exponent for each row of the tensor instead of one for the whole.

    e        =  the least exponent with  max |row|  <  2^e
    mantissa =  round(row * 2^(7 - e)),  within -127..127
    message  =  e of each row, a byte per number

The exponent is that of this very gradient; Flexpoint predicts it from earlier ones, which hardware needs and software
does not. Scaling by powers of two is exact, so decoding loses nothing more. Not to be confused with `qsgd`, which
rounds at random and needs no error feedback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from paceline.algorithms.codecs import Codec, Field, Fields, rows_and_columns

if TYPE_CHECKING:
    from torch import Tensor

LOWEST, HIGHEST = -100, 126  # exponents, so that scales and what they make are normal floats


@dataclass(frozen=True)
class Int8(Codec):
    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        rows, _ = rows_and_columns(shape)
        return Field("int8", rows), Field("int8", prod(shape))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        exponents, mantissas = fields
        _, exponent = total.abs().amax(1).frexp()
        exponent = exponent.clamp(LOWEST, HIGHEST)
        exponents.copy_(exponent)
        scaled = total.ldexp(7 - exponent[:, None]).round_().clamp_(-127, 127)
        mantissas.view(total.shape).copy_(scaled)
        total.sub_(scaled.ldexp(exponent[:, None] - 7))

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        exponents, mantissas = fields
        out.copy_(mantissas.view(out.shape)).ldexp_(exponents[:, None].int() - 7)
