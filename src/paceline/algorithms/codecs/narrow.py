"""Codecs that write every number in fewer bits: halves, brain floats, and bytes with a shared exponent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from paceline.algorithms.codecs import Codec, Field, Fields, rows_and_columns

if TYPE_CHECKING:
    from torch import Tensor


LARGEST = 65_504.0


@dataclass(frozen=True)
class Half(Codec):
    """Half precision: IEEE numbers of 16 bits, with 11 bits of precision.

    Micikevicius et al., "Mixed precision training", ICLR 2018, for the format; as a code of gradients it is Horovod's
    `Compression.fp16` and the `fp16_compress_hook` of PyTorch's DDP.

        message  =  half(total)            2 bytes a number

    What rounding leaves out is owed. Numbers beyond 65,504 become the largest half, and the rest is owed, too. Messages
    are added as they are: a sum of halves is rounded to a half in each step of a collective, and that is not owed by
    anyone. Not to be confused with training in half precision: parameters and optimizer stay as they are.
    """

    adds: ClassVar = True

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        return (Field("float16", prod(shape)),)

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        (numbers,) = fields
        numbers.view(total.shape).copy_(total.clamp(-LARGEST, LARGEST))
        total.sub_(numbers.view(total.shape))

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        out.copy_(fields[0].view(out.shape))


@dataclass(frozen=True)
class Bfloat16(Codec):
    """Brain floating point: the upper 16 bits of a float, with its range and 8 bits of precision.

    Kalamkar et al., "A study of BFLOAT16 for deep learning training", 2019; in PyTorch's DDP the `bf16_compress_hook`.

        message  =  bfloat16(total)        2 bytes a number

    Nothing overflows that did not before. Three bits less precise than `half`, so it leaves more to error feedback;
    sums are rounded in each step of a collective as there.
    """

    adds: ClassVar = True

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        return (Field("bfloat16", prod(shape)),)

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        (numbers,) = fields
        numbers.view(total.shape).copy_(total)
        total.sub_(numbers.view(total.shape))

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        out.copy_(fields[0].view(out.shape))


LOWEST, HIGHEST = -100, 126  # exponents, so that scales and what they make are normal floats


@dataclass(frozen=True)
class Int8(Codec):
    """Signed bytes with a shared exponent.

    Köster et al., "Flexpoint: an adaptive numerical format for efficient training of deep neural networks", NeurIPS
    2017, with 8 instead of 16 bits of mantissa, and an exponent for each row of the tensor instead of one for the
    whole.

        e        =  the least exponent with  max |row|  <  2^e
        mantissa =  round(row * 2^(7 - e)),  within -127..127
        message  =  e of each row, a byte per number

    The exponent is that of this very gradient; Flexpoint predicts it from earlier ones, which hardware needs and
    software does not. Scaling by powers of two is exact, so decoding loses nothing more. Not to be confused with
    `qsgd`, which rounds at random and needs no error feedback.
    """

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
