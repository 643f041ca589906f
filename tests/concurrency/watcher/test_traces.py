"""Recorded programs are judged as they were live: what hangs is reported with its cause, and nothing else is.

benchmarks/watcher/record.py records the traces; their folders are named after the family and the program.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.concurrency.watcher.files import FILE, Trace
from paceline.errors import UsageError
from tests.each import each

TRACES = Path(__file__).parent / "traces"
NAMES = sorted(folder.name for folder in TRACES.iterdir())
HUNG = {
    "locks",
    "pipes",
    "files",
    "event_loops",
    "queues",
    "sockets",
    "processes",
    "shared",
    "executors",
    "collectives",
}
STOPPED = {"stops"}


@each("name", NAMES)
def test_what_hangs_is_reported_and_nothing_else(name: str) -> None:
    family = name.partition(".")[0]
    wanted = "deadlocked" if family in HUNG else "stopped" if family in STOPPED else None
    reports = Trace.load(TRACES / name).judge()
    assert {report.verdict for report in reports} == ({wanted} if wanted else set())
    for report in reports:
        assert any(each.role == "cause" for each in report.processes)
        assert report.span.seconds >= 5.0
        assert report.text().startswith("HUNG since ")


def test_the_rank_that_skips_a_collective_is_named() -> None:
    report = Trace.load(TRACES / "collectives.skipped").judge()[0]
    cause, *victims = report.processes
    assert (cause.label.partition(",")[0], cause.collective, cause.role) == ("rank 1", "barrier", "cause")
    assert {(each.label.partition(",")[0], each.collective, each.role) for each in victims} == {
        ("rank 0", "all_reduce", "victim"),
        ("rank 2", "all_reduce", "victim"),
    }
    assert cause.at is not None
    assert cause.at.file.endswith("collectives.py")


def test_a_child_that_holds_itself_up_is_the_cause_and_its_parent_a_victim() -> None:
    report = Trace.load(TRACES / "processes.forked_with_a_lock").judge()[0]
    assert [each.role for each in report.processes] == ["cause", "victim"]
    assert report.processes[1].waits_for_pids == (report.processes[0].pid,)


def test_a_trace_is_saved_as_it_was(tmp_path: Path) -> None:
    trace = Trace.load(TRACES / "locks.two_orders")
    trace.save(tmp_path)
    assert list(Trace.load(tmp_path).samples) == list(trace.samples)


@pytest.mark.parametrize("content", [None, b"", b"no gzip", b"\x1f\x8b cut"])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UsageError, match=r"trace\.json\.gz"):
        Trace.load(tmp_path)
