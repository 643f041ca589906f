"""Callbacks: which hooks are called, in which order, and what those that come with Paceline do."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import RunFailed, UsageError
from paceline.interfaces.api.train import train
from paceline.interfaces.callbacks import Training
from paceline.interfaces.callbacks.watching import Best, EarlyStopping
from paceline.runtime.runs.record import Evaluation, Status, read_record
from paceline.runtime.runs.run import Run
from tests.runtime.report.test_report import records

X = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
Y = X.argmax(1) % 3


def job(**changes: Any) -> pl.Job:
    made = pl.Job(
        partial(nn.Linear, 6, 3),
        (X, Y),
        test=(X, Y),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=20,
        epochs=2,
        evaluate_every=8,
        name="small",
    )
    return made.with_(**changes)


class Noted(pl.Callback):
    """Writes down what it is called with."""

    def __init__(self) -> None:
        self.hooks: list[str] = []
        self.evaluations: list[Evaluation] = []
        self.weights: list[torch.Tensor] = []
        self.checkpoints: list[str] = []

    def on_train_start(self, training: Training) -> None:
        assert training.folder is None or (training.folder / "run.json").exists()
        self.hooks.append("start")

    def on_update_end(self, training: Training, progress: pl.Progress) -> None:
        assert training.total_updates == progress.total_updates == 40
        self.hooks.append("update")

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        self.evaluations.append(evaluation)
        self.weights.append(model.weight.detach().clone())

    def on_checkpoint(self, training: Training, path: Path) -> None:
        assert (path / "model.safetensors").exists() or any(path.iterdir())
        self.checkpoints.append(path.name)

    def on_exception(self, training: Training, error: BaseException) -> None:
        self.hooks.append(type(error).__name__)

    def on_train_end(self, training: Training, run: Run) -> None:
        self.hooks.append("end")


@pytest.mark.parametrize("plan", ["ring", "downpour"])
def test_hooks_are_called_in_the_parent_and_in_order(plan: str, tmp_path: Path) -> None:
    noted = Noted()
    run = train(job(), plan, 2, folder=tmp_path, checkpoint_every=10, callbacks=[noted])
    assert noted.hooks[0] == "start"
    assert noted.hooks[-1] == "end"
    assert set(noted.hooks[1:-1]) == {"update"}
    # What was evaluated while the run went on is what its record says, and was not evaluated twice.
    assert sorted(e.updates for e in noted.evaluations) == [8, 16, 24, 32, 40]
    assert sorted(noted.evaluations, key=lambda e: e.updates) == list(run.record.history)
    assert torch.equal(noted.weights[-1], run.model.weight)
    assert not torch.equal(noted.weights[0], noted.weights[-1])
    kept = {path.name for path in (run.path or tmp_path).joinpath("checkpoints").iterdir() if path.name.isdigit()}
    assert kept <= set(noted.checkpoints) or not kept


def test_the_same_evaluations_are_made_with_and_without_callbacks(tmp_path: Path) -> None:
    alone = train(job(), "ring", 2, folder=tmp_path)
    heard = train(job(), "ring", 2, folder=tmp_path, callbacks=[Noted()])
    assert [e.metrics for e in heard.record.history] == [e.metrics for e in alone.record.history]
    assert heard.summary()["parameters_sha256"] == alone.summary()["parameters_sha256"]


def test_one_process_of_the_virtual_engine_has_callbacks_too() -> None:
    noted = Noted()
    train(job(), "ring", 2, engine="virtual", folder=None, callbacks=[noted])
    assert noted.hooks == ["start", "end"]
    assert [e.updates for e in noted.evaluations] == [8, 16, 24, 32, 40]


def test_what_a_hook_raises_ends_the_run_and_all_hear_of_it(tmp_path: Path) -> None:
    class Bad:
        def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
            raise KeyError("of the user")

    noted = Noted()
    with pytest.raises((KeyError, RunFailed), match="of the user"):
        train(job(), "ring", 2, folder=tmp_path, callbacks=[noted, Bad()])
    assert noted.hooks[-1] in ("KeyError", "RunFailed")
    (folder,) = tmp_path.iterdir()
    assert read_record(folder).status == Status.FAILED


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (EarlyStopping, "EarlyStopping is a class; give an object"),
        (object(), "has none of the hooks on_train_start"),
        (type("Mine", (), {"on_epoch_end": lambda self: None})(), r"Mine.on_epoch_end is no hook"),
    ],
)
def test_what_is_no_callback_is_refused(callback: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        train(job(), callbacks=[callback], folder=None)


@pytest.mark.parametrize("progress", [False, True, 3])
def test_progress_that_is_no_function_is_refused(progress: Any) -> None:
    with pytest.raises(UsageError, match=r"callbacks=\[paceline.ProgressBar\(\)\]"):
        train(job(), progress=progress)


# --- early stopping and the best model ---


def evaluations(*values: float) -> list[Evaluation]:
    return [Evaluation(10 * n, float(n), {"test_loss": value}) for n, value in enumerate(values, 1)]


def stopped_at(stopping: EarlyStopping, *values: float) -> int | None:
    training = Training("small", "ring", None, 1000)
    training.request_stop = lambda: None
    for evaluation in evaluations(*values):
        stopping.on_evaluation_end(training, evaluation, None)
        if training.stopping:
            return evaluation.updates
    return None


def test_patience_counts_evaluations_without_an_improvement() -> None:
    assert stopped_at(EarlyStopping(patience=2), 1.0, 0.9, 0.95, 0.8, 0.85, 0.81, 0.7) == 60
    assert stopped_at(EarlyStopping(patience=2, min_delta=0.2), 1.0, 0.9, 0.85, 0.5) == 30
    assert stopped_at(EarlyStopping(patience=2, mode="max"), 1.0, 0.9, 1.1, 1.2) is None
    assert stopped_at(EarlyStopping(patience=2), float("nan"), float("nan"), 1.0) == 20


def test_a_figure_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"there is no figure 'test_los'.*did you mean 'test_loss'"):
        Best("test_los", None, 0.0).improves(evaluations(1.0)[0])
    with pytest.raises(UsageError, match="mode='up'"):
        EarlyStopping(mode="up")


class StopAt:
    """Stops at the first evaluation."""

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        if evaluation.updates < training.total_updates:
            training.stop("enough")


@pytest.mark.parametrize("plan", ["ring", "downpour"])
def test_a_run_that_a_callback_stops_is_returned_and_can_be_resumed(plan: str, tmp_path: Path) -> None:
    whole = job(epochs=2000)  # so that it cannot be done before it is stopped
    run = train(whole, plan, 2, folder=tmp_path, callbacks=[StopAt()])
    assert run.record.status == Status.STOPPED
    assert run.record.error == "stopped: enough"
    updates = run.summary()["updates"]
    assert 8 < updates < 40_000
    assert run.record.history[-1].updates == updates
    assert run.path is not None
    saved = torch.load(run.path / "model.pt")
    assert torch.equal(saved["weight"], run.model.weight)
    assert read_record(run.path).summary is not None
    assert pl.replay(run).matches
    assert pl.replay(run.path).matches
    again = train(resume=run.path, callbacks=[StopAt()])
    assert again.record.status == Status.STOPPED
    assert again.summary()["updates"] > updates
    assert again.record.history[0] == run.record.history[0]
    assert pl.replay(again).matches


def test_a_run_that_cannot_be_stopped_says_why() -> None:
    with pytest.raises(UsageError, match="with a folder can be stopped by a callback"):
        train(job(), "ring", 2, engine="virtual", folder=None, callbacks=[StopAt()])


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    best, noted = pl.BestCheckpoint("test_loss", mode="max"), Noted()  # the worst, which is not the last
    run = train(job(), "ring", 2, folder=tmp_path, callbacks=[best, noted])
    assert run.path is not None
    worst = max(noted.evaluations, key=lambda e: e.metrics["test_loss"])
    assert best.updates == worst.updates
    kept = torch.load(run.path / "best.pt")
    assert torch.equal(kept["weight"], noted.weights[noted.evaluations.index(worst)])
    with pytest.raises(UsageError, match="give folder="):
        train(job(), engine="virtual", folder=None, callbacks=[pl.BestCheckpoint()])


# --- loggers ---


def test_loggers_write_what_happens(tmp_path: Path) -> None:
    run = train(job(), "ring", 2, folder=tmp_path, loggers=["csv", "tensorboard"])
    assert run.path is not None
    with (run.path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    told = {(int(row["updates"]), float(row["value"])) for row in rows if row["name"] == "test_loss"}
    assert told == {(e.updates, e.metrics["test_loss"]) for e in run.record.history}
    assert {"train_loss", "samples_per_second"} <= {row["name"] for row in rows} or len(rows) >= 10
    (file,) = (run.path / "tensorboard").iterdir()
    written = records(file.read_bytes())  # each one's check sum is tested
    assert sum(b"test_loss" in message for message in written) == len(run.record.history)
    assert sum(b"brain.Event" in message for message in written) == 1


@pytest.mark.parametrize(
    ("loggers", "says"),
    [
        (["tensorbord"], "did you mean 'tensorboard'"),
        (["csv:file=a"], "has no option 'file'; allowed: none"),
        ("csv", r"give a list, as in loggers=\['csv'\]"),
    ],
)
def test_a_wrong_logger_is_refused(loggers: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        train(job(), folder=None, loggers=loggers)


def test_a_logger_needs_a_folder() -> None:
    run: Callable[..., Run] = partial(train, job(), engine="virtual", folder=None)
    with pytest.raises(UsageError, match="csv writes into the run's folder"):
        run(loggers=["csv"])
