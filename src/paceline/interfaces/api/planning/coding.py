"""What each codec does to the gradient of a job: the bytes of a message, and the seconds to write and to read it."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import nn

from paceline.algorithms.codecs.catalogue import CODECS, SENT, parse
from paceline.plans.methods.prediction import Coding
from paceline.training.gradients.encoder import GradientEncoder, PushedMessage
from paceline.training.gradients.message import MessageShape
from paceline.training.parameters.layout import Layout, lay_out

ENOUGH = 1 << 20  # numbers of a gradient by which codecs are timed; a larger one takes as many times as long
REPEATS = 3


def codings(layout: Layout) -> dict[str, Coding]:
    """Return what each codec does with its default to gradients of this layout."""
    return {name: coding(name, layout) for name in CODECS}


def coding(name: str, layout: Layout) -> Coding:
    """Return what one codec does: its bytes follow from the layout, its seconds are measured."""
    codec = parse(name)
    assert codec is not None
    shape = MessageShape(codec, layout.shards[0], layout.dtype)
    timed, times = layout, 1.0
    if layout.numbers > ENOUGH:
        timed, times = lay_out(nn.Linear(1024, 1024, dtype=layout.dtype), 1, []), layout.numbers / ENOUGH
    encode, decode = _seconds(GradientEncoder(codec, timed, [range(len(timed.shards[0].parameters))], 0))
    return Coding(shape.fixed + 4 * SENT * shape.words, times * encode, times * decode)


def _seconds(encoder: GradientEncoder) -> tuple[float, float]:
    """Return the least seconds that a message took to write, and to read."""
    (shape,) = encoder.shapes
    pushed = PushedMessage(shape, encoder.seed)
    gradients = [0.001 * torch.randn(span.shape, dtype=shape.dtype) for span in shape.shard.parameters]
    buffers = [torch.zeros(span.shape, dtype=shape.dtype) for span in shape.shard.buffers]
    written, read = [], []
    for update in range(REPEATS):
        start = perf_counter()
        encoder.write(0, gradients, buffers, (0.0, 0.0), pushed.message, update, 0)
        encoder.finalize()
        middle = perf_counter()
        pushed.gradients(update)
        written.append(middle - start)
        read.append(perf_counter() - middle)
    return min(written), min(read)
