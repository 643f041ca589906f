"""How a codec is computed here: by generated code where there is a compiler, else by PyTorch. The bits are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.core.codecs import Codec, Fields
from paceline.core.codecs.bfloat16 import Bfloat16
from paceline.core.codecs.half import Half
from paceline.core.codecs.int8 import HIGHEST, LOWEST, Int8
from paceline.core.codecs.one_bit import OneBit
from paceline.core.codecs.threshold import Threshold
from paceline.core.codecs.top_k import TopK
from paceline.kernels.codecs import native

#: What encodes by native code: called with the loops, the matrix and the fields, and what follows from the codec.
ENCODE: dict[type, tuple[Callable[..., bool], Callable[[Any], tuple[float, ...]]]] = {
    Half: (native.encode_half, lambda codec: ()),
    Bfloat16: (native.encode_bfloat16, lambda codec: ()),
    Int8: (native.encode_int8, lambda codec: (LOWEST, HIGHEST)),
    OneBit: (native.encode_onebit, lambda codec: ()),
    Threshold: (native.encode_threshold, lambda codec: (codec.threshold,)),
    TopK: (native.encode_topk, lambda codec: ()),
}
DECODE: dict[type, Callable[..., None]] = {Int8: native.decode_int8, OneBit: native.decode_onebit}


class Loops:
    """Encodes and decodes as a codec does."""

    def __init__(self, codec: Codec, dtype: torch.dtype) -> None:
        self.codec = codec
        #: The loops of this machine, where the codec has some for this dtype.
        self._native = native.native() if dtype == torch.float32 and type(codec) in ENCODE else None
        if self._native is not None:
            self._encode, arguments = ENCODE[type(codec)]
            self._arguments = arguments(codec)
            self._decode = DECODE.get(type(codec))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        """Write a message, and leave in `total` what it leaves out."""
        if self._native is None or not self._encode(self._native, total, fields, *self._arguments):
            self.codec.encode(total, fields, chance, memory)

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        """Write the gradient of a message into `out`, which has no gaps."""
        if self._native is not None and self._decode is not None:
            self._decode(self._native, fields, out)
        else:
            self.codec.decode(fields, out, chance)
