"""Brain floating point: the upper 16 bits of a float, with its range and 8 bits of precision.

Kalamkar et al., "A study of BFLOAT16 for deep learning training", 2019; in PyTorch's DDP the `bf16_compress_hook`.

    message  =  bfloat16(total)        2 bytes a number

Nothing overflows that did not before. Three bits less precise than `half`, so it leaves more to error feedback; sums
are rounded in each step of a collective as there.
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
class Bfloat16(Codec):
    adds: ClassVar = True

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        return (Field("bfloat16", prod(shape)),)

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        (numbers,) = fields
        numbers.view(total.shape).copy_(total)
        total.sub_(numbers.view(total.shape))

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        out.copy_(fields[0].view(out.shape))
