"""A worker's end of the wire: its gradients as the codec transfers them, and what the codec has left out so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from paceline.core.codecs import Codec
from paceline.gradients.payload import GradientSum


class GradientEncoder:
    """Encodes and decodes gradients with the residuals of the codec."""

    def __init__(self, codec: Codec, parameters: Sequence[Tensor]) -> None:
        self.codec = codec
        #: What the codec has left out so far of each parameter's gradients, and adds to the next one.
        self.residuals = [codec.residual(parameter.detach()) for parameter in parameters]

    def sent(self, computed: GradientSum) -> GradientSum:
        """Return the gradients as they arrive where they are used."""
        encode, decode = self.codec.encode, self.codec.decode
        # Decoded where it was encoded: every engine computes with what a receiver would get, over any transport.
        gradients = [
            None if g is None else decode(encode(g, residual))
            for g, residual in zip(computed.gradients, self.residuals, strict=True)
        ]
        return replace(computed, gradients=gradients)
