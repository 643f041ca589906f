"""How a codec is computed here: by generated code where there is a compiler, else by PyTorch. The bits are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.algorithms.codecs import Codec, Fields
from paceline.algorithms.codecs.narrow import HIGHEST, LOWEST, Bfloat16, Half, Int8
from paceline.algorithms.codecs.quantized import OneBit, Qsgd, Ternary
from paceline.algorithms.codecs.sparse import Threshold, TopK
from paceline.kernels.codecs import native

#: What encodes by native code: called with the loops, the matrix, the fields, and what follows from codec and chance.
ENCODE: dict[type, tuple[Callable[..., bool], Callable[[Any, int], tuple[float, ...]]]] = {
    Half: (native.encode_half, lambda codec, chance: ()),
    Bfloat16: (native.encode_bfloat16, lambda codec, chance: ()),
    Int8: (native.encode_int8, lambda codec, chance: (LOWEST, HIGHEST)),
    Qsgd: (native.encode_qsgd, lambda codec, chance: (codec.bits, chance)),
    Ternary: (native.encode_ternary, lambda codec, chance: (chance,)),
    OneBit: (native.encode_onebit, lambda codec, chance: ()),
    Threshold: (native.encode_threshold, lambda codec, chance: (codec.threshold,)),
    TopK: (native.encode_topk, lambda codec, chance: ()),
}
#: What decodes by native code: called with the loops, the fields and the matrix, and what follows from the codec.
DECODE: dict[type, tuple[Callable[..., None], Callable[[Any], tuple[int, ...]]]] = {
    Int8: (native.decode_int8, lambda codec: ()),
    Qsgd: (native.decode_qsgd, lambda codec: (codec.bits,)),
    Ternary: (native.decode_ternary, lambda codec: ()),
    OneBit: (native.decode_onebit, lambda codec: ()),
}


class Loops:
    """Encodes and decodes as a codec does."""

    def __init__(self, codec: Codec, dtype: torch.dtype) -> None:
        self.codec = codec
        #: The loops of this machine; None where there is no compiler, or for another dtype.
        self._native = native.native() if dtype == torch.float32 else None
        self._encode, self._decode = ENCODE.get(type(codec)), DECODE.get(type(codec))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        """Write a message, and leave in `total` what it leaves out."""
        if self._native is not None and self._encode is not None:
            encode, arguments = self._encode
            if encode(self._native, total, fields, *arguments(self.codec, chance)):
                return
        self.codec.encode(total, fields, chance, memory)

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        """Write the gradient of a message into `out`, which has no gaps."""
        if self._native is None or self._decode is None:
            self.codec.decode(fields, out, chance)
            return
        decode, arguments = self._decode
        decode(self._native, fields, out, *arguments(self.codec))

    def add_owed(self, owed: Tensor | None, gradient: Tensor, total: Tensor) -> bool:
        """Write a gradient and what is owed into `total`; return whether the gradient is finite."""
        if self._native is not None and gradient.is_contiguous():
            return native.add_owed(self._native, owed, gradient, total)
        if owed is None:
            total.copy_(gradient)
        else:
            torch.add(owed, gradient, out=total)
        return bool(gradient.isfinite().all())
