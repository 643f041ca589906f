"""The cost of a model, counted in fake mode, against figures that can be worked out by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.planning.planner.card import BACKWARD, FORWARD, UPDATE
from paceline.planning.planner.model_cost import cost_of
from paceline.training.jobs.job import Job


def _job(model: Any, x: Tensor, **changes: Any) -> Job:
    target = torch.zeros(len(x), dtype=torch.long)
    rest: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": partial(torch.optim.SGD, lr=0.1), **changes}
    return Job(model, (x, target), batch_size=10, **rest)


def test_a_dense_layer_counts_its_products_and_bytes() -> None:
    cost = cost_of(_job(nn.Linear(20, 5), torch.randn(50, 20)), 10)
    assert not cost.real
    # Forward, and the gradient of the weights; nothing asks for the gradient of the input.
    assert cost.flops == 2 * (2 * 10 * 20 * 5)
    assert cost.parameter_bytes == 4 * (20 * 5 + 5)
    assert cost.tensors == 2
    assert cost.figures(FORWARD)["matmul.small"] == 2 * 10 * 20 * 5


def test_phases_and_modules_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))
    cost = cost_of(_job(model, torch.randn(50, 32)), 10)
    assert {op.phase for op in cost.operations} == {FORWARD, BACKWARD, UPDATE}
    assert cost.layers["0"]["flops"] == 2 * (2 * 10 * 32 * 16)
    assert cost.layers["2"]["flops"] == 3 * (2 * 10 * 16 * 4)


def test_cost_grows_with_the_batch_and_state_with_the_optimizer() -> None:
    model = nn.Linear(20, 5)
    job = _job(model, torch.randn(50, 20), optimizer=partial(torch.optim.Adam, lr=0.1))
    assert cost_of(job, 40).flops == 4 * cost_of(job, 10).flops
    assert cost_of(job, 10).state_bytes >= 2 * cost_of(job, 10).parameter_bytes


def test_a_model_larger_than_memory_is_counted() -> None:
    def large() -> nn.Module:
        with torch.device("meta"):  # 4 TB, if it were real
            return nn.Sequential(nn.Linear(1_000_000, 1_000_000), nn.Linear(1_000_000, 10))

    cost = cost_of(_job(large, torch.zeros(1, 1).expand(10, 1_000_000)), 2)
    assert cost.parameter_bytes > 10**12
    assert not cost.real


class _Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y if y.sum().item() > 1e9 else 2 * y


def test_a_model_that_looks_at_numbers_runs_once_with_real_ones() -> None:
    cost = cost_of(_job(_Looks(), torch.randn(50, 20)), 10)
    assert "item" in cost.real or "Data" in cost.real
    assert cost.flops == 2 * (2 * 10 * 20 * 5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_counted(kind: type[nn.LSTM]) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = kind(6, 8, batch_first=True), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.body(x)[0][:, -1])
            return result

    cost = cost_of(_job(Recurrent(), torch.randn(50, 7, 6)), 10)
    gates = 4 if kind is nn.LSTM else 3
    assert cost.flops >= 3 * 2 * 10 * 7 * gates * 8 * 6  # at least the products with the input, both ways


def test_a_table_with_sparse_gradients_is_counted() -> None:
    model = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 3))
    cost = cost_of(_job(model, torch.randint(50, (40, 4))), 10)
    assert cost.parameter_bytes == 4 * (50 * 8 + 8 * 3 + 3)
    assert cost.layers["1"]["flops"] == 3 * (2 * 10 * 8 * 3)


def test_the_job_is_not_touched() -> None:
    model = nn.Linear(20, 5)
    before = model.weight.detach().clone()
    cost_of(_job(model, torch.randn(50, 20)), 10)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
