"""Activations that are formulas of others: values and gradients as PyTorch has them, in one compiled network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.kernels import fuse


class Functions(nn.Module):
    """The same as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(x), 0.3)
        return self.last(F.hardtanh(F.relu6(F.elu(x) + 1) - 1, -0.5, 2.0))


def modules() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8), nn.ELU(0.7), nn.Linear(8, 8), nn.Hardswish(),
        nn.Linear(8, 8), nn.ReLU6(), nn.Linear(8, 8), nn.Hardtanh(-1, 2), nn.Linear(8, 8), nn.Hardsigmoid(),
        nn.Linear(8, 8), nn.SELU(), nn.Linear(8, 8), nn.CELU(0.6), nn.Linear(8, 3),
    )  # fmt: skip


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("make", [modules, Functions])
def test_values_and_gradients_are_those_of_pytorch(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x, y = make(), 6 * torch.randn(16, 6), torch.randint(3, (16,))
    expected = nn.functional.cross_entropy(model(x), y)
    expected.backward()
    loss, gradients = fuse(model, nn.CrossEntropyLoss(), None, 16).loss_and_gradients(x, y)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-5)
