"""What a head records of the workers of other nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.runtime.engines.cluster.remote_workers import RemoteWorkers
from paceline.runtime.runs.trace import Kind, Row, Trace


@pytest.mark.parametrize(("shares", "updates"), [(1, 11), (4, 2)])
def test_a_head_that_takes_over_counts_updates_and_not_the_shares_of_them(shares: int, updates: int) -> None:
    """The progress of a run under `backup` stood still until it had made as many updates as shares before."""
    setup = SimpleNamespace(agenda=SimpleNamespace(shares=shares))
    observer = SimpleNamespace(training_started=lambda *_: None)
    workers: Any = SimpleNamespace(setup=setup, observer=observer, manager=None, count=1, doing=[-1], _trace_file=None)
    rows = Trace.of([Row(Kind.COMPUTE, 0, update, start=0, end=1) for update in (3, 11)]).rows
    RemoteWorkers.training_continues(workers, 0, rows, ())
    assert workers.doing == [updates]
