"""Watchers of several machines meet in a folder and see all ranks; what one has left counts no longer."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from paceline.concurrency.watcher import share
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.ranks import find_divergence
from paceline.concurrency.watcher.report import Span, report_divergence
from paceline.concurrency.watcher.samples import Counters, Frame, Pace, Process, Snapshot, Thread, Wait
from paceline.concurrency.watcher.share import Share


def rank(number: int, line: int, function: str) -> Process:
    stack = (Frame("/site-packages/torch/distributed/distributed_c10d.py", 9, function), Frame("/a.py", line, "main"))
    pid = 100 + number
    waits = (Thread(pid, Wait("clock")),)
    return Process(pid, 1, "a.py", waits, rank=number, world_size=3, stacks=(stack,))


class Machine:
    """A machine with some ranks, and its watcher."""

    def __init__(self, name: str, folder: Path, *ranks: Process) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: name)
            self.share = Share(folder)
        self.snapshot, self.history = Snapshot(6.0, ranks), History()
        for at in (0.0, 6.0):
            self.history.add(Counters(at, {each.pid: {each.pid: Pace(0, 0, 0)} for each in ranks}, {}))
            self.history.observe(Snapshot(at, ranks))

    def merged(self) -> Snapshot:
        snapshot = self.share.merge(self.snapshot, self.history)
        self.history.observe(snapshot)
        return snapshot


def test_a_rank_of_another_machine_is_named_as_the_cause(tmp_path: Path) -> None:
    first = Machine("first", tmp_path, rank(0, 5, "all_reduce"), rank(1, 5, "all_reduce"))
    second = Machine("second", tmp_path, rank(2, 9, "barrier"))
    assert find_divergence(first.merged(), first.history) is None  # the second has written nothing yet
    for machine, told_on in ((second, "first"), (first, "")):
        found = find_divergence(machine.merged(), machine.history)
        assert found is not None
        assert [each.rank for each in found.cause] == [2]
        assert [each.rank for each in found.victims] == [0, 1]
        text = report_divergence(found, 0.9, Span(0.0, 6.0)).text()
        assert ("the watcher on first" in text) == bool(told_on)
    assert "rank 2, pid 102 on second (a.py)  is in barrier at /a.py:9" in text


def test_what_a_watcher_has_left_or_not_renewed_counts_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Machine("first", tmp_path, rank(0, 5, "x")), Machine("second", tmp_path, rank(2, 9, "barrier"))
    second.merged()
    assert len(first.merged().processes) == 2
    monkeypatch.setattr(share, "FRESH", -1.0)
    assert len(first.merged().processes) == 1
    monkeypatch.undo()
    assert len(first.merged().processes) == 2
    second.share.close()
    assert len(first.merged().processes) == 1


def test_a_file_that_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    first = Machine("first", tmp_path, rank(0, 5, "x"))
    (tmp_path / "other-1.json").write_text('{"host": "other", "ranks": [')
    assert first.merged() == first.snapshot
