"""Optimizers are made without importing the compiler of PyTorch, and kept out of compiled code where it is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from paceline.training.parameters import optimizers
from paceline.training.parameters.layout import Layout, lay_out
from paceline.training.parameters.store import WholeStep

# --- A shard that is stepped as one tensor has the bits that its parameters have when they are stepped one by one -----

SGD = torch.optim.SGD


def _network(widths: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(*(nn.Linear(before, after) for before, after in pairwise(widths)))


def _flat(layout: Layout, seed: int) -> torch.Tensor:
    return torch.randn(layout.shards[0].length, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decay", [0.0, 1e-5])
@pytest.mark.parametrize("widths", [(1, 1), (3, 5, 2), (17, 33, 10), (129, 65, 31, 3)])
def test_a_step_of_the_whole_has_the_bits_of_steps_of_its_parts(widths: tuple[int, ...], decay: float) -> None:
    module = _network(widths)
    (shard,) = (layout := lay_out(module, 1, ())).shards
    apart, together = _flat(layout, 0), _flat(layout, 0)
    parameters = [nn.Parameter(view) for view in shard.parameter_views(apart)]
    one_by_one, own = (SGD(parameters, lr=0.05, weight_decay=decay) for _ in range(2))
    schedule = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (one_by_one, own)]
    whole = WholeStep.of(own)
    assert whole is not None
    for update in range(5):
        gradients = _flat(layout, 1 + update)
        for parameter, gradient in zip(parameters, shard.parameter_views(gradients), strict=True):
            parameter.grad = gradient
        one_by_one.step()
        whole.step(shard.flat_views(together).flat, shard.flat_views(gradients).flat)
        own._opt_called = True  # type: ignore[attr-defined]
        for each in schedule:
            each.step()
    for one, other in zip(shard.parameter_views(apart), shard.parameter_views(together), strict=True):
        assert torch.equal(one, other)


class _OwnSgd(SGD):
    """What a user may have changed."""


@pytest.mark.parametrize(
    "make",
    [
        partial(SGD, lr=0.1, momentum=0.9),
        partial(torch.optim.Adam, lr=0.1),
        partial(_OwnSgd, lr=0.1),
        lambda parameters: SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.2}], lr=0.1),
    ],
    ids=["momentum", "adam", "own class", "two groups"],
)
def test_other_optimizers_step_their_parameters_one_by_one(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    assert WholeStep.of(make(list(_network((3, 2)).parameters()))) is None


def test_an_optimizer_with_hooks_steps_its_parameters_one_by_one() -> None:
    optimizer = SGD(_network((3, 2)).parameters(), lr=0.1)

    def hook(optimizer: Any, *rest: Any) -> None: ...

    optimizer.register_step_pre_hook(hook)
    assert WholeStep.of(optimizer) is None


class Counter:
    """Has a method that PyTorch keeps out of compiled code, as the methods of its optimizers."""

    @torch._disable_dynamo
    def add(self, number: int, more: int = 0) -> int:
        return 1 + number + more


def test_the_compiler_is_not_imported_to_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    method: Any = Counter.add
    optimizers._without_the_compiler(method)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch._dynamo")
        assert Counter().add(2, more=3) == 6
        assert "torch._dynamo" not in sys.modules
    passing = method.__wrapped__.__dynamo_disable
    assert Counter().add(2, more=3) == 6
    assert method.__wrapped__.__dynamo_disable is not passing  # but what PyTorch has put there


@pytest.mark.parametrize("name", ["add_param_group", "zero_grad", "state_dict", "load_state_dict"])
def test_the_methods_of_optimizers_are_those_that_import_the_compiler(name: str) -> None:
    """So that a version of PyTorch that does it otherwise is noticed."""
    method: Any = vars(torch.optim.Optimizer)[name]
    assert method.__code__.co_filename == torch._compile.__file__
    assert callable(method.__wrapped__.__dynamo_disable)
