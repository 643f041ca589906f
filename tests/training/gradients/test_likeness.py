"""Models are stacked together only if they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.training.gradients.vmap_stack import canonical, of_module, shape_of
from paceline.training.jobs.job import Job


class Scaled(nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale, self.layer = scale, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) * self.scale
        return found


def local(scale: float) -> nn.Module:
    class Net(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * scale

    return Net(1.0)


def closing_over(n: float) -> Callable[[float], float]:
    return lambda x: n * x


DIFFERENT: list[tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = [
    (partial(Scaled, 1.0), partial(Scaled, 2.0)),
    (partial(Scaled, torch.ones(2)), partial(Scaled, torch.zeros(2))),
    (partial(Scaled, [1, {"a": 2}]), partial(Scaled, [1, {"a": 3}])),
    (partial(Scaled, closing_over(1)), partial(Scaled, closing_over(2))),
    (partial(Scaled, torch.tanh), partial(Scaled, torch.relu)),
    (partial(local, 1.0), partial(local, 2.0)),
    (partial(nn.MultiheadAttention, 8, 2), partial(nn.MultiheadAttention, 8, 4)),
    (partial(nn.GELU), partial(nn.GELU, "tanh")),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_computes_something_else_differs(one: Callable[[], nn.Module], other: Callable[[], nn.Module]) -> None:
    assert of_module(one()) != of_module(other())
    if one.func is not local:  # type: ignore[attr-defined]
        assert of_module(one()) == of_module(one())


def test_a_hook_is_the_modules_own() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert of_module(one) == of_module(other)
    one.register_forward_hook(lambda *_: None)
    assert of_module(one) != of_module(other)


def test_rates_of_dropout_may_differ_and_losses_may_not() -> None:
    assert of_module(nn.Dropout(0.1)) == of_module(nn.Dropout(0.2))
    assert canonical(nn.CrossEntropyLoss()) == canonical(nn.CrossEntropyLoss())
    assert canonical(nn.CrossEntropyLoss()) != canonical(nn.CrossEntropyLoss(label_smoothing=0.1))


def test_jobs_that_train_other_layers_have_another_shape() -> None:
    def made(frozen: bool) -> Job:
        def model() -> nn.Module:
            net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
            net[0].requires_grad_(not frozen)
            return net

        data = (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
        return Job(
            model=model,
            data=data,
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            batch_size=2,
            device="cpu",
        )

    assert shape_of(made(False))[0] == shape_of(made(False))[0]
    assert shape_of(made(False))[0] != shape_of(made(True))[0]
