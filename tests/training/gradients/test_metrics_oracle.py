"""The figures of an evaluation are scikit-learn's on the whole test set, under every kind of plan."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl

# Processes take a second each: one plan of the five is tried in every run of the tests, all of them in the soak.
REST = ("ring:workers=2", "downpour:workers=2", "local_sgd:workers=2", "gpipe:workers=2")
PLANS = ("sequential", *(pytest.param(plan, marks=pytest.mark.soak) for plan in REST))
CHANCE = torch.Generator().manual_seed(0)
X = torch.randn(453, 6, generator=CHANCE)  # a number that no batch size divides
ADAM = partial(torch.optim.Adam, lr=0.02)


@pytest.fixture(scope="module")
def oracle() -> Any:
    """The module of scikit-learn, which takes a second to import, as torchmetrics does: only where tests use it."""
    return pytest.importorskip("sklearn.metrics")


def loaders(y: Tensor) -> dict[str, Any]:
    data = TensorDataset(X, y)
    return {"data": DataLoader(data, batch_size=32), "test": DataLoader(data, batch_size=50)}


def trained(y: Tensor, outputs: int, loss: Any, metrics: Any, plan: str) -> tuple[dict[str, Any], Tensor]:
    """Train, and return the figures and the model's outputs for the whole test set."""
    job = pl.Job(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs)),
        loss=loss,
        optimizer=ADAM,
        metrics=metrics,
        **loaders(y),
    )
    run = pl.train(job, plan, folder=None)
    with torch.no_grad():
        return run.summary(), run.model.eval()(X)


@pytest.mark.parametrize("plan", PLANS)
def test_accuracy_f1_and_auroc(plan: str, oracle: Any) -> None:
    import torchmetrics.classification as tm

    y = (X[:, :3] + 0.5 * torch.randn(453, 3, generator=torch.Generator().manual_seed(1))).argmax(1)
    metrics = {"f1": tm.MulticlassF1Score(3, average="macro"), "auroc": tm.MulticlassAUROC(3)}
    found, scores = trained(y, 3, nn.CrossEntropyLoss(), metrics, plan)
    chosen, truth = scores.argmax(1).numpy(), y.numpy()
    shares = scores.double().softmax(1).numpy()
    assert found["test_accuracy"] == pytest.approx(oracle.accuracy_score(truth, chosen), abs=1e-6)
    assert found["f1"] == pytest.approx(oracle.f1_score(truth, chosen, average="macro"), abs=1e-6)
    assert found["auroc"] == pytest.approx(oracle.roc_auc_score(truth, shares, multi_class="ovr"), abs=1e-6)
    assert found["test_loss"] == pytest.approx(oracle.log_loss(truth, shares), abs=1e-6)


@pytest.mark.parametrize("plan", PLANS)
def test_root_mean_squared_error(plan: str, oracle: Any) -> None:
    from torchmetrics.regression import MeanSquaredError

    y = X[:, :2].sum(1, keepdim=True) + 0.1 * X[:, 2:3] ** 2
    metrics = {
        "rmse": lambda output, target: nn.functional.mse_loss(output, target).sqrt(),
        "again": MeanSquaredError(squared=False),
    }
    found, values = trained(y, 1, nn.MSELoss(), metrics, plan)
    wanted = oracle.root_mean_squared_error(y.double().numpy(), values.double().numpy())
    assert found["rmse"] == pytest.approx(wanted, abs=1e-6)
    assert found["again"] == pytest.approx(wanted, abs=1e-6)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embedding(words))
        return scores


@pytest.mark.parametrize("plan", PLANS)
def test_perplexity(plan: str, oracle: Any) -> None:
    from torchmetrics.text import Perplexity

    text = (torch.arange(7 * 61 + 1) * 5 + torch.randint(2, (7 * 61 + 1,), generator=CHANCE)) % 12
    words, following = text[:-1].view(61, 7), text[1:].view(61, 7)
    data = DataLoader(TensorDataset(words, following), batch_size=10)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    metrics = {"perplexity": lambda output, target: loss(output, target).exp(), "again": Perplexity()}
    job = pl.Job(Words, data, loss, optimizer=ADAM, test=data, metrics=metrics)
    run = pl.train(job, plan, folder=None)
    with torch.no_grad():
        shares = run.model(words).flatten(0, 1).double().softmax(1).numpy()
    wanted = math.exp(oracle.log_loss(following.flatten().numpy(), shares, labels=np.arange(12)))
    found = run.summary()
    for name in ("perplexity", "again"):
        assert found[name] / wanted == pytest.approx(1.0, abs=1e-6)
    assert math.exp(found["test_loss"]) / wanted == pytest.approx(1.0, abs=1e-6)
