"""What the arithmetic of several methods needs: learners, snapshots, a collective's table, sums under a codec."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paceline.algorithms.cluster.shares import fitting
from paceline.algorithms.collectives import Collective, Part, lane_stride, segment_cuts, span_of
from paceline.runtime.engines.outcome import Snapshot
from paceline.runtime.engines.setup import Setup
from paceline.training.data.source import Reader
from paceline.training.gradients.encoder import GradientEncoder, encoder_of
from paceline.training.gradients.learner import Learner, PartialSums
from paceline.training.gradients.message import Segments, segments_of
from paceline.training.gradients.payload import CodedFrame, GradientSum
from paceline.training.parameters.layout import Fragments, Layout


class Snapshots:
    """The parameters after some updates, kept for evaluation afterwards; `values` gives the present ones."""

    def __init__(self, setup: Setup, values: Callable[[], list[Tensor]]) -> None:
        self.setup, self.values = setup, values
        self.kept: list[Snapshot] = []

    def keep(self, updates: int, seconds: float) -> None:
        """Keep a snapshot, if one is due after so many updates."""
        if self.setup.agenda.reaches(updates, self.setup.snapshots_every):
            values = self.values()
            self.kept.append(Snapshot(updates, seconds, lambda: values))


def make_learner(setup: Setup) -> tuple[Learner, torch.optim.Optimizer]:
    """Make a worker's learner and optimizer on a fresh module."""
    module = setup.fresh_module()
    replica = setup.placement.replica(0, setup.job, module.train(), setup.probe.moving)
    optimizer = setup.job.make_optimizer(module, replica.parameters)
    sums = PartialSums(setup.layout, setup.plan.canonical) if setup.plan.canonical else None
    reader = Reader(setup.source, setup.order(), 0, lambda _: None)
    return Learner(replica, reader, sums, alone=setup.plan.method.averaging is not None), optimizer


# A collective's table, executed by one process over the vectors of all workers.


def execute(
    collective: Collective, flats: list[Tensor], segments: Segments | None = None, length: int | None = None
) -> None:
    """Run a collective's table over vectors of one process; `segments` says how those of bytes are cut and added.

    `length` is how many numbers a lane of a vector has, where there are several.
    """
    workers, size = len(flats), flats[0].element_size()
    length = len(flats[0]) if length is None else length
    cuts = segments.cuts if segments else segment_cuts(length, collective.segments(workers), size)
    stride = lane_stride(length, size)

    def piece(part: Part, worker: int) -> Tensor:
        start, stop = span_of(part, cuts, stride)
        return flats[worker][start:stop]

    for row in zip(*(collective.steps(worker, workers) for worker in range(workers)), strict=True):
        blocks = [None if s.receive is None else piece(s.receive, s.receive.other).clone() for s in row]
        for worker, (step, received) in enumerate(zip(row, blocks, strict=True)):
            if step.receive is not None and received is not None:
                mine = piece(step.written, worker)
                if step.reduce and segments is not None:
                    segments.adder(flats[worker], step.receive.first, step.receive.stop)(received)
                else:
                    mine.add_(received) if step.reduce else mine.copy_(received)


# The sums of gradients under a codec, with every worker's encoder in one process.


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
