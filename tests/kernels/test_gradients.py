"""Gradients of generated code are PyTorch's: to rounding in float64, to what float32 allows in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.kernels import Fused, fuse, processors
from tests.kernels.networks import Case, drawn, encoders, examples, images, operations, sequences


@pytest.mark.usefixtures("quickly_compiled")
@examples(5)
@given(images())
def test_images(case: Case) -> None:
    check(case.double(), 1e-10)


@pytest.mark.usefixtures("quickly_compiled")
@examples(4)
@given(sequences())
def test_sequences(case: Case) -> None:
    check(case.double(), 1e-10)


@pytest.mark.usefixtures("quickly_compiled")
@examples(2)
@given(images())
def test_images_in_single_precision(case: Case) -> None:
    check(case, 1e-4)


@pytest.mark.usefixtures("quickly_compiled")
@examples(2)
@given(sequences())
def test_sequences_in_single_precision(case: Case) -> None:
    check(case, 1e-4)


@pytest.mark.usefixtures("quickly_compiled")
@examples(4)
@given(images())
def test_images_one_by_one(case: Case) -> None:
    check_one_by_one(case.double(), 1e-10)


@pytest.mark.usefixtures("quickly_compiled")
@examples(3)
@given(sequences())
def test_sequences_one_by_one(case: Case) -> None:
    check_one_by_one(case.double(), 1e-10)


@pytest.mark.usefixtures("quickly_compiled")
@examples(5)
@given(encoders())
def test_encoders(case: Case) -> None:
    check(case.double(), 1e-10)


@pytest.mark.usefixtures("quickly_compiled")
@examples(3)
@given(encoders())
def test_encoders_one_by_one(case: Case) -> None:
    check_one_by_one(case.double(), 1e-10)


@pytest.mark.usefixtures("quickly_compiled")
@examples(6)
@given(operations())
def test_operations(case: Case) -> None:
    check(case.double(), 1e-10)


class Turned(nn.Module):
    """What a dense layer gives, with steps and features exchanged, is added to what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.head = nn.Linear(7, 7), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x + self.steps(x.transpose(1, 2)).transpose(1, 2)).mean(1)
        return scores


class Joined(nn.Module):
    """A function of two branches side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(torch.cat([self.one(x), self.other(x)], dim=-1))).mean(1)
        return scores


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("make", [Turned, Joined])
def test_what_follows_a_dense_layer_may_lie_elsewhere(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    case = Case(make(), torch.randn(18, 7, 5), torch.randint(3, (18,)), nn.CrossEntropyLoss())
    check(case.double(), 1e-10)


class Causal(nn.Conv1d):
    """A convolution that sees no later step: a subclass with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (2, 0)))


class Adapted(nn.Linear):
    """A dense layer and a way around it through few numbers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x) + self.up(self.down(x))
        return found


class Channels(nn.LayerNorm):
    """A norm over channels that come before places."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT).mT


class Tied(nn.Module):
    """An encoder whose weight, turned, is the decoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, self.weight)), self.weight.t(), self.bias)


class Unheeding(nn.TransformerEncoderLayer):
    """A layer of an encoder without its attention."""

    def forward(self, src: Tensor, *_: Any, **__: Any) -> Tensor:
        found: Tensor = src + self.linear2(torch.relu(self.linear1(src)))
        return found


class Decoder(nn.Module):
    """A decoder of what an encoder made of the same steps."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(6, 2, 5, 0.0, batch_first=True, norm_first=first)
        self.coded, self.body = nn.Linear(6, 6), nn.TransformerDecoder(layer, 1)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x, self.coded(x), tgt_mask=self.mask)
        return found


WRITTEN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "padded": (lambda: nn.Sequential(nn.ConstantPad2d((1, 2, 0, 1), 0.5), nn.Conv2d(2, 3, 3), nn.ReLU()), (2, 4, 5)),
    "causal": (lambda: nn.Sequential(Causal(2, 3, 3), nn.ReLU(), Causal(3, 2, 3)), (2, 7)),
    "adapted": (lambda: nn.Sequential(Adapted(5, 6), nn.Tanh(), Adapted(6, 3)), (5,)),
    "channels": (lambda: nn.Sequential(Channels(4), nn.Linear(5, 2)), (4, 5)),
    "tied": (Tied, (6,)),
    "unheeding": (lambda: nn.TransformerEncoder(Unheeding(6, 2, 5), 2, enable_nested_tensor=False), (4, 6)),
    "decoder": (lambda: Decoder(False), (4, 6)),
    "decoder, norms first": (lambda: Decoder(True), (4, 6)),
}


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("name", WRITTEN)
def test_layers_that_people_write(name: str) -> None:
    torch.manual_seed(0)
    make, shape = WRITTEN[name]
    model, x = make(), torch.randn(18, *shape)
    case = Case(model, x, torch.randn_like(model(x)), nn.MSELoss())
    check_all_that_is_used(case.double())


def check_all_that_is_used(case: Case) -> None:
    """Gradients of the parameters that the model uses; it has no gradient of others."""
    loss, gradients = fuse(copy.deepcopy(case.model), case.loss, None, len(case.x)).loss_and_gradients(case.x, case.y)
    wanted = case.loss(case.model(case.x), case.y)
    wanted.backward()
    assert loss == pytest.approx(float(wanted.detach()), rel=1e-10)
    used = {name: p.grad for name, p in case.model.named_parameters() if p.grad is not None}
    assert used
    for name, gradient in used.items():
        assert torch.allclose(gradients[name], gradient, rtol=1e-10, atol=1e-12), name


@pytest.mark.soak
@pytest.mark.parametrize("strategy", [images, sequences, encoders, operations])
def test_many_networks(strategy: Callable[[], SearchStrategy[Case]]) -> None:
    """In both precisions, side by side and one by one."""
    for case in drawn(strategy(), 40):
        check(case, 1e-10)
        check_one_by_one(case, 1e-10)
        single = Case(
            case.model.float(),
            case.x.float() if case.x.is_floating_point() else case.x,
            case.y.float() if case.y.is_floating_point() else case.y,
            case.loss,
        )
        check(single, 1e-4)
        check_one_by_one(single, 1e-4)


def check_one_by_one(case: Case, tolerance: float) -> None:
    """In vectors of a sample's own pixels and channels, as where a batch has one or two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processors, "FEW", 1000)
        check(case, tolerance)


def check(case: Case, tolerance: float, make: Callable[..., Fused] = fuse) -> None:
    """Loss, gradients, and the statistics that batch-norm keeps."""
    twin = copy.deepcopy(case.model)
    compare(case, *make(twin, case.loss, None, len(case.x)).loss_and_gradients(case.x, case.y), twin, tolerance)


def compare(case: Case, loss: float, gradients: dict[str, Tensor], twin: nn.Module, tolerance: float) -> None:
    exact = copy.deepcopy(case.model).double()  # what float32 is measured against
    for part in exact.modules():
        if isinstance(part, nn.RMSNorm) and part.eps is None:  # it follows the parameters' type
            part.eps = torch.finfo(next(case.model.parameters()).dtype).eps
    x = case.x.double() if case.x.is_floating_point() else case.x
    y = case.y.double() if case.y.is_floating_point() else case.y
    wanted = case.loss(exact(x), y)
    wanted.backward()
    assert loss == pytest.approx(float(wanted.detach()), rel=tolerance, abs=tolerance)
    largest = max(float(p.grad.abs().max()) for p in exact.parameters() if p.grad is not None)
    for name, parameter in exact.named_parameters():
        assert parameter.grad is not None
        gap = float((gradients[name] - parameter.grad).abs().max())
        scale = max(float(parameter.grad.abs().max()), 1e-2 * largest)  # a gradient may be zero but for rounding
        assert gap <= tolerance * scale, f"{name}: {gap / scale:.1e}, of {case.model}"
    for (name, one), other in zip(twin.named_buffers(), exact.buffers(), strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance), name
