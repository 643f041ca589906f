"""Optimizers are made without importing the compiler of PyTorch, and kept out of compiled code where it is there."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from paceline.training.parameters import optimizers


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
