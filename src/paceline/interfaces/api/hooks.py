"""What stands between the engine and the callbacks of a run: it evaluates snapshots live, and tells of checkpoints.

engine ──▶ progress ──▶ on_update_end
                   └──▶ a snapshot lies in its file ──▶ evaluate ──▶ on_evaluation_end ──▶ perhaps stop
                   └──▶ a checkpoint lies in its folder ──▶ on_checkpoint
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from paceline.interfaces.callbacks import Training, any_implements, call
from paceline.runtime.engines import checkpoints
from paceline.runtime.engines.checkpoint_manager import result_of
from paceline.runtime.engines.outcome import Outcome, Snapshot, evaluation_of, finish, load_values
from paceline.runtime.engines.setup import Setup, set_up
from paceline.runtime.runs.progress import Progress, ProgressCallback
from paceline.runtime.runs.record import Evaluation, RunFolder, RunRecord, Status
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind, Trace


def _share(callbacks: Sequence[Any]) -> float | None:
    """Return the share of time that callbacks which follow evaluations leave to them; None if one needs them all."""
    shares = [
        getattr(each, "evaluation_share", None) for each in callbacks if any_implements([each], "on_evaluation_end")
    ]
    return None if None in shares or not shares else max(share for share in shares if share is not None)


class ProgressFunction:
    """The function of `progress=` as a callback."""

    def __init__(self, function: ProgressCallback) -> None:
        self.function = function

    def on_update_end(self, training: Training, progress: Progress) -> None:
        self.function(progress)


class Hooks:
    """The callbacks of one run, of which there may be none. It follows the run, and its evaluations."""

    def __init__(
        self, callbacks: Sequence[Any], setup: Setup, folder: Path | None, earlier: Sequence[Evaluation] = ()
    ) -> None:
        self.callbacks, self.setup = callbacks, setup
        self.training = Training(
            setup.job.name,
            str(setup.plan),
            folder,
            setup.agenda.updates,
            setup.figures,
            setup.agenda.updates_per_epoch,
            tuple(setup.job.metrics),
        )
        #: The share of the run's time for evaluations where no callback needs all of them; and seconds spent on them.
        self._share, self._spent, self._last = _share(callbacks), 0.0, 0.0
        if why := setup.plan.traits.no_checkpoints:
            self.training.cannot_stop = f"plan {setup.plan.name} keeps no checkpoints: {why}"
        #: The evaluations that were made, by earlier lives of a resumed run, too; by their number of updates.
        self.known: dict[int, Evaluation] = {each.updates: each for each in earlier}
        self._snapshot: Callable[[int], Any] | None = None
        self._checkpoints = self._listed()  # those that were told of, or were there before

    def connect(self, snapshot: Callable[[int], Any] | None, stop: Callable[[], None] | None) -> None:
        """Take what reads a snapshot and what ends the run."""
        if self.setup.pipeline is not None:  # the stages of a pipeline write their parts of a snapshot at any time
            self.training.cannot_stop = "the stages of a pipeline cannot be evaluated before the end of the run"
            return
        self.training.request_stop = stop
        self._snapshot = snapshot if any_implements(self.callbacks, "on_evaluation_end") else None

    def __call__(self, report: Progress) -> None:
        call(self.callbacks, "on_update_end", self.training, report)
        self._evaluate(report)
        self.notify_checkpoints()

    def _evaluate(self, report: Progress) -> None:
        """Evaluate the snapshots that were written since the last report."""
        if self._snapshot is None:
            return
        rows = np.sort(np.concatenate([r[r["kind"] == Kind.SNAPSHOT] for r in report.rows]), order="update")
        if self._share is not None:
            rows = rows[-1:] if self._affordable(report) else rows[:0]
        for row in rows:
            updates = int(row["update"])
            if updates in self.known:
                continue
            begin = time.perf_counter()
            module = load_values(self.setup, self._snapshot(updates))
            evaluation = evaluation_of(self.setup, module, updates, float(row["start"]) / 1e9)
            self._last = time.perf_counter() - begin
            self._spent += self._last
            self.evaluated(evaluation, module)

    def _affordable(self, report: Progress) -> bool:
        """Return whether the next evaluation stays within its share; the first is estimated from the training."""
        assert self._share is not None
        if not self._last and self.setup.test is not None and report.samples:
            self._last = report.seconds * len(self.setup.test) / report.samples / 2  # without a backward pass
        return self._spent + self._last <= self._share * report.seconds

    def evaluated(self, evaluation: Evaluation, module: nn.Module) -> None:
        """Tell the callbacks of an evaluation."""
        self.known[evaluation.updates] = evaluation
        call(self.callbacks, "on_evaluation_end", self.training, evaluation, module)

    def notify_checkpoints(self) -> None:
        """Tell the callbacks of checkpoints that are complete since the last call."""
        if not any_implements(self.callbacks, "on_checkpoint"):
            return
        for updates in sorted(self._listed() - self._checkpoints):
            self._checkpoints.add(updates)
            assert self.training.folder is not None
            call(
                self.callbacks,
                "on_checkpoint",
                self.training,
                checkpoints.folder_of(self.training.folder) / str(updates),
            )

    def _listed(self) -> set[int]:
        base = checkpoints.folder_of(self.training.folder) if self.training.folder else None
        entries = base.iterdir() if base is not None and base.is_dir() else ()
        return {int(path.name) for path in entries if path.name.isdigit()}

    def begin(self) -> None:
        """Tell the callbacks that the run begins."""
        call(self.callbacks, "on_train_start", self.training)

    def failed(self, error: BaseException) -> None:
        """Tell the callbacks why the run ends."""
        self.notify_checkpoints()
        call(self.callbacks, "on_exception", self.training, error)

    def end(self, run: Run) -> Run:
        """Tell the callbacks that the run is done."""
        self.notify_checkpoints()
        call(self.callbacks, "on_train_end", self.training, run)
        return run


# The run that a callback has stopped: the model and the figures as of the checkpoint that ended it.


def stopped_run(setup: Setup, place: RunFolder, path: Path, record: RunRecord, hooks: Hooks) -> Run:
    """Return the run as of its newest checkpoint. Its status is `stopped`, and it can be resumed."""
    reached = checkpoints.newest(path)
    assert reached is not None, "the run was stopped after a checkpoint"
    job = setup.users_job.with_(compute=setup.job.compute)  # of which no shorter training may change its mind
    until = set_up(job, setup.plan, "local", reached.updates, bounded=True)
    trace = Trace(checkpoints.led_to(Trace.open(path / "trace.arrow"), reached, until.agenda))
    seconds = reached.nanoseconds / 1e9
    earlier = [
        Snapshot(each.updates, each.seconds, list)  # evaluated already; its values are not read again
        for each in hooks.known.values()
        if each.updates < reached.updates
    ]
    outcome = Outcome(trace, seconds, result_of(until, reached), earlier)
    return finish(until, outcome, place, record, hooks, Status.STOPPED, f"stopped: {hooks.training.stopping}")
