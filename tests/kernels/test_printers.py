"""All printers say the same: the slow one is the reference; the sequential text and lanes of several widths agree
with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import paceline.kernels.machine as machine
from paceline.kernels import fuse
from paceline.kernels.compiled import canonical, tensors_of
from paceline.kernels.cpu import Cpu, Form
from paceline.kernels.fused import Fused
from paceline.kernels.graph import describe
from paceline.kernels.losses import loss_kind
from paceline.kernels.lower import lower
from paceline.kernels.printers import numpy as slow
from paceline.kernels.runner import Runner
from paceline.kernels.weights import OneModel
from tests.kernels.networks import Case, encoders, examples, sequences


def reference(case: Case, seed: int = 0) -> tuple[float, dict[str, np.ndarray]]:
    model = copy.deepcopy(case.model).double()
    graph = canonical(describe(model, tuple(case.x.shape[1:]), not case.x.is_floating_point()), model)
    tensors = tensors_of(graph, model)
    trained = {name for name, _ in model.named_parameters()} & set(tensors)
    program = lower(graph, {n: tuple(t.shape) for n, t in tensors.items()}, trained, loss_kind(case.loss))
    weights = {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}
    return slow.run(program, weights, case.x.numpy(), case.y.numpy(), seed)


def agree(case: Case, seed: int = 0, make: Callable[..., Fused] = fuse) -> None:
    double = case.double()
    loss, gradients = make(double.model, case.loss, None, len(case.x)).loss_and_gradients(double.x, double.y, seed)
    wanted, slowly = reference(double, seed)
    assert loss == pytest.approx(wanted, rel=1e-10)
    for name, gradient in gradients.items():
        assert np.allclose(gradient.numpy(), slowly[name].reshape(gradient.shape), rtol=1e-9, atol=1e-11), name


@pytest.mark.usefixtures("quickly_compiled")
@examples(4)
@given(sequences())
def test_numpy_says_the_same_of_sequences(case: Case) -> None:
    agree(case)


@pytest.mark.usefixtures("quickly_compiled")
@examples(4)
@given(encoders())
def test_numpy_says_the_same_of_encoders(case: Case) -> None:
    agree(case)


def small() -> Case:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.GELU(),
        nn.MaxPool2d(2, padding=1),
        nn.Dropout(0.3),
        nn.Conv2d(5, 3, 2, stride=3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3, 18),
        nn.Tanh(),
        nn.Linear(18, 4),
    )
    return Case(model, torch.randn(21, 2, 7, 6), torch.randint(4, (21,)), nn.CrossEntropyLoss())


@pytest.mark.usefixtures("quickly_compiled")
def test_numpy_draws_the_same_dropout() -> None:
    agree(small(), seed=12345678901234)


@pytest.mark.usefixtures("quickly_compiled")
def test_numpy_says_the_same_of_every_activation() -> None:
    torch.manual_seed(3)
    kinds = (nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.GELU("tanh"))
    parts = [part for kind in kinds for part in (nn.Linear(5, 5), kind)]
    agree(Case(nn.Sequential(*parts), torch.randn(4, 5), torch.randint(5, (4,)), nn.CrossEntropyLoss()))


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize(
    "change", [{"bytes": 16, "registers": 16}, {"bytes": 32, "registers": 16}, {"scalar": True}, {"pixels": True}]
)
def test_any_width_of_vector_is_the_same_program(change: dict[str, object]) -> None:
    here = machine.target("double")
    form = Form(target=lambda real, batch: replace(here, **change))

    def make(model: nn.Module, loss: nn.Module, optimizer: None, batch: int) -> Fused:
        return Fused(OneModel(model), loss_kind(loss), batch, Runner(Cpu(2, form)))

    agree(small(), make=make)
