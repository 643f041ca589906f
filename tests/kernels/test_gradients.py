"""Gradients of generated code are PyTorch's: to rounding in float64, to what float32 allows in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from paceline.kernels import Fused, cpu, fuse
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


@pytest.mark.soak
@pytest.mark.parametrize("strategy", [images, sequences, encoders, operations])
def test_many_networks(strategy: Callable[[], SearchStrategy[Case]]) -> None:
    """In both precisions, side by side and one by one."""
    for case in drawn(strategy(), 40):
        check(case, 1e-10)
        check_one_by_one(case, 1e-10)
        single = Case(case.model.float(), case.x.float() if case.x.is_floating_point() else case.x,
                      case.y.float() if case.y.is_floating_point() else case.y, case.loss)  # fmt: skip
        check(single, 1e-4)
        check_one_by_one(single, 1e-4)


def check_one_by_one(case: Case, tolerance: float) -> None:
    """In vectors of a sample's own pixels and channels, as where a batch has one or two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "FEW", 1000)
        check(case, tolerance)


def check(case: Case, tolerance: float, make: Callable[..., Fused] = fuse) -> None:
    """Loss, gradients, and the statistics that batch-norm keeps."""
    twin = copy.deepcopy(case.model)
    compare(case, *make(twin, case.loss, None, len(case.x)).loss_and_gradients(case.x, case.y), twin, tolerance)


def compare(case: Case, loss: float, gradients: dict[str, Tensor], twin: nn.Module, tolerance: float) -> None:
    exact = copy.deepcopy(case.model).double()  # what float32 is measured against
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
