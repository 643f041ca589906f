"""The run that a callback has stopped: the model and the figures as of the checkpoint that ended it."""

from __future__ import annotations

from pathlib import Path

from paceline.interfaces.api.hooks import Hooks
from paceline.runtime.engines import checkpoints
from paceline.runtime.engines.checkpoint_manager import result_of
from paceline.runtime.engines.outcome import Outcome, Snapshot, finish
from paceline.runtime.engines.setup import Setup, set_up
from paceline.runtime.runs.folder import RunFolder
from paceline.runtime.runs.record import RunRecord, Status
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Trace


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
