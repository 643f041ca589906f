"""What was sent plus what is owed is what was computed: one worker's encoder over many updates, deaths and a resume."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.algorithms.codecs.catalogue import parse
from paceline.training.gradients.encoder import GradientEncoder, PushedMessage
from paceline.training.parameters.layout import Layout, lay_out

DEATH_EVERY = 7  # updates: the message is written, its exchange fails, and it is written again


def encoder_for(codec: str, layout: Layout) -> GradientEncoder:
    made = parse(codec)
    assert made is not None
    return GradientEncoder(made, layout, [range(len(layout.shards[0].parameters))], seed=3)


def drift(codec: str, module: nn.Module, updates: int) -> tuple[float, float]:
    """Return the largest difference between what was computed, and what was sent and is owed, over the gradients' sum;
    and the bytes sent of those of dense gradients.

    Half-way the worker is replaced by one that continues from its checkpoint.
    """
    layout = lay_out(module, 1, [])
    encoder, shape = encoder_for(codec, layout), encoder_for(codec, layout).shapes[0]
    pushed = PushedMessage(shape, encoder.seed)
    spans = layout.shards[0].parameters
    chance = torch.Generator().manual_seed(5)
    computed = [torch.zeros(span.shape, dtype=torch.float64) for span in spans]
    sent, sizes, carried = [each.clone() for each in computed], [each.clone() for each in computed], 0
    for update in range(updates):
        gradients = [0.01 * torch.randn(span.shape, generator=chance) for span in spans]
        for attempt in range(2 if update % DEATH_EVERY == 0 else 1):
            encoder.write(0, gradients, [], (0.0, 0.0), pushed.message, update, attempt)
        encoder.finalize()
        for number, gradient in enumerate(pushed.gradients(update)):
            assert gradient is not None
            computed[number] += gradients[number]
            sizes[number] += gradients[number].abs()
            sent[number] += gradient
        carried += pushed.message.bytes
        if update == updates // 2:
            kept, encoder = encoder.state(), encoder_for(codec, layout)
            encoder.restore(kept)
    owed = [memory.get("owed", torch.zeros(span.shape)) for memory, span in zip(encoder.residuals, spans, strict=True)]
    return max(
        _apart(*each) for each in zip(computed, sent, owed, sizes, strict=True)
    ), carried / updates / layout.bytes


def _apart(computed: Tensor, sent: Tensor, owed: Tensor, sizes: Tensor) -> float:
    return float(((computed - sent - owed).abs() / sizes).max())


def owing(names: Sequence[str]) -> list[str]:
    """Return the codecs that owe what they leave out."""
    return [name for name in names if (made := parse(name)) is not None and made.feedback]
