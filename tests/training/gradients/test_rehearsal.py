"""What fails in an evaluation is found before the training, by two small batches that leave no trace."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import paceline as pl
from paceline.errors import JobError, TuningError, UsageError
from paceline.interfaces.api.planning.choose import facts_of
from paceline.training.data.opening import open_source
from paceline.training.gradients.evaluate import rehearse

X = torch.rand(3000, 20, generator=torch.Generator().manual_seed(0))
Y = (torch.arange(3000) >= 1500).long()  # sorted by class


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def job(**changes: Any) -> pl.Job:
    given = {
        "model": model,
        "data": (X[:200], Y[:200]),
        "loss": nn.CrossEntropyLoss(),
        "batch_size": 50,
        "test": (X, Y),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "device": "cpu",
    }
    return pl.Job(**{**given, **changes})


def raises(output: Tensor, target: Tensor) -> float:
    raise ValueError("no such thing")


def of_two_classes(output: Tensor, target: Tensor) -> float:
    """As AUROC, of which one class has none."""
    if len(target.unique()) < 2:
        raise ValueError("only one class is present")
    return 0.5


class OfAll:
    """A metric that says nothing of fewer samples than there are."""

    def reset(self) -> None:
        self.seen = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        self.seen += len(target)

    def compute(self) -> float | None:
        return 1.0 if self.seen == len(Y) else None


def trained(made: pl.Job, folder: Path) -> Any:
    return pl.train(made, engine="virtual", folder=folder)


def trained_by_processes(made: pl.Job, folder: Path) -> Any:
    return pl.train(made, "ring", workers=2, folder=folder)


def compared(made: pl.Job, folder: Path) -> Any:
    return pl.compare(made, ["sequential", "ring"], folder=folder)


def chosen(made: pl.Job, folder: Path) -> Any:
    return facts_of(made)  # with which every choice begins, after the machine's card is read


def tuned(made: pl.Job, folder: Path) -> Any:
    return pl.tune(made, {"lr": [0.1, 0.2]}, "grid", folder=folder)


@pytest.mark.parametrize("start", [trained, trained_by_processes, compared, chosen, tuned])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"test": (X[:, :19], Y)}, r"evaluation on test= fails: RuntimeError: .*; the batch is \(float32 1000 x 19"),
        ({"test": (X, Y.float())}, "a classification loss takes whole numbers as targets, as by y.long()"),
        ({"metrics": {"mine": raises}}, "the metric 'mine' fails: ValueError: no such thing"),
        ({"metrics": {"mine": lambda output, target: "good"}}, "the metric 'mine' returned 'good', which is not a"),
        ({"test": (X[:0], Y[:0])}, "test= holds no samples"),
    ],
    ids=["shape", "labels", "raises", "word", "empty"],
)
def test_what_fails_in_an_evaluation_fails_before_the_training(
    start: Callable[..., Any], changes: Any, says: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match=says):
        start(job(**changes), tmp_path)
    assert not list(tmp_path.glob("*/*/trace*")) + list(tmp_path.glob("*/trace*"))


@pytest.mark.parametrize("metric", [of_two_classes, OfAll()], ids=["classes", "samples"])
@pytest.mark.parametrize("few", [False, True])
def test_a_metric_that_needs_more_samples_is_not_refused(metric: Any, few: bool) -> None:
    """A stream is read from its start, where all are of one class; warnings are errors here."""
    data = partial(zip, X, Y) if few else (X, Y)
    assert set(trained(job(test=data, metrics={"mine": metric}), None).summary()) >= {"mine", "test_accuracy"}  # type: ignore[arg-type]


def test_a_rehearsal_reads_few_samples_and_changes_nothing() -> None:
    class Rows(Dataset[Any]):
        read: ClassVar[set[int]] = set()

        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
            self.read.add(number)
            random.random()
            return X[number] + torch.rand(1), Y[number]

    made, module = job(test=Rows()), model()
    source = open_source(made.test, 0, "test")
    before = copy.deepcopy(module.state_dict())
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    assert rehearse(made, module, source) == ("test_loss", "test_accuracy")
    assert 0 < len(Rows.read) <= 32
    assert min(Rows.read) < 1500 < max(Rows.read)
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert str(np.random.get_state()) == str(states[2])


@pytest.mark.parametrize("start", [trained, trained_by_processes])
def test_a_run_with_test_data_has_the_parameters_of_one_without(start: Callable[..., Any], tmp_path: Path) -> None:
    tested, plain = start(job(), tmp_path / "tested"), start(job(test=None), tmp_path / "plain")
    assert tested.summary()["parameters_sha256"] == plain.summary()["parameters_sha256"]
    assert pl.replay(tested).matches


@pytest.mark.parametrize("follows", [pl.EarlyStopping, pl.BestCheckpoint])
def test_a_callback_that_follows_another_figure_is_refused(follows: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"follows 'test_acuracy', and there is no such.*did you mean 'test_accuracy'"):
        pl.train(job(), engine="virtual", callbacks=[follows("test_acuracy")], folder=tmp_path)
    parts = {"recall": lambda output, target: {"first": 0.5}}
    followed = [follows("recall_first")]
    assert pl.train(job(metrics=parts), callbacks=followed, folder=tmp_path).summary()["recall_first"] == 0.5


def test_a_tuning_of_jobs_that_cannot_be_made_says_so() -> None:
    with pytest.raises(TuningError, match="make_job returned float, not a Job"):
        pl.tune(lambda trial: 3.0, {"lr": [0.1, 0.2]}, "grid", folder=None)  # type: ignore[arg-type,return-value]


class Detector(nn.Linear):
    """Returns its losses in training, and what it has found in evaluation."""

    def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
        output = super().forward(x)
        return {"loss": nn.functional.cross_entropy(output, target)} if self.training else [output]


def test_a_model_without_a_loss_in_evaluation_is_evaluated_by_metrics_alone() -> None:
    def step(module: nn.Module, batch: Any, quiet: bool = True) -> Any:
        return module(*batch)["loss"] if module.training or not quiet else None

    made = job(
        model=lambda: Detector(20, 2),
        loss=None,
        step=step,
        metrics={"mean": lambda output, _: output.mean()},
        evaluate=lambda module, batch: (module(batch[0])[0], batch[1]),
    )
    summary = pl.train(made, "ring", workers=2, engine="virtual", folder=None).summary()
    assert "mean" in summary
    assert "test_loss" not in summary
    with pytest.raises(JobError, match=r"in evaluation mode here: .* let step= return None, and give evaluate="):
        pl.train(made.with_(step=partial(step, quiet=False)), engine="virtual", folder=None)


def test_a_metric_of_one_number_for_each_sample_is_refused_and_one_for_each_class_is_not() -> None:
    made = job(metrics={"hits": lambda output, target: output.argmax(1) == target})
    with pytest.raises(JobError, match=r"the metric 'hits' fails: .* returned 3000 numbers, one for each sample"):
        pl.train(made, engine="virtual", folder=None)
    made = made.with_(metrics={"count": lambda _, target: torch.bincount(target, minlength=32)})
    assert pl.train(made, engine="virtual", folder=None).summary()["count_1"] == 1500
