"""The sums of gradients under a codec, with every worker's encoder in one process."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.core.cluster.shares import fitting
from paceline.core.collectives import Collective
from paceline.engines.arithmetic.execute import execute
from paceline.engines.setup import Setup
from paceline.gradients.coded_frame import CodedFrame
from paceline.gradients.encoder import encoder_of
from paceline.gradients.learner import Learner
from paceline.gradients.payload import GradientSum
from paceline.gradients.segments import segments_of


class CodedPayloads:
    """Every worker's frame and encoder, and the collective that combines them."""

    def __init__(self, setup: Setup, collective: Collective, learner: Learner) -> None:
        self.collective = collective
        made = [encoder_of(setup.plan.codec, setup.layout, learner.replica) for _ in range(setup.plan.workers)]
        self.encoders = [encoder for encoder in made if encoder is not None]
        shape = self.encoders[0].shapes[0]
        size = CodedFrame.size(shape, setup.layout)
        self.frames = [
            CodedFrame(shape, setup.layout, torch.zeros(size, dtype=torch.uint8), setup.job.seed) for _ in self.encoders
        ]

    @property
    def bytes(self) -> list[int]:
        """The bytes of every rank's message."""
        return [frame.message.bytes for frame in self.frames]

    def sum(self, number: int, ranks: Sequence[int], shares: list[GradientSum]) -> GradientSum:
        """Return the sum of the shares of these ranks in the exchange of this number, in the payload of the first."""
        frames = [self.frames[rank] for rank in ranks]
        encoders = [self.encoders[rank] for rank in ranks]
        for frame, encoder, share in zip(frames, encoders, shares, strict=True):
            frame.write(encoder, share, number)
        messages, shape = [frame.message for frame in frames], frames[0].shape
        if shape.codec.adds:
            collective = fitting(self.collective, len(shares))
            for part, segments in enumerate(segments_of(shape, collective.segments(len(shares)))):
                for frame, encoder in zip(frames, encoders, strict=True):
                    if part:
                        encoder.finish(frame.message)
                    segments.scatter(frame.message, frame.raw)
                execute(collective, [frame.raw for frame in frames], segments)
                for frame in frames:
                    segments.gather(frame.raw, frame.message)
            if shape.codec.in_two:
                for frame, encoder in zip(frames, encoders, strict=True):
                    encoder.remember(frame.message)
            del messages[1:]
        for encoder in encoders:
            encoder.settle()
        frames[0].add_up(messages, number)
        return frames[0].payload.read(sum(share.samples for share in shares))
