"""The library: every way to convolve gives what PyTorch gives, the tuner keeps its word, fixed point and LSTM agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import JobError
from paceline.kernels.library import ALGORITHMS, Lstm, Shape, choose, conv2d, convolution, fixed
from paceline.kernels.library.recurrent import ORDERS
from tests.each import each

# Of the largest output: rounding of float32 over sums of some hundred products. F(4 x 4) and spectra lose more.
TOLERANCE = {"direct": 2e-6, "unrolled": 2e-6, "winograd2": 2e-6, "winograd4": 3e-5, "fft": 2e-5}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose.cache_clear()
    monkeypatch.setattr(convolution, "folder", lambda: tmp_path)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Odd sizes; images of one pixel, strides beyond the filter, more padding than image."""
    r, s = draw(st.sampled_from([(3, 3), (1, 1), (5, 5), (2, 4), (7, 1)]))
    pad, stride = draw(st.integers(0, 3)), draw(st.integers(1, 4))
    h, w = draw(st.integers(max(1, r - 2 * pad), 37)), draw(st.integers(max(1, s - 2 * pad), 70))
    n, c, k = draw(st.integers(1, 3)), draw(st.integers(1, 7)), draw(st.integers(1, 29))
    return Shape(n, c, h, w, k, r, s, 1 if r == s == 3 else stride, pad)


def data(shape: Shape, seed: int = 0) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(shape.n, shape.c, shape.h, shape.w, generator=chance)
    return x, torch.randn(shape.k, shape.c, shape.r, shape.s, generator=chance)


@settings(max_examples=20)
@given(shape=shapes(), threads=st.integers(1, 3))
def test_every_way_to_convolve_gives_what_torch_gives(shape: Shape, threads: int) -> None:
    check_ways(shape, threads)


@pytest.mark.soak
@settings(max_examples=500)
@given(shape=shapes(), threads=st.integers(1, 3))
def test_many_shapes_by_every_way_to_convolve(shape: Shape, threads: int) -> None:
    check_ways(shape, threads)


def check_ways(shape: Shape, threads: int) -> None:
    x, filters = data(shape)
    exact = functional.conv2d(x.double(), filters.double(), stride=shape.stride, padding=shape.pad)
    for name, algorithm in ALGORITHMS.items():
        if algorithm.fits(shape):
            error = float((algorithm.run(shape, x, filters, threads) - exact).abs().max())
            assert error <= TOLERANCE[name] * max(1.0, float(exact.abs().max())), (name, error)


@settings(max_examples=12)
@given(shape=shapes(), algorithm=st.sampled_from(["direct", "unrolled", "fft"]))
def test_gradients_are_convolutions_too(shape: Shape, algorithm: str) -> None:
    x, filters = (t.requires_grad_() for t in data(shape))
    ours = conv2d(x, filters, stride=shape.stride, padding=shape.pad, algorithm=algorithm, threads=2)
    theirs = functional.conv2d(x, filters, stride=shape.stride, padding=shape.pad)
    seed = torch.randn_like(theirs)
    for mine, other in zip(
        torch.autograd.grad(ours, (x, filters), seed), torch.autograd.grad(theirs, (x, filters), seed), strict=True
    ):
        assert float((mine - other).abs().max()) <= 1e-4 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("algorithm", ["direct", "unrolled", "winograd2", "winograd4"])
def test_the_number_of_threads_changes_no_bit(algorithm: str) -> None:
    shape = Shape(3, 5, 19, 33, 13, 3, 3, 1, 1)
    x, filters = data(shape)
    one, *others = (ALGORITHMS[algorithm].run(shape, x, filters, threads) for threads in (1, 2, 3, 8))
    assert all(torch.equal(one, other) for other in others)


def test_a_choice_is_made_once_and_heeds_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(2, 8, 20, 20, 8, 3, 3, 1, 1)
    first = choose(shape)
    assert set(first.seconds) == set(ALGORITHMS)
    assert first.algorithm == min(first.seconds, key=lambda name: first.seconds[name])
    choose.cache_clear()
    monkeypatch.setattr(convolution, "measured", lambda *_: pytest.fail("it was measured again"))
    assert choose(shape) == first  # another process finds it on the disk
    monkeypatch.undo()
    needs = {name: 4 * algorithm.workspace(shape, 1) for name, algorithm in ALGORITHMS.items()}
    least = min(needs.values())
    tight = convolution.measured(shape, memory=least)
    assert {name for name in tight.seconds if needs[name] > least} == set()
    assert "MB beside" in "".join(tight.left_out.values())
    assert tight.algorithm in tight.table(shape)
    with pytest.raises(JobError, match="no way to convolve"):
        convolution.measured(shape, memory=16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1, 1, 3, 3, 1, 5, 5), "larger than the padded image"), ((1, 0, 3, 3, 1, 3, 3), "at least one")],
)
def test_hostile_shapes(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Shape(*arguments)
    with pytest.raises(JobError, match="takes x"):
        conv2d(torch.ones(1, 2, 4, 4), torch.ones(1, 3, 2, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(1, 2, 9, 9, dtype=torch.double)}, "takes float32 on the CPU"),
        ({"filters": torch.zeros(3, 2, 3, 3, dtype=torch.half)}, "takes float32 on the CPU"),
        ({"algorithm": "magic"}, "there is no algorithm 'magic'"),
        ({"algorithm": "winograd2", "stride": 2}, "winograd2 does not take"),
        ({"stride": (1, 1)}, "whole numbers, the same both ways"),
        ({"threads": -1}, "not at least 1"),
        ({"memory": 0}, "makes do with 0 bytes"),
    ],
)
def test_what_the_text_could_not_read_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(JobError, match=message):
        conv2d(**({"x": torch.zeros(1, 2, 9, 9), "filters": torch.zeros(3, 2, 3, 3)} | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content", ["", "null", "[]", '{"algorithm": "magic", "seconds": {}, "left_out": {}}', '{"algo']
)
def test_a_choice_that_was_spoilt_is_made_anew(content: str) -> None:
    shape = Shape(1, 2, 9, 9, 3, 3, 3)
    file = convolution._file(shape, None, 1)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert choose(shape).algorithm in ALGORITHMS
    assert convolution._read(file) == choose(shape)


def test_a_bias_and_a_chosen_way() -> None:
    x, filters, bias = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3), torch.randn(4)
    assert torch.allclose(
        conv2d(x, filters, bias, padding=1), functional.conv2d(x, filters, bias, padding=1), atol=1e-4
    )


# --- fixed point ------------------------------------------------------------------------------------------------------


def lenet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def on_a_grid(*shape: int) -> Tensor:
    """Numbers that no one rounds to another byte."""
    chance = torch.Generator().manual_seed(sum(shape))
    x = (torch.randint(-100, 156, shape, generator=chance) + 0.6 * torch.rand(shape, generator=chance) - 0.3) / 50
    x.view(-1)[:1], x.view(-1)[1:2] = 155 / 50, -100 / 50
    return x.clamp(-100 / 50, 155 / 50)


def test_fixed_point_is_the_sum_of_whole_numbers() -> None:
    """Against the same formula in 64 bits, so bit for bit of the sums."""
    torch.manual_seed(0)
    for outputs, depth, count in ((1, 1, 1), (17, 9, 5), (33, 100, 7), (70, 131, 50), (512, 512, 30)):
        layer = nn.Linear(depth, outputs)
        x = on_a_grid(count, depth)
        made = fixed(nn.Sequential(layer), x)[0]  # type: ignore[index]
        scale = layer.weight.detach().abs().amax(1).clamp_min(1e-12) / 127
        weights = (layer.weight.detach() / scale[:, None]).round().long()
        taken = (x * torch.tensor(1 / made.step) + made.zero + 0.5).clamp(0, 255).to(torch.uint8).long()
        expected = ((taken - made.zero) @ weights.T).double() * (scale * made.step).double() + layer.bias.double()
        assert float((made(x) - expected).detach().abs().max()) < 1e-5 * (1 + depth**0.5)


@settings(max_examples=15)
@given(shapes(), st.integers(1, 6), st.integers(1, 3))
def test_fixed_convolutions_are_sums_of_whole_numbers(shape: Shape, stride: int, threads: int) -> None:
    """What lies beyond an image must be the byte that stands for nought, and every lane must see its own pixels."""
    x, filters = on_a_grid(shape.n, shape.c, shape.h, shape.w), data(shape)[1]
    layer = nn.Conv2d(shape.c, shape.k, (shape.r, shape.s), stride, shape.pad)
    with torch.no_grad():
        layer.weight.copy_(filters)
    made = fixed(nn.Sequential(layer), x)[0]  # type: ignore[index]
    scale = filters.abs().amax((1, 2, 3)).clamp_min(1e-12) / 127
    weights = (filters / scale[:, None, None, None]).round().double()
    taken = (x * torch.tensor(1 / made.step) + made.zero + 0.5).clamp(0, 255).to(torch.uint8).double()
    sums = functional.conv2d(taken - made.zero, weights, stride=stride, padding=shape.pad)
    expected = sums * (scale * made.step).double()[:, None, None] + layer.bias.double()[:, None, None]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert float((made(x) - expected).detach().abs().max()) < 1e-5 * (1 + float(expected.detach().abs().max()))
    finally:
        torch.set_num_threads(before)


def test_a_network_in_fixed_point_says_nearly_the_same() -> None:
    model, x = lenet(), torch.rand(100, 1, 28, 28)
    whole = fixed(model, x)
    with torch.no_grad():
        exact, ours = model(x), whole(x)
    assert float((exact - ours).abs().max()) < 0.03 * float(exact.abs().max())
    assert isinstance(model[0], nn.Conv2d)  # the model itself stays as it is


def test_what_fixed_point_cannot_do_is_said() -> None:
    with pytest.raises(JobError, match="no Linear and no Conv2d"):
        fixed(nn.Sequential(nn.ReLU()), torch.ones(1, 2))
    with pytest.raises(JobError, match="without groups"):
        fixed(nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)), torch.ones(1, 2, 5, 5))


# --- recurrent --------------------------------------------------------------------------------------------------------


@each("order", ORDERS)
@each("threads", [1, 2, 5])
@each("sizes", [(1, 1, 1, 1, 1), (7, 3, 9, 5, 2), (6, 2, 20, 33, 4), (5, 9, 4, 16, 3)])
def test_lstm_layers_in_either_order(sizes: tuple[int, ...], threads: int, order: str) -> None:
    steps, batch, inputs, units, layers = sizes
    torch.manual_seed(1)
    theirs = nn.LSTM(inputs, units, layers)
    x, seed = torch.randn(steps, batch, inputs, requires_grad=True), torch.randn(steps, batch, units)
    out, other = Lstm(theirs, order, threads)(x), theirs(x)[0]
    found = torch.autograd.grad(out, (x, *theirs.parameters()), seed)
    expected = torch.autograd.grad(other, (x, *theirs.parameters()), seed)
    for mine, his in zip((out, *found), (other, *expected), strict=True):
        assert float((mine - his).detach().abs().max()) < 2e-5 * max(1.0, float(his.detach().abs().max()))


def test_the_wavefront_gives_the_bits_of_the_other_order() -> None:
    given, x = nn.LSTM(12, 24, 3, batch_first=True), torch.randn(4, 11, 12)
    with torch.no_grad():
        outs = [Lstm(given, order, threads)(x) for order in ORDERS for threads in (1, 2, 3)]
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_an_lstm_of_another_kind_is_refused() -> None:
    with pytest.raises(JobError, match="two directions"):
        Lstm(nn.LSTM(3, 3, bidirectional=True))
    with pytest.raises(JobError, match="neither of"):
        Lstm(nn.LSTM(3, 3), "diagonal")
    with pytest.raises(JobError, match="GRU is not for the wavefront"):
        Lstm(nn.GRU(3, 3))  # type: ignore[arg-type]
    with pytest.raises(JobError, match=r"gets x of \(5, 1, 4\)"):
        Lstm(nn.LSTM(3, 3))(torch.zeros(5, 1, 4))
    with pytest.raises(JobError, match="takes float32 on the CPU"):
        Lstm(nn.LSTM(3, 3).double())(torch.zeros(5, 1, 3).double())
