"""Workers record the learning rate, the gradient's norm and their memory, in generated code as in PyTorch's."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import paceline
from paceline.runtime.engines.workers import worker_context
from paceline.runtime.runs.trace import Kind

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(240, 20, generator=G), torch.randint(0, 3, (240,), generator=G)
LOSS = nn.CrossEntropyLoss()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3))


def job(compute: str) -> paceline.Job:
    halved = partial(torch.optim.lr_scheduler.StepLR, step_size=4, gamma=0.5)
    return paceline.Job(
        model,
        (X, Y),
        LOSS,
        optimizer=partial(torch.optim.SGD, lr=0.4),
        batch_size=20,
        lr_scheduler=halved,
        compute=compute,
        shuffle=False,
    )


def norms() -> list[float]:
    """Return the norm of every update's gradient, by PyTorch alone."""
    torch.manual_seed(0)
    module, found = job("autograd").make_model(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for x, y in zip(X.split(20), Y.split(20), strict=True):
        optimizer.zero_grad()
        LOSS(module(x), y).backward()
        found.append(float(nn.utils.clip_grad_norm_(module.parameters(), float("inf"))))
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("compute", ["autograd", "fused"])
@pytest.mark.parametrize(
    "plan", ["sequential", "ring:workers=2", "downpour:workers=1", "ddp:workers=2", "gpipe:workers=2"]
)
def test_what_is_recorded_is_what_pytorch_has(plan: str, compute: str) -> None:
    if plan.startswith(("ddp", "gpipe")) and compute == "fused":
        pytest.skip("computed by PyTorch")
    trace = paceline.train(job(compute), plan, folder=None).trace
    expected, measured = norms(), trace.of_kind(Kind.GRADIENT_NORM)
    assert len(measured) or plan.startswith("gpipe")  # no worker has the whole gradient
    assert len(trace.of_kind(Kind.LEARNING_RATE))
    for row in measured:
        assert row["value"] == pytest.approx(expected[row["update"]], rel=1e-4)
    for row in trace.of_kind(Kind.LEARNING_RATE):
        assert row["value"] == pytest.approx(0.4 * 0.5 ** (row["update"] // 4))
    assert all(row["value"] > 2**20 for row in trace.of_kind(Kind.MEMORY))
    assert {int(row["worker"]) for row in trace.of_kind(Kind.MEMORY)} == set(range(int(plan[-1]) if ":" in plan else 1))


def test_measurements_take_a_small_share_of_a_workers_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, rows = [0], list[tuple[object, ...]]()

    class Context:
        def record(self, *row: object) -> None:
            now[0] += 10_000_000  # a slow machine: 10 ms a row
            rows.append(row)

    monkeypatch.setattr(worker_context, "now", lambda: now[0])
    made = worker_context.Meter(Context(), torch.optim.SGD([torch.zeros(1)], lr=0.1))  # type: ignore[arg-type]
    for update in range(100_000):
        made.before_step([torch.ones(3)], update)
        now[0] += 1_000_000
    assert len(rows) * 10_000_000 < 0.01 * now[0]
    assert len(rows) > 30
