"""Networks as people write them have PyTorch's gradients, to rounding in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.kernels import CannotFuse, fuse, machine, processors
from tests.kernels.networks import Case
from tests.kernels.programs import PROGRAMS
from tests.kernels.test_gradients import check

# --- Activations that are formulas of others: values and gradients as PyTorch has them, in one compiled network -------


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


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_pytorch(name: str) -> None:
    check(_drawn(name).double(), 1e-10)


@pytest.mark.soak
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_samples_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "FEW", 1000)
    check(_drawn(name).double(), 1e-10)
    check(_drawn(name), 1e-3)


@pytest.mark.parametrize("width", [16, 32, 64])  # with all optimisations, which the fault needed
def test_a_causal_language_model_of_few_samples_in_float32(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "vector", lambda: (width, 32 if width == 64 else 16))
    case = _drawn("language_model")
    for samples in (1, 2):
        check(Case(case.model, case.x[:samples], case.y[:samples], case.loss), 1e-3)


def _drawn(name: str) -> Case:
    torch.manual_seed(0)
    model, x, y, loss = PROGRAMS[name]()
    if isinstance(loss, nn.Module):
        loss = loss.double()
    return Case(model, x, y, loss)


class Reversed(nn.Module):
    """An embedding of numbers that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table(4 - x).mean(1)
        return found


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (Reversed(), torch.zeros(4, 2, dtype=torch.long), "whose rows' numbers are computed"),
        (nn.Sequential(nn.Embedding(3, 2)), torch.full((4, 2), 3), "tokens from 3 to 3, for an embedding of 3 rows"),
        (nn.GRU(2, 3), torch.zeros(4, 2, 2), "batch_first=False"),
        (nn.Upsample(scale_factor=1.5), torch.zeros(4, 2, 4), "no whole numbers of times"),
    ],
)
def test_what_has_no_kernel_says_what_has(model: nn.Module, x: Tensor, message: str) -> None:
    if not list(model.parameters()):
        model = nn.Sequential(nn.Conv1d(2, 2, 1), model)
    with pytest.raises(CannotFuse, match=message):
        fuse(copy.deepcopy(model), nn.MSELoss(), None, 4).loss_and_gradients(x, torch.zeros(4, 2))
