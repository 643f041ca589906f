"""Networks without kernels are stacked by torch.func: each member equals its separate training in PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Agenda
from paceline.runtime.engines.stepping import SteppedTraining
from paceline.training.gradients.vmap_stack import CannotStack, VmapStack, shape_of
from paceline.training.jobs.job import Job

EPOCHS = 3


class Attention(nn.Module):
    """What kernels do not know: attention over six tokens, with a scale that is not trained."""

    def __init__(self, dtype: torch.dtype, rate: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 8, dtype=dtype)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=rate, batch_first=True, dtype=dtype)
        self.head = nn.Linear(8, 3, dtype=dtype)
        self.register_buffer("scale", torch.full((), 0.5, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(self.embed(x)).mean(1)) * self.scale
        return scores


def job(optimizer: Any, seed: int, dtype: torch.dtype = torch.float64, model: Any = None) -> Job:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(70, 6, 2, generator=generator).to(dtype)
    return Job(
        model=model or partial(Attention, dtype),
        data=(x, (x[:, 0, 0] > 0).long()),
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        batch_size=16,
        epochs=EPOCHS,
        seed=seed,
        device="cpu",
        compute="autograd",
    )


def in_groups(module: nn.Module, rate: float) -> torch.optim.Optimizer:
    groups = [
        {"params": list(module.head.parameters()), "lr": rate},  # type: ignore[union-attr]
        {"params": list(module.layer.parameters()), "weight_decay": 0.01 * rate},  # type: ignore[union-attr]
    ]
    return torch.optim.AdamW(groups, lr=0.1 * rate, betas=(0.8, 0.99))


def by_module(rate: float) -> Any:
    def make(module: nn.Module) -> torch.optim.Optimizer:
        return in_groups(module, rate)

    return make


OPTIMIZERS = {
    "sgd": lambda n: partial(torch.optim.SGD, lr=0.02 * (n + 1), weight_decay=1e-3 * n),
    "momentum": lambda n: partial(torch.optim.SGD, lr=0.02, momentum=0.4 * n, dampening=0.1 * n),
    "nesterov": lambda n: partial(torch.optim.SGD, lr=0.02, momentum=0.3 + 0.2 * n, nesterov=True),
    "adam": lambda n: partial(
        torch.optim.Adam, lr=0.001 * (n + 1), weight_decay=0.01 * n, betas=(0.8 + 0.05 * n, 0.99)
    ),
    "adamw": lambda n: partial(torch.optim.AdamW, lr=0.001 * (n + 1), weight_decay=0.1 * n, eps=1e-8 * 10**n),
    "groups": lambda n: by_module(0.01 * (n + 1)),
}


@pytest.mark.parametrize("seeds", [(0, 0, 0), (0, 1, 2)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_member_equals_its_separate_training(name: str, seeds: tuple[int, ...]) -> None:
    jobs = [job(OPTIMIZERS[name](n), seed) for n, seed in enumerate(seeds)]
    compare(jobs, 1e-10)


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_in_single_precision_too(name: str) -> None:
    compare([job(OPTIMIZERS[name](n), n, torch.float32) for n in range(3)], 1e-5)


def compare(jobs: list[Job], tolerance: float) -> None:
    """Train three members, let one leave in the middle of a pass, move the others to a new stack, and compare."""
    assert len({shape_of(each)[0] for each in jobs}) == 1
    source = shape_of(jobs[0])[1]
    agenda = Agenda(len(source), 16, EPOCHS)
    stack = VmapStack(jobs, source, agenda)
    stack.advance(4)
    stack.keep([0, 2])
    stack.advance(7)
    moved = VmapStack([jobs[2], jobs[0]], source, agenda)
    moved.restore([stack.state(1), stack.state(0)])
    losses = moved.advance(agenda.updates)
    for place, each in enumerate([jobs[2], jobs[0]]):
        alone = SteppedTraining(each)
        alone.advance(7)
        assert alone.advance(agenda.updates) == pytest.approx(losses[place], rel=tolerance)
        # Outputs, not parameters: the bias of keys has no effect, and Adam steps by the rounding of its gradient.
        mine, other = (module(source.tensors[0]).detach() for module in (alone.module, moved.module(place)))
        assert (mine - other).abs().max() <= tolerance * mine.abs().max()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model": partial(Attention, torch.float64, 0.1)}, "random"),
        (
            {"model": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 3)).double()},
            "changes during",
        ),
        ({"optimizer": torch.optim.RMSprop}, "RMSprop is not vectorised"),
        ({"optimizer": partial(torch.optim.Adam, amsgrad=True)}, "amsgrad=True"),
    ],
)
def test_what_would_not_equal_its_separate_training_is_refused(changed: dict[str, Any], says: str) -> None:
    refused = job(partial(torch.optim.SGD, lr=0.1), 0).with_(**changed)
    with pytest.raises(CannotStack, match=says):
        VmapStack([refused, refused], shape_of(refused)[1], Agenda(70, 16, EPOCHS))
