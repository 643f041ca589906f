"""Gradients of generated code are PyTorch's: to rounding in float64, to what float32 allows in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

from paceline.kernels import Fused, cpu, fuse
from tests.kernels.networks import Case, images, sequences

SOME = settings(
    max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SOME
@given(images())
def test_images(case: Case) -> None:
    check(case.double(), 1e-10)


@SOME
@given(sequences())
def test_sequences(case: Case) -> None:
    check(case.double(), 1e-10)


@settings(SOME, max_examples=4)
@given(images())
def test_images_in_single_precision(case: Case) -> None:
    check(case, 1e-4)


@settings(SOME, max_examples=4)
@given(sequences())
def test_sequences_in_single_precision(case: Case) -> None:
    check(case, 1e-4)


@settings(SOME, max_examples=6)
@given(images())
def test_images_one_by_one(case: Case) -> None:
    """In vectors of a sample's own pixels and channels, as where a batch has one or two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "FEW", 1000)
        check(case.double(), 1e-10)
        check(Case(case.model.float(), case.x.float(), case.y, case.loss), 1e-4)


@settings(SOME, max_examples=6)
@given(sequences())
def test_sequences_one_by_one(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "FEW", 1000)
        check(case.double(), 1e-10)


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
