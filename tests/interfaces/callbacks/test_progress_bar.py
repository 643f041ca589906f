"""The display of a training: what its line says, when it evaluates, and how it looks in a notebook."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import paceline
from paceline.interfaces.api.hooks import Hooks
from paceline.interfaces.callbacks import Training
from paceline.interfaces.callbacks.progress_bar import ProgressBar
from paceline.plans.plan import Plan
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.record import Evaluation
from paceline.runtime.runs.trace import DTYPE, Kind
from tests.interfaces.callbacks.test_callbacks import job
from tests.runtime.runs.test_live_status import report, simulated


def test_the_line_has_epoch_loss_a_figure_of_the_test_data_speed_and_time_left() -> None:
    bar = ProgressBar(console=Console(file=io.StringIO(), width=120))
    training = Training("digits", "ring:workers=3", None, 120, updates_per_epoch=40)
    bar.on_train_start(training)
    bar.on_evaluation_end(training, Evaluation(20, 1.0, {"test_loss": 0.31, "test_accuracy": 0.912}), None)
    bar.status.update(report(simulated("ring:workers=3"), 8.0))
    assert bar.head().startswith("digits by ring:workers=3  epoch 1/3, 25% of 120 updates, test ")
    assert ", test accuracy 91.2%, test loss 0.31, " in bar.head()
    assert "samples/s, " in bar.head()
    assert bar.head().endswith(" left")


def test_a_notebook_gets_one_picture_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, html: Any) -> None:
            shown.append(html.data)

    def display(html: Any, display_id: bool) -> Handle:
        assert display_id
        assert not shown
        shown.append(html.data)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr("paceline.interfaces.callbacks.progress_bar.REDRAW", 0.0)
    bar = ProgressBar("job", console=Console(file=io.StringIO(), force_jupyter=True))
    for seconds in (8.0, 9.0):
        bar.on_update_end(None, report(simulated("ring:workers=3"), seconds))
    assert len(shown) == 2
    assert all(html.startswith("<pre>") and "samples/s" in html for html in shown)


def test_evaluations_for_the_bar_alone_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.zeros(1, DTYPE)
    rows["kind"], rows["update"] = Kind.SNAPSHOT, 4
    evaluated: list[int] = []
    clock = iter(range(0, 1000, 3))  # an evaluation takes three seconds
    monkeypatch.setattr("paceline.interfaces.api.hooks.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr("paceline.interfaces.api.hooks.load_values", lambda setup, values: None)
    monkeypatch.setattr(
        "paceline.interfaces.api.hooks.evaluation_of",
        lambda setup, module, updates, at: evaluated.append(updates) or Evaluation(updates, at),
    )
    hooks = Hooks([ProgressBar(quiet=True)], set_up(job(), Plan.parse("sequential"), "local", None), None)
    hooks.connect(lambda updates: None, None)
    for seconds in (1.0, 2.0, 310.0, 500.0, 900.0):
        rows["update"] += 1
        hooks._evaluate(SimpleNamespace(rows=[rows], seconds=seconds, samples=1000))  # type: ignore[arg-type]
    # 1% of the time: 3 of 310 seconds, 6 of 900.
    assert evaluated == [7, 9]


def test_a_callback_that_follows_evaluations_gets_all_of_them_beside_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.interfaces.callbacks.progress_bar.PLAIN", (0.0, 0.0))

    class Follows:
        def __init__(self) -> None:
            self.updates: list[int] = []

        def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
            self.updates.append(evaluation.updates)

    follows, screen = Follows(), io.StringIO()
    run = paceline.train(
        job(), "ring", 2, folder=tmp_path, callbacks=[follows, ProgressBar(console=Console(file=screen))]
    )
    assert follows.updates == [each.updates for each in run.record.history]
    assert ", loss " in screen.getvalue()
    assert "  epoch " in screen.getvalue()
