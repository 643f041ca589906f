"""A shard server makes its versions in one pass of generated code, with PyTorch's bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from paceline.algorithms.cluster.outputs import Apply
from paceline.algorithms.rules.gradients import DcAsgd, Plain
from paceline.runtime.engines.cluster.servers import shard_state
from paceline.runtime.engines.cluster.servers.shard_state import GradientVector, Pushes, ShardState
from tests.runtime.engines.cluster.stubs import layout_of, small_job

OPTIMIZERS = [
    partial(torch.optim.SGD, lr=0.1, weight_decay=0.01),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    partial(torch.optim.Adam, lr=0.01),
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Servers have one thread each."""
    torch.set_num_threads(1)


def _state(optimizer: Callable[..., Any], **changes: Any) -> ShardState:
    job = small_job(300, 20).with_(optimizer=optimizer, **changes)
    return ShardState(job, layout_of(job), 0, Pushes(Plain()))


def _trained(state: ShardState) -> bytes:
    """Return the version after five pushes, of which one has no gradient for the bias."""
    generator, vector = torch.Generator().manual_seed(5), state.vectors.take()
    assert isinstance(vector, GradientVector)
    for push in range(5):
        gradients = [torch.randn(p.shape, generator=generator) for p in state.version.parameters]
        vector.write([gradients[0], None if push == 2 else gradients[1]], [], [push])
        state.apply(Apply(push + 1, push, 0, push), vector)
    return bytes(state.everything)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_pass_has_the_bits_of_pytorch(optimizer: Callable[..., Any]) -> None:
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
    mine, torchs = (_state(optimizer, lr_scheduler=schedule) for _ in range(2))
    if mine.native is None:
        pytest.skip("there is no compiler here")
    torchs.native = None
    assert _trained(mine) == _trained(torchs)


def test_pytorch_steps_what_one_pass_cannot_or_makes_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _state(partial(torch.optim.Rprop, lr=0.01)).native is None
    job = small_job()
    looking_back = ShardState(job, layout_of(job), 0, Pushes(DcAsgd()))
    assert looking_back.native is None  # it needs what a worker has computed with
    monkeypatch.setattr(shard_state, "LARGE", 100)
    assert _state(OPTIMIZERS[1]).native is None
