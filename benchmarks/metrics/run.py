"""Compares the figures of evaluations with scikit-learn's on the whole test set, under every plan.

    python benchmarks/metrics/run.py                 all plans
    python benchmarks/metrics/run.py ring gpipe      these only; the others keep their rows

Three small jobs are trained by each plan: a classifier (accuracy, macro-F1, AUROC), a regression (RMSE) and a language
model (perplexity). The test set has 453 samples, which no batch size divides. scikit-learn computes the same figures in
float64 from the outputs of the trained model.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.metrics as oracle
import torch
import torchmetrics.classification as tm
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(1, str(Path(__file__).parents[1]))

from harness import read, write

import paceline
from paceline.errors import PacelineError
from paceline.plans.plan import RECIPES

CHANCE = torch.Generator().manual_seed(0)
X = torch.randn(453, 6, generator=CHANCE)
OPTIMIZERS = {"spectrain": partial(torch.optim.SGD, lr=0.05, momentum=0.9)}  # it predicts weights by the momentum
ADAM = partial(torch.optim.Adam, lr=0.02)
Figures = dict[str, float]
LOCAL = ("ddp", "hogwild")  # the plans that only real processes train by
TEAMS = {"sequential": "sequential", "hierarchical": "hierarchical:workers=4,groups=2", "cannon": "cannon:workers=4"}
LEFT_OUT = {"table": "is a pipeline by a table of your own", "ceiling": "trains no common model"}


def job(y: Tensor, outputs: int, loss: Any, metrics: dict[str, Any]) -> paceline.Job:
    """Return a job with a small network."""
    data = TensorDataset(X, y)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, outputs))

    test = DataLoader(data, batch_size=50)
    return paceline.Job(model, DataLoader(data, batch_size=32), loss, optimizer=ADAM, metrics=metrics, test=test)


def classifier() -> tuple[paceline.Job, Callable[[nn.Module], Figures]]:
    """Return a job of three classes, and its figures by scikit-learn."""
    y = (X[:, :3] + 0.5 * torch.randn(453, 3, generator=torch.Generator().manual_seed(1))).argmax(1)
    metrics = {"f1": tm.MulticlassF1Score(3, average="macro"), "auroc": tm.MulticlassAUROC(3)}

    def figures(model: nn.Module) -> Figures:
        scores = model(X)
        chosen, truth, shares = scores.argmax(1).numpy(), y.numpy(), scores.double().softmax(1).numpy()
        return {
            "test_accuracy": oracle.accuracy_score(truth, chosen),
            "f1": oracle.f1_score(truth, chosen, average="macro"),
            "auroc": oracle.roc_auc_score(truth, shares, multi_class="ovr"),
        }

    return job(y, 3, nn.CrossEntropyLoss(), metrics), figures


def regression() -> tuple[paceline.Job, Callable[[nn.Module], Figures]]:
    """Return a regression, and its root mean squared error by scikit-learn."""
    y = X[:, :2].sum(1, keepdim=True) + 0.1 * X[:, 2:3] ** 2
    metrics = {"rmse": lambda output, target: nn.functional.mse_loss(output, target).sqrt()}

    def figures(model: nn.Module) -> Figures:
        return {"rmse": oracle.root_mean_squared_error(y.double().numpy(), model(X).double().numpy())}

    return job(y, 1, nn.MSELoss(), metrics), figures


def language() -> tuple[paceline.Job, Callable[[nn.Module], Figures]]:
    """Return a language model of twelve words, and its perplexity by scikit-learn."""
    text = (torch.arange(7 * 63 + 1) * 5 + torch.randint(2, (7 * 63 + 1,), generator=CHANCE)) % 12
    words, following = text[:-1].view(63, 7), text[1:].view(63, 7)
    data = DataLoader(TensorDataset(words, following), batch_size=10)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    def figures(model: nn.Module) -> Figures:
        shares = model(words).flatten(0, 1).double().softmax(1).numpy()
        return {"perplexity": math.exp(oracle.log_loss(following.flatten().numpy(), shares, labels=np.arange(12)))}

    metrics = {"perplexity": lambda output, target: loss(output, target).exp()}

    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 12))

    return paceline.Job(model, data, loss, optimizer=ADAM, test=data, metrics=metrics), figures


def differences(plan: str) -> dict[str, float | str]:
    """Return how far each figure is from scikit-learn's; or why the plan refuses the job."""
    found: dict[str, float | str] = {}
    for make in (classifier, regression, language):
        made, figures = make()
        made = made.with_(optimizer=OPTIMIZERS.get(plan.partition(":")[0], ADAM))
        try:
            run = paceline.train(made, plan, folder=None, engine="local" if plan.startswith(LOCAL) else "virtual")
        except PacelineError as error:
            found[make.__name__] = f"{type(error).__name__}: {error}"
            continue
        with torch.no_grad():
            wanted = figures(run.model.eval())
        for name, value in wanted.items():
            found[name] = abs(run.summary()[name] - value) / (value if name == "perplexity" else 1.0)
    return found


def main() -> None:
    """Train every plan, or the named ones, and write result.json."""
    warnings.simplefilter("ignore")
    chosen = sys.argv[1:]
    rows = read()["plans"] if chosen else {}
    for name in chosen or RECIPES:
        if name not in LEFT_OUT:
            plan = TEAMS.get(name, f"{name}:workers=2")
            rows[plan] = differences(plan)
            print(plan, rows[plan], flush=True)
            write({"plans": rows, "left_out": LEFT_OUT})


if __name__ == "__main__":
    main()
