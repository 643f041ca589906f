"""The sums of gradients under a codec, with every worker's encoder in one process."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.algorithms.cluster.shares import fitting
from paceline.algorithms.collectives import Collective
from paceline.runtime.engines.arithmetic.execute import execute
from paceline.runtime.engines.setup import Setup
from paceline.training.gradients.encoder import GradientEncoder, encoder_of
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.payload import CodedFrame, GradientSum
from paceline.training.gradients.segments import segments_of
from paceline.training.parameters.layout import Fragments, Layout


class CodedPayloads:
    """Every worker's frame and encoder, and the collective that combines them."""

    def __init__(self, setup: Setup, collective: Collective, learner: Learner) -> None:
        plan, self.collective, self.fragments = setup.plan, collective, Fragments.of(setup.layout, setup.plan.fragments)
        encoders = [encoder_of(plan.codec, self.fragments.layout, learner.replica) for _ in range(plan.workers)]
        self.encoders = [encoder for encoder in encoders if encoder is not None]
        #: The frames of each fragment, one per rank.
        self.frames = [
            [_frame(encoder, layout, number) for encoder in self.encoders]
            for number, layout in enumerate(self.fragments.each)
        ]

    @property
    def sizes(self) -> list[int]:
        """The bytes of each fragment's message, without what depends on the gradient."""
        return [frames[0].shape.fixed for frames in self.frames]

    def bytes(self, number: int) -> list[int]:
        """Return the bytes of every rank's message in the exchange of this number, if it is its fragment's last."""
        return [frame.message.bytes for frame in self.fragments.of_number(number, self.frames)]

    def sum(self, number: int, ranks: Sequence[int], shares: list[GradientSum]) -> GradientSum:
        """Return the sum of the shares of these ranks in the exchange of this number, in the payload of the first."""
        of_all = self.fragments.of_number(number, self.frames)
        frames = [of_all[rank] for rank in ranks]
        encoders = [self.encoders[rank] for rank in ranks]
        for frame, encoder, share in zip(frames, encoders, shares, strict=True):
            frame.write(encoder, share, number)
        messages, shape = [frame.message for frame in frames], frames[0].shape
        if shape.codec.adds:
            collective = fitting(self.collective, len(shares))
            for part, segments in enumerate(segments_of(shape, collective.segments(len(shares)))):
                for frame, encoder in zip(frames, encoders, strict=True):
                    if part:
                        encoder.finish(frame.shard, frame.message)
                    segments.scatter(frame.message, frame.raw)
                execute(collective, [frame.raw for frame in frames], segments)
                for frame in frames:
                    segments.gather(frame.raw, frame.message)
            if shape.codec.in_two:
                for frame, encoder in zip(frames, encoders, strict=True):
                    encoder.remember(frame.shard, frame.message)
            del messages[1:]
        for encoder in encoders:
            encoder.finalize()
        frames[0].add_up(messages, number)
        return frames[0].payload.read(sum(share.samples for share in shares))


def _frame(encoder: GradientEncoder, layout: Layout, number: int) -> CodedFrame:
    """Return a frame for the fragment of this number and layout."""
    shape = encoder.shapes[number]
    raw = torch.zeros(CodedFrame.size(shape, layout), dtype=torch.uint8)
    return CodedFrame(shape, layout, raw, encoder.seed, number)
