"""Every codec by itself: what it reads is what it wrote, what it leaves out is owed, and what is wrong is refused."""

from __future__ import annotations

import pytest
import torch

from paceline.algorithms.codecs import Codec, Field
from paceline.algorithms.codecs.catalogue import CODECS, parse
from paceline.errors import PlanError
from tests.each import each

SHAPES = [(1, 1), (3, 1), (1, 17), (5, 33), (64, 100)]
ALL = [*CODECS, "qsgd:2", "qsgd:8", "topk:0.2", "topk:1", "randomk:0.3", "powersgd:1", "threshold:0.5"]


def made(text: str) -> Codec:
    codec = parse(text)
    assert codec is not None
    return codec


def room(codec: Codec, shape: tuple[int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Fields full of something else, as a message has them that is written again."""

    def field(each: Field) -> torch.Tensor:
        kind = dtype if each.dtype == "own" else getattr(torch, each.dtype)
        return torch.full((each.length,), 77, dtype=kind)

    return [field(each) for each in codec.fields(shape)]


def through(codec: Codec, gradient: torch.Tensor, chance: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is decoded, and what is left out."""
    fields, left = room(codec, gradient.shape, gradient.dtype), gradient.clone()  # type: ignore[arg-type]
    remembered = codec.remembers(gradient.shape)
    codec.encode(left, fields, chance, gradient.new_zeros(remembered) if remembered else None)
    assert codec.refusal(fields, gradient.shape) is None
    out = torch.full_like(gradient, 9.0)
    codec.decode(fields, out, chance)
    return out, left


@each("dtype", [torch.float32, torch.float64])
@each("text", ALL)
def test_sent_and_owed_are_what_was_computed(text: str, dtype: torch.dtype) -> None:
    codec = made(text)
    for shape in SHAPES:
        gradient = torch.randn(shape, dtype=dtype)
        sent, owed = through(codec, gradient)
        if codec.feedback:
            torch.testing.assert_close(sent + owed, gradient, rtol=1e-6, atol=1e-6)
        again, _ = through(codec, gradient)
        assert torch.equal(sent, again), "the same chance makes the same message"


@pytest.mark.parametrize("text", [*CODECS])
def test_nothing_is_written_as_nothing(text: str) -> None:
    sent, owed = through(made(text), torch.zeros(4, 9))
    assert not sent.any()
    assert not owed.any()


@pytest.mark.parametrize("text", ["qsgd", "qsgd:2", "qsgd:8", "ternary"])
def test_random_rounding_has_the_gradient_as_its_mean(text: str) -> None:
    codec, gradient = made(text), torch.randn(4, 25)
    mean = torch.stack([through(codec, gradient, chance)[0] for chance in range(4000)]).mean(0)
    assert (mean - gradient).abs().max() < 5 * gradient.abs().max() / 4000**0.5


def test_what_single_codecs_promise() -> None:
    gradient = torch.randn(8, 50)
    assert torch.equal(through(made("half"), gradient)[0], gradient.half().float())
    assert float(through(made("half"), torch.full((1, 2), 1e6))[0].max()) == 65_504.0
    assert torch.equal(through(made("bfloat16"), gradient)[0], gradient.bfloat16().float())
    step = 2.0 ** torch.frexp(gradient.abs().amax(1)).exponent[:, None] / 128
    assert ((through(made("int8"), gradient)[1].abs() <= step / 2) | (gradient.abs() > 127 * step)).all()
    one = through(made("onebit"), gradient)[0]
    torch.testing.assert_close(one.sum(1), gradient.sum(1))
    assert torch.equal(one >= 0, gradient >= 0)
    top = through(made("topk:0.1"), gradient)[0]
    assert torch.equal(top.view(-1).abs().topk(40).values, gradient.view(-1).abs().topk(40).values)
    assert int((top != 0).sum()) == 40
    low = torch.randn(30, 2) @ torch.randn(2, 20)
    torch.testing.assert_close(through(made("powersgd:2"), low)[0], low, rtol=1e-4, atol=1e-4)


def test_factors_of_power_sgd_are_summed_before_they_are_decoded() -> None:
    """All workers decode one product; what each sent and owes is its own gradient, and the sum is that of the paper."""
    codec = made("powersgd:2")
    gradients = [torch.randn(9, 14, dtype=torch.float64) for _ in range(3)]
    left = [gradient.clone() for gradient in gradients]
    fields = [room(codec, (9, 14), torch.float64) for _ in left]
    memories = [torch.zeros(codec.remembers((9, 14)), dtype=torch.float64) for _ in left]
    for total, mine, memory in zip(left, fields, memories, strict=True):
        codec.begin(total, mine, 5, memory)
    start = memories[0].clone()
    assert all(torch.equal(memory, start) for memory in memories), "all begin with the same Q"
    summed = torch.stack([p for p, _ in fields]).sum(0)
    for total, (p, q) in zip(left, fields, strict=True):
        p.copy_(summed)
        codec.finish(total, [p, q])
    p, whole = fields[0][0], torch.stack([q for _, q in fields]).sum(0)
    decoded, basis = torch.empty(9, 14, dtype=torch.float64), p.view(-1, 2)
    codec.decode([p, whole], decoded, 5)
    torch.testing.assert_close(basis.T @ basis, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(decoded, basis @ basis.T @ sum(gradients))
    torch.testing.assert_close(decoded + sum(left), sum(gradients))
    codec.remember([p, whole], memories[0])
    torch.testing.assert_close(memories[0], sum(gradients).T @ basis)  # type: ignore[union-attr]


def test_places_beyond_the_tensor_are_refused() -> None:
    for text, field in (("topk:0.1", 0), ("threshold:0.5", 1)):
        codec, gradient = made(text), torch.randn(6, 10)
        for place in (-1, 2**30):
            fields = room(codec, (6, 10), torch.float32)
            codec.encode(gradient.clone(), fields, 1, None)
            fields[field][0] = place
            assert "beyond" in str(codec.refusal(fields, (6, 10)))
    fields[0][0] = 10**6
    assert "words" in str(codec.refusal(fields, (6, 10)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int9", "did you mean"),
        ("half:2", "has no number"),
        ("topk:two", "is not a number"),
        ("topk:0", "has to be from"),
        ("topk:nan", "has to be"),
        ("qsgd:3", "is not one of 2, 4, 8"),
        ("powersgd:1.5", "is not a whole number"),
        ("threshold:-1", "at least"),
    ],
)
def test_what_is_no_codec_is_refused_with_the_way_out(text: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        parse(text)
