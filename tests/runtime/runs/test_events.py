"""events.jsonl is read as it was written, also where the run was killed in the middle of a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import RunFolderError
from paceline.runtime.runs.events import FILE, Event, EventKind, EventLog, ProcessKind, read_events

EVENTS = [
    Event(EventKind.STARTED, 1.5, ProcessKind.SERVER, 1, 4, 77, 0),
    Event(EventKind.VIEW, 2.0, shard=0, view=1 << 32, members=(4, 1), lossy=True),
    Event(EventKind.LOST, 2.5, ProcessKind.AGENT, 1, 1, why="has been silent for 2.5 s"),
]


def test_events_are_read_as_they_were_noted(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    for event in EVENTS:
        log.add(event)
        assert read_events(tmp_path)[-1] == event, "a reader sees it at once"
    log.close()
    assert read_events(tmp_path) == log.events == EVENTS


def test_half_a_line_is_left_out(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    for event in EVENTS:
        log.add(event)
    log.close()
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text[:-5])
    assert read_events(tmp_path) == EVENTS[:-1]


def test_a_run_on_one_machine_has_none(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}\n")
    with pytest.raises(RunFolderError, match=FILE):
        read_events(tmp_path)


def test_without_a_folder_events_are_kept() -> None:
    log = EventLog(None)
    log.add(EVENTS[0])
    log.close()
    assert log.events == EVENTS[:1]
