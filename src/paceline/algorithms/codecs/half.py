"""Half precision: IEEE numbers of 16 bits, with 11 bits of precision.

Micikevicius et al., "Mixed precision training", ICLR 2018, for the format; as a code of gradients it is Horovod's
`Compression.fp16` and the `fp16_compress_hook` of PyTorch's DDP.

    message  =  half(total)            2 bytes a number

What rounding leaves out is owed. Numbers beyond 65,504 become the largest half, and the rest is owed, too. Messages
are added as they are: a sum of halves is rounded to a half in each step of a collective, and that is not owed by
anyone. Not to be confused with training in half precision: parameters and optimizer stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from paceline.algorithms.codecs import Codec, Field, Fields

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 65_504.0


@dataclass(frozen=True)
class Half(Codec):
    adds: ClassVar = True

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        return (Field("float16", prod(shape)),)

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        (numbers,) = fields
        numbers.view(total.shape).copy_(total.clamp(-LARGEST, LARGEST))
        total.sub_(numbers.view(total.shape))

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        out.copy_(fields[0].view(out.shape))
