"""What is reported of the test data: metrics over the whole of them, whatever the batches and the job's form."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl
from paceline.errors import JobError, RunFailed
from paceline.runtime.runs.record import Evaluation, Summary
from paceline.training.jobs.metrics import RESERVED

# --- The figures of an evaluation are scikit-learn's on the whole test set, under every kind of plan ------------------

# Processes take a second each: one plan of the five is tried in every run of the tests, all of them in the soak.
REST = ("ring:workers=2", "downpour:workers=2", "local_sgd:workers=2", "gpipe:workers=2")
PLANS = ("sequential", *(pytest.param(plan, marks=pytest.mark.soak) for plan in REST))
CHANCE = torch.Generator().manual_seed(0)
METRICS_ORACLE_X = torch.randn(453, 6, generator=CHANCE)  # a number that no batch size divides
ADAM = partial(torch.optim.Adam, lr=0.02)


@pytest.fixture(scope="module")
def oracle() -> Any:
    """The module of scikit-learn, which takes a second to import, as torchmetrics does: only where tests use it."""
    return pytest.importorskip("sklearn.metrics")


def loaders(y: Tensor) -> dict[str, Any]:
    data = TensorDataset(METRICS_ORACLE_X, y)
    return {"data": DataLoader(data, batch_size=32), "test": DataLoader(data, batch_size=50)}


def metrics_oracle_trained(
    y: Tensor, outputs: int, loss: Any, metrics: Any, plan: str
) -> tuple[dict[str, Any], Tensor]:
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
        return run.summary(), run.model.eval()(METRICS_ORACLE_X)


@pytest.mark.parametrize("plan", PLANS)
def test_accuracy_f1_and_auroc(plan: str, oracle: Any) -> None:
    import torchmetrics.classification as tm

    y = (METRICS_ORACLE_X[:, :3] + 0.5 * torch.randn(453, 3, generator=torch.Generator().manual_seed(1))).argmax(1)
    metrics = {"f1": tm.MulticlassF1Score(3, average="macro"), "auroc": tm.MulticlassAUROC(3)}
    found, scores = metrics_oracle_trained(y, 3, nn.CrossEntropyLoss(), metrics, plan)
    chosen, truth = scores.argmax(1).numpy(), y.numpy()
    shares = scores.double().softmax(1).numpy()
    assert found["test_accuracy"] == pytest.approx(oracle.accuracy_score(truth, chosen), abs=1e-6)
    assert found["f1"] == pytest.approx(oracle.f1_score(truth, chosen, average="macro"), abs=1e-6)
    assert found["auroc"] == pytest.approx(oracle.roc_auc_score(truth, shares, multi_class="ovr"), abs=1e-6)
    assert found["test_loss"] == pytest.approx(oracle.log_loss(truth, shares), abs=1e-6)


@pytest.mark.parametrize("plan", PLANS)
def test_root_mean_squared_error(plan: str, oracle: Any) -> None:
    from torchmetrics.regression import MeanSquaredError

    y = METRICS_ORACLE_X[:, :2].sum(1, keepdim=True) + 0.1 * METRICS_ORACLE_X[:, 2:3] ** 2
    metrics = {
        "rmse": lambda output, target: nn.functional.mse_loss(output, target).sqrt(),
        "again": MeanSquaredError(squared=False),
    }
    found, values = metrics_oracle_trained(y, 1, nn.MSELoss(), metrics, plan)
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


CLASSES, SAMPLES = 4, 2_500  # more than two evaluation batches
X = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(SAMPLES) * CLASSES // SAMPLES  # sorted by class


def macro_f1(output: Tensor, target: Tensor) -> Tensor:
    guess = output.argmax(1)
    hits = torch.stack([((guess == c) & (target == c)).sum() for c in range(CLASSES)])
    named = torch.bincount(guess, minlength=CLASSES) + torch.bincount(target, minlength=CLASSES)
    return (2 * hits / named.clamp(min=1)).mean()


class MacroF1:
    """The same as an object that is updated."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor]] = []
        self.most = 0

    def reset(self) -> None:
        self.batches = []

    def update(self, output: Tensor, target: Tensor) -> None:
        self.batches.append((output, target))
        self.most = max(self.most, len(target))

    def compute(self) -> Tensor:
        outputs, targets = zip(*self.batches, strict=True)
        return macro_f1(torch.cat(outputs), torch.cat(targets))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def job(**changes: Any) -> pl.Job:
    given: dict[str, Any] = {
        "model": partial(nn.Linear, 6, CLASSES),
        "data": (X, Y),
        "loss": nn.functional.cross_entropy,
        "optimizer": partial(torch.optim.SGD, lr=0.5),
        "test": (X, Y),
        "metrics": {"f1": macro_f1},
        "epochs": 1,
    }
    return pl.Job(**{**given, **changes})


BY_STEP: dict[str, Any] = {"loss": None, "step": cross_entropy, "evaluate": lambda m, batch: (m(batch[0]), batch[1])}


def trained(made: pl.Job) -> pl.Run:
    return pl.train(made, engine="virtual", folder=None, max_updates=5)


@pytest.mark.parametrize("form", [{}, BY_STEP], ids=["loss", "step"])
@pytest.mark.parametrize("metric", [lambda: macro_f1, MacroF1], ids=["function", "object"])
def test_a_metric_is_that_of_the_whole_test_set(form: dict[str, Any], metric: Any) -> None:
    run = trained(job(metrics={"f1": metric()}, evaluate_every=2, **form))
    with torch.no_grad():
        output = run.model(X)
    assert len(run.history) == 3
    assert run.summary()["f1"] == pytest.approx(float(macro_f1(output, Y)))
    assert run.summary()["test_accuracy"] == pytest.approx(float((output.argmax(1) == Y).float().mean()))
    assert run.summary()["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(output, Y)), rel=1e-5)


def test_the_loss_of_test_data_is_weighed_as_the_job_weighs_it() -> None:
    weights = torch.tensor([1.0, 5.0, 0.2, 3.0])
    loss = nn.CrossEntropyLoss(weight=weights)
    run = trained(job(loss=loss, loss_denominator=lambda batch: float(weights[batch[1]].sum())))
    assert run.summary()["test_loss"] == pytest.approx(float(loss(run.model(X), Y).detach()), rel=1e-5)


def test_an_object_that_is_updated_sees_batches() -> None:
    metric = MacroF1()
    trained(job(metrics={"f1": metric}))
    assert 0 < metric.most < SAMPLES


def test_torchmetrics_are_such_objects() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.F1Score("multiclass", num_classes=CLASSES, average="macro")
    figures = trained(job(metrics={"theirs": metric, "f1": macro_f1})).summary()
    assert figures["theirs"] == pytest.approx(figures["f1"])


class Collection:
    """An object with torchmetrics' protocol whose value has parts."""

    def reset(self) -> None:
        self.hits = torch.zeros(CLASSES)

    def update(self, output: Tensor, target: Tensor) -> None:
        self.hits += torch.bincount(target[output.argmax(1) == target], minlength=CLASSES)

    def compute(self) -> dict[str, Tensor]:
        return {"hits": self.hits, "all": self.hits.sum()}


def test_a_value_of_several_parts_becomes_several_figures() -> None:
    run = trained(job(metrics=[Collection(), macro_f1]))
    right = run.model(X).argmax(1) == Y
    figures = run.summary()
    assert figures["Collection_all"] == float(right.sum())
    assert figures["Collection_hits_2"] == float(right[Y == 2].sum())
    assert figures["macro_f1"] == pytest.approx(float(macro_f1(run.model(X).detach(), Y)))


def test_collections_of_torchmetrics_are_taken_as_they_are() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    kinds = torchmetrics.classification
    both = torchmetrics.MetricCollection(
        [kinds.MulticlassF1Score(CLASSES, average="macro"), kinds.MulticlassRecall(CLASSES, average=None)]
    )
    beside = trained(job(metrics=both)).summary()
    inside = trained(job(metrics={"m": both, "f1": macro_f1})).summary()
    assert beside["MulticlassF1Score"] == pytest.approx(inside["f1"])
    assert inside["m_MulticlassF1Score"] == pytest.approx(inside["f1"])
    assert beside["MulticlassRecall_3"] == inside["m_MulticlassRecall_3"]


def test_a_metric_cannot_take_the_name_of_a_figure() -> None:
    figures = {each.name for kind in (Summary, Evaluation) for each in fields(kind)}
    assert figures <= RESERVED
    with pytest.raises(JobError, match="a metric cannot be called 'seconds'"):
        job(metrics={"seconds": macro_f1})


def test_outputs_of_several_parts_are_joined_part_by_part() -> None:
    def both(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
        return {"scores": model(batch[0]), "more": (batch[0],)}, batch[1]

    def metric(output: Any, target: Tensor) -> Tensor:
        assert torch.equal(output["more"][0], X)
        return macro_f1(output["scores"], target)

    figures = trained(job(evaluate=both, metrics={"parts": metric}))
    assert figures.summary()["parts"] == pytest.approx(float(macro_f1(figures.model(X), Y)))


@pytest.mark.parametrize(
    ("output", "error", "says"),
    [
        (lambda x: x[:, : 1 + len(x) // 1000], RunFailed, "tensors that differ in shape"),  # in whole batches only
        (lambda x: [x], JobError, "a list cannot be joined"),
    ],
)
def test_outputs_that_cannot_be_joined_are_told_with_the_remedy(output: Any, error: Any, says: str) -> None:
    made = job(evaluate=lambda model, batch: (output(batch[0]), batch[1]), metrics={"any": lambda out, target: 0.0})
    with pytest.raises(error, match=says) as told:
        trained(made)
    assert "give an object with update(output, target)" in str(told.value)


def test_an_evaluation_that_returns_something_else_is_told() -> None:
    with pytest.raises(JobError, match=r"evaluate= returned a Tensor, which is not \(output, target\)"):
        trained(job(evaluate=lambda model, batch: model(batch[0])))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({**BY_STEP, "evaluate": None}, r"metrics= beside step= .*give also evaluate=f\(model, batch\)"),
        ({"evaluate": BY_STEP["evaluate"], "metrics": {}}, "evaluate= is given without metrics="),
        ({"evaluate": 3}, "evaluate=3 is not a function"),
        ({"metrics": {"f1": 3}}, "the metric 'f1' is 3, which is neither a function"),
    ],
)
def test_what_would_not_be_called_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(JobError, match=says):
        job(**changes)


@pytest.mark.parametrize("start", [trained, partial(pl.compare, plans=["sequential"], folder=None)])
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, "metrics="),
        ({"evaluate": BY_STEP["evaluate"]}, "metrics=, evaluate="),
        ({"metrics": {}, "evaluate_every": 5}, "evaluate_every="),
    ],
)
def test_what_is_about_an_evaluation_is_refused_without_test_data(start: Any, changes: Any, names: str) -> None:
    with pytest.raises(JobError, match=f"{names} would never be used, as this job has no test data; give test="):
        start(job(test=None, **changes))
