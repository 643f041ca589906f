"""Steps and models that do what few do: draw numbers, take gradients themselves, leave parts out, keep an average."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from paceline import Job, train
from paceline.errors import JobError, JobWarning, PlanError
from paceline.interfaces.testing.conformance import same_numbers
from paceline.plans.plan import make
from paceline.training.gradients.replica import check, watched

# A child that the user's code forks and lets return ends there; the training that follows is not held responsible.


def test_a_returned_child_ends_and_is_reported_once() -> None:
    process, returned = watched()
    child = os.fork()
    if child == 0:
        check(process, returned)
        os._exit(7)  # not reached
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    with pytest.raises(JobError, match=f"forked process {child}"):
        check(process, returned)
    check(*watched())


X = torch.randn(48, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = X[:, :2].sum(1, keepdim=True)
mse = nn.functional.mse_loss


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.never = (nn.Linear(6, 4).double() for _ in range(3))
        self.last = nn.Linear(4, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(x)) + torch.tanh(self.first(x)))


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 1).double()
        self.mean = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.5)).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.mean(x)
        self.mean.update_parameters(self.net)
        return self.net(x)


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def pruned() -> nn.Module:
    model = chain()
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


def plain(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return mse(model(batch[0]), batch[1])


def noisy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    noise = torch.randn_like(batch[0])
    return mse(model(batch[0] + noise), batch[1] + noise[:, :1] + torch.randn(1, dtype=torch.float64))


def adversarial(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x = batch[0].clone().requires_grad_()
    mse(model(x), batch[1]).backward()
    assert x.grad is not None
    harder = (x + 0.1 * x.grad.sign()).detach()
    model.zero_grad()
    return mse(model(harder), batch[1])


def parts(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return mse(model.last(torch.tanh(model.first(batch[0]))), batch[1])


def twice(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return mse(model(batch[0]), model(-batch[0]))


def contrast(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    views = torch.cat([model(batch[0] + 0.01 * torch.randn_like(batch[0])) for _ in range(2)])
    return nn.functional.cross_entropy(-torch.cdist(views, views), torch.arange(len(views)).roll(len(batch[0])))


def job_of(model: Callable[[], nn.Module], step: Any) -> Job:
    sgd = partial(torch.optim.SGD, lr=0.1)
    return Job(model, (X, Y), step=step, optimizer=sgd, batch_size=12, epochs=3, on_nan="ignore")


@pytest.mark.filterwarnings("error::paceline.errors.JobWarning")
@pytest.mark.parametrize(
    ("model", "step", "plan", "engine"),
    [
        (chain, noisy, "gpipe", "virtual"),
        (chain, adversarial, "ring", "virtual"),
        (pruned, plain, "ring", "virtual"),
        (Branches, parts, "ddp", "local"),
    ],
)
def test_they_train_as_in_one_process(model: Any, step: Any, plan: str, engine: str) -> None:
    same_numbers(job_of(model, step), make(plan, workers=2), engine)


def test_an_average_that_the_model_keeps_in_frozen_parameters_is_that_of_all_updates() -> None:
    job = job_of(Averaging, plain)
    run = train(job.with_(shuffle=False), "sequential", engine="virtual", folder=None)
    model = job.make_model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        at = number * 12 % 48
        optimizer.zero_grad()
        mse(model(X[at : at + 12]), Y[at : at + 12]).backward()
        optimizer.step()
    assert torch.allclose(run.model.mean.module.weight, model.mean.module.weight, rtol=1e-12)


def test_an_average_in_trained_parameters_is_refused_with_the_way_out() -> None:
    job = job_of(lambda: Averaging().requires_grad_(), plain)
    with pytest.raises(PlanError, match=r"changes parameter mean\.module\.weight .*requires_grad_\(False\)"):
        train(job, "ring", workers=2, engine="virtual", folder=None)


def test_a_sum_is_noted_with_the_mean_as_the_remedy() -> None:
    total = partial(nn.functional.mse_loss, reduction="sum")
    job = Job(chain, (X, Y), total, optimizer=partial(torch.optim.SGD, lr=0.01), batch_size=12)
    with pytest.warns(JobWarning, match=r"50\.0%.*of a sum, the mean \(reduction='mean'\)"):
        train(job, "ring:workers=2", engine="virtual", folder=None, max_updates=1)


@pytest.mark.parametrize(
    ("step", "says"),
    [(twice, "calls the model more than once.*torch.cat"), (adversarial, "(?s)has only what model.*take no gradients")],
)
def test_what_a_pipeline_cannot_compute_is_refused(step: Any, says: str) -> None:
    with pytest.raises(JobError, match=says):
        train(job_of(chain, step), "gpipe", workers=2, engine="virtual", folder=None)


def test_a_loss_of_pairs_is_noted_although_it_draws_numbers() -> None:
    with pytest.warns(JobWarning, match="one batch has a loss of .*pairs, as in contrastive losses"):
        train(job_of(chain, contrast), "ring:workers=2", engine="virtual", folder=None, max_updates=1)


class Tempered(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output * self.temperature, target)


def test_parameters_of_a_loss_are_noted_as_not_trained() -> None:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    made = Job(
        lambda: nn.Linear(4, 2),
        (x, (x[:, 0] > 0).long()),
        Tempered(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=20,
    )
    with pytest.warns(JobWarning, match=r"loss= has parameters \(temperature\) that are not trained"):
        train(made, folder=None, engine="virtual")


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_module_of_torchscript_is_refused() -> None:
    made = Job(
        lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 2)),
        (X, Y),
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    with pytest.raises(JobError, match=r"0 is a module of TorchScript, .*give the nn.Module that it was made of"):
        train(made, folder=None, engine="virtual")
