"""All printers say the same: the slow one is the reference; the sequential text and lanes of several widths agree
with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import paceline.kernels.machine as machine
from paceline.kernels import fuse
from paceline.kernels.compiled import canonical, lower, tensors_of
from paceline.kernels.fused import Fused
from paceline.kernels.graph import describe
from paceline.kernels.ir import Index, Loop
from paceline.kernels.losses import loss_kind
from paceline.kernels.measure.networks import CNN
from paceline.kernels.measure.study import study_network
from paceline.kernels.printers import numpy as slow
from paceline.kernels.printers.study import Parts, parts
from paceline.kernels.processors import Cpu, Form, Runner
from paceline.kernels.weights import OneModel
from tests.kernels.networks import Case, encoders, examples, sequences

# A published study's way with ranks: each computes parts of a layer, which are gathered; the bits are the sequential
# program's.


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_gathered_after_each_layer_are_the_whole(ranks: int, by_ranks: dict[tuple[object, ...], object]) -> None:
    """To the bit: the rank that makes a place's sum makes all of it."""
    found = [result for key, result in by_ranks.items() if key[:2] == ("study", ranks)]
    assert len(found) == 5
    assert set(found) == {(0.0, 1)}


def test_a_part_is_dealt_out_to_threads(by_ranks: dict[tuple[object, ...], Any]) -> None:
    """Where a compiler may round elsewhere: it makes a function of its own of what threads do."""
    gap, results = by_ranks["study of threads",]
    assert gap < 1e-6
    assert results == 1


def loops(**extents: int) -> tuple[Loop, ...]:
    return tuple(Loop(name, extent) for name, extent in extents.items())


@pytest.mark.parametrize(
    ("place", "all_loops", "dealt", "expected", "unit"),
    [
        ("o 576 y 24 x 1", loops(o=6, y=24, x=24), "oyx", "oy", 24),  # six maps are too few to deal out
        ("o 1", loops(o=10), "o", "o", 1),
        ("o 216 i 1", loops(o=10, i=216), "oi", "o", 216),
        ("c 576 y 96 x 4 a 24 b 1", loops(c=6, y=6, x=6, a=4, b=4), "cyxab", "cy", 96),  # a pooling's way back
        ("o 121 y 11 x 1", loops(o=9, y=9, x=9), "oyx", "o", 121),  # within a rim
        ("o 40 y 11 x 1", loops(o=9, y=4, x=7), "o", "o", 40),
        ("o 35 y 11 x 1", loops(o=9, y=4, x=7), "o", "", 0),  # what one channel touches, the next does, too
        ("", (), "", "", 0),
    ],
)
def test_parts_lie_side_by_side(place: str, all_loops: tuple[Loop, ...], dealt: str, expected: str, unit: int) -> None:
    words = place.split()
    index = Index(tuple((name, int(step)) for name, step in zip(words[::2], words[1::2], strict=True)))
    outer, found = parts(index, tuple(loop for loop in all_loops if loop.name in dealt), all_loops)
    assert ("".join(loop.name for loop in outer), found) == (expected, unit)


def test_what_only_functions_of_each_number_read_is_not_gathered() -> None:
    """What the layers sum, before their sigmoids, and the gradients of their outputs."""
    plan = study_network(CNN, "outputs", 1).compiled(CNN.data(1)[0]).plan
    assert Parts(plan, "outputs").own == {"1", "3", "d_2", "d_4"}


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
