"""The identity of error feedback, gradients that are not finite, and messages that nobody should read."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from paceline.algorithms.codecs import Codec
from paceline.algorithms.codecs.catalogue import CODECS, parse
from paceline.errors import FrameError
from paceline.kernels import codecs
from paceline.training.gradients.encoder import GradientEncoder, Loops, PushedMessage
from paceline.training.gradients.message import GradientMessage
from paceline.training.parameters.layout import lay_out
from tests.training.gradients.error_feedback import drift, owing

# --- Error feedback loses nothing, over a thousand updates, deaths and a resume ---------------------------------------


@pytest.mark.parametrize("codec", owing(list(CODECS)))
def test_sent_and_owed_are_computed_after_a_thousand_updates(codec: str) -> None:
    apart, _ = drift(codec, nn.Linear(24, 12), 1000)
    assert apart < 1e-6


def test_rounding_at_random_owes_nothing_and_is_off() -> None:
    apart, _ = drift("qsgd:2", nn.Linear(24, 12), 50)
    assert apart > 1e-3, "the measure sees what is lost"


# --- Native loops and PyTorch's way have the same bits ----------------------------------------------------------------

TEXTS = [
    "half",
    "bfloat16",
    "int8",
    "qsgd:2",
    "qsgd",
    "qsgd:8",
    "ternary",
    "onebit",
    "threshold:1.5",
    "topk:0.1",
    "topk:1",
    "topk",
]
CHANCE = 0x9E3779B97F4A7C15
LOOPS_SHAPES = [(1, 1), (3, 17), (64, 784), (7, 1000), (2, 16), (5, 31)]


def room(codec: Codec, shape: tuple[int, int]) -> list[Tensor]:
    fields = codec.fields(shape)
    return [torch.zeros(f.length, dtype=torch.float32 if f.dtype == "own" else getattr(torch, f.dtype)) for f in fields]


@pytest.mark.skipif(codecs.native() is None, reason="there is no compiler")
@pytest.mark.parametrize("text", TEXTS)
def test_native_loops_have_the_bits_of_the_codec(text: str) -> None:
    codec = parse(text)
    assert codec is not None
    loops = Loops(codec, torch.float32)
    for shape in LOOPS_SHAPES:
        for gradient in (
            torch.randn(shape),
            torch.zeros(shape),
            (4 * torch.randn(shape)).round() / 4,
            1e30 * torch.randn(shape),
        ):
            (one, first), (two, second) = ((gradient.clone(), room(codec, shape)) for _ in range(2))
            codec.encode(one, first, CHANCE, None)
            loops.encode(two, second, CHANCE, None)
            assert torch.equal(one, two)
            for a, b in zip(first, second, strict=True):
                assert torch.equal(a, b)
            here, there = torch.empty(shape), torch.empty(shape)
            codec.decode(first, here, 1)
            loops.decode(second, there, 1)
            assert torch.equal(here, there)


@pytest.mark.parametrize("owed", [None, torch.full((3, 17), 0.5)])
def test_a_gradient_that_is_not_finite_is_noticed(owed: Tensor | None) -> None:
    codec = parse("int8")
    assert codec is not None
    loops, total = Loops(codec, torch.float32), torch.empty(3, 17)
    gradient = torch.randn(3, 17)
    assert loops.add_owed(owed, gradient, total)
    assert torch.equal(total, gradient if owed is None else gradient + owed)
    assert loops.add_owed(owed, torch.full((3, 17), 3e38), total)  # finite, though its sum is not
    for wrong in (float("nan"), float("inf"), -float("inf")):
        gradient[2, 16] = wrong
        assert not loops.add_owed(owed, gradient, total)
        assert not loops.add_owed(owed, gradient.t().clone().t(), total)


LAYOUT = lay_out(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 3)), 1, [])
SHAPES = [span.shape for span in LAYOUT.shards[0].parameters]
#: With a threshold of the size of the gradients: with one that is far too small, what is owed grows without end.
OWING = [{"threshold": "threshold:0.05"}.get(name, name) for name, row in CODECS.items() if row.make().feedback]


def encoder(codec: Codec) -> tuple[GradientEncoder, PushedMessage]:
    made = GradientEncoder(codec, LAYOUT, [range(len(SHAPES))], 1)
    return made, PushedMessage(made.shapes[0], 1)


def coded(name: str) -> Codec:
    codec = parse(name)
    assert codec is not None
    return codec


def owed(made: GradientEncoder, number: int) -> Tensor:
    return made.residuals[number].get("owed", torch.zeros(SHAPES[number]))


@pytest.mark.parametrize("name", OWING)
def test_what_was_sent_and_what_is_owed_is_what_was_computed(name: str) -> None:
    """After 1,000 updates, of which the last 300 are another encoder's that took the state of a checkpoint."""
    made, pushed = encoder(coded(name))
    computed, sent = ([torch.zeros(shape, dtype=torch.float64) for shape in SHAPES] for _ in range(2))
    draw = torch.Generator().manual_seed(1)
    for update in range(1000):
        if update == 700:
            state = made.state()
            made, pushed = encoder(coded(name))
            made.restore(state)
        gradients = [0.05 * torch.randn(shape, generator=draw) for shape in SHAPES]
        made.write(0, gradients, [], (0.0, 0.0), pushed.message, update, 0)
        if update % 10 == 0:  # the exchange fails, and is made again
            made.write(0, gradients, [], (0.0, 0.0), pushed.message, update, 0)
        made.finalize()
        for total, gradient in zip(computed, gradients, strict=True):
            total += gradient
        for total, gradient in zip(sent, pushed.gradients(update), strict=True):
            assert gradient is not None
            total += gradient
    for number, (a, b) in enumerate(zip(computed, sent, strict=True)):
        gap = (a - b - owed(made, number)).norm() / a.norm()
        assert gap < 1e-6, f"{name}: {gap:.1e}"


@pytest.mark.parametrize("name", CODECS)
def test_a_gradient_that_is_not_finite_is_not_hidden(name: str) -> None:
    made, pushed = encoder(coded(name))
    gradients = [torch.randn(shape) for shape in SHAPES]
    gradients[0][3, 4] = float("nan")
    made.write(0, gradients, [], (0.0, 0.0), pushed.message, 0, 0)
    made.finalize()
    first, *others = pushed.gradients(0)
    assert first is not None
    assert first.isnan().all()
    assert all(each is not None and each.isfinite().all() for each in others)
    assert all(not value.isnan().any() for memory in made.residuals for value in memory.values())


def test_biases_and_what_would_not_shrink_stay_dense() -> None:
    made, _ = encoder(coded("int8"))
    assert made.shapes[0].coded == (0, 2)
    assert encoder(coded("topk:0.6"))[0].shapes[0].coded == ()


@pytest.mark.parametrize("name", CODECS)
def test_a_missing_gradient_is_missing_and_owes_what_it_owed(name: str) -> None:
    made, pushed = encoder(coded(name))
    made.write(0, [torch.randn(shape) for shape in SHAPES], [], (0.0, 0.0), pushed.message, 0, 0)
    made.finalize()
    before = owed(made, 0).clone()
    made.write(0, [None, *(torch.randn(shape) for shape in SHAPES[1:])], [], (0.0, 0.0), pushed.message, 1, 0)
    made.finalize()
    assert pushed.gradients(1)[0] is None
    assert torch.equal(owed(made, 0), before)


@pytest.mark.parametrize("name", CODECS)
def test_bytes_at_random_are_refused_or_read_without_harm(name: str) -> None:
    """A message of a peer that is broken or hostile: whatever its bytes say, nothing beyond the gradient is touched."""
    draw = random.Random(7)
    made, pushed = encoder(coded(name))
    shape, refused = made.shapes[0], 0
    for _ in range(60):
        made.write(0, [torch.randn(s) for s in SHAPES], [], (0.0, 0.0), pushed.message, 0, 0)
        made.finalize()
        size = pushed.message.bytes
        raw = pushed.message.raw.clone()
        for _ in range(draw.randint(1, 40)):
            raw[draw.randrange(shape.field_bytes)] = draw.randrange(256)
        hostile = PushedMessage(shape, 1, raw)
        try:
            hostile.message.check_words(size - shape.fixed)
            hostile.message.check()
        except FrameError:
            refused += 1
        else:
            hostile.gradients(0)
    assert refused or name not in ("threshold", "topk")


def test_a_truncated_message_is_refused() -> None:
    made, pushed = encoder(coded("threshold:0.01"))
    made.write(0, [torch.randn(s) for s in SHAPES], [], (0.0, 0.0), pushed.message, 0, 0)
    words = pushed.message.bytes - made.shapes[0].fixed
    for size in (0, 4, words - 4, words + 4, words + 1):
        with pytest.raises(FrameError, match="announces"):
            GradientMessage(made.shapes[0], pushed.message.raw).check_words(size)
