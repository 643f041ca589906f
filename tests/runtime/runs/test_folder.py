from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.errors import JobError, RunFailed, RunFolderError
from paceline.interfaces.testing.jobs import JOBS
from paceline.runtime.engines import checkpoints
from paceline.runtime.runs.live import EVENTS_FILE, EventKind, EventLog, ProcessKind, RunEvent, read_events
from paceline.runtime.runs.record import RunFolder, RunRecord, Status, new_folder, read_record
from paceline.runtime.runs.schema import read_json, write_json

# --- events.jsonl is read as it was written, also where the run was killed in the middle of a line --------------------

EVENTS = [
    RunEvent(EventKind.STARTED, 1.5, ProcessKind.SERVER, 1, 4, 77, 0),
    RunEvent(EventKind.VIEW, 2.0, shard=0, view=1 << 32, members=(4, 1), lossy=True),
    RunEvent(EventKind.LOST, 2.5, ProcessKind.AGENT, 1, 1, why="has been silent for 2.5 s"),
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
    text = (tmp_path / EVENTS_FILE).read_text()
    (tmp_path / EVENTS_FILE).write_text(text[:-5])
    assert read_events(tmp_path) == EVENTS[:-1]


def test_a_run_on_one_machine_has_none(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / EVENTS_FILE).write_text("{}\n")
    with pytest.raises(RunFolderError, match=EVENTS_FILE):
        read_events(tmp_path)


def test_without_a_folder_events_are_kept() -> None:
    log = EventLog(None)
    log.add(EVENTS[0])
    log.close()
    assert log.events == EVENTS[:1]


RACERS = 16


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-120000")


@pytest.mark.usefixtures("frozen")
def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    together = Barrier(RACERS)

    def begin(_: int) -> Path:
        together.wait()
        path = new_folder(tmp_path / "runs", "job-ring")
        with RunFolder(path) as place:
            place.write(RunRecord())
        return path

    with ThreadPoolExecutor(RACERS) as pool:
        paths = list(pool.map(begin, range(RACERS)))
    numbers = ["", *(f"-{number}" for number in range(1, RACERS))]
    assert sorted(path.name for path in paths) == sorted(f"20260101-120000-job-ring{number}" for number in numbers)
    assert all((path / "run.json").exists() for path in paths)


@pytest.mark.usefixtures("frozen")
def test_a_thousand_runs_of_one_second_are_enough(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"20260101-120000-job{f'-{number}' if number else ''}").touch()
    with pytest.raises(RunFolderError, match="already holds a thousand runs"):
        new_folder(tmp_path, "job")


def test_a_comparison_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    job = JOBS["mlp"]().with_(data=(torch.zeros(0, 12),))
    with pytest.raises(JobError):
        pl.compare(job, ["sequential"], folder=tmp_path)
    assert not list(tmp_path.iterdir())


# --- a full disk ---


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns what fills the disk: from then on no file grows."""

    def fill() -> None:
        real = os.open

        def refused(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & os.O_CREAT and not os.path.exists(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(path, flags, *rest, **options)

        def half(self: Path, content: Any, *_: Any, **__: Any) -> int:
            with self.open("wb") as file:
                file.write(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "open", refused)
        monkeypatch.setattr(Path, "write_text", half)
        monkeypatch.setattr(Path, "write_bytes", half)

    return fill


def test_the_last_record_has_its_room_from_the_start(tmp_path: Path, full: Callable[[], None]) -> None:
    """A run whose disk was full at its end said for ever that it was running."""
    with RunFolder(tmp_path) as place:
        place.write(RunRecord(status=Status.RUNNING, plan="ring"))
        reserved = (tmp_path / "run.json.new").stat()
        full()
        place.write(RunRecord(status=Status.FAILED, plan="ring", error="x" * 60_000))
    written = tmp_path / "run.json"
    assert read_record(tmp_path).status == Status.FAILED
    assert written.stat().st_ino == reserved.st_ino, "it was written into the room that was reserved"
    assert reserved.st_blocks * 512 >= written.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_draft_that_could_not_be_written_is_gone(tmp_path: Path, full: Callable[[], None]) -> None:
    write_json(tmp_path / "live.json", {"a": 1})
    full()
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "live.json", {"a": 2})
    with RunFolder(tmp_path) as place, pytest.raises(RunFailed, match="make room, or give another"):
        place.write(RunRecord(status=Status.RUNNING, plan="ring"))
    assert [path.name for path in tmp_path.iterdir()] == ["live.json"]
    assert read_json(tmp_path / "live.json") == {"a": 1}


def test_a_run_that_could_not_begin_leaves_no_folder(tmp_path: Path, full: Callable[[], None]) -> None:
    made = JOBS["mlp"]()
    full()
    with pytest.raises(RunFailed, match="cannot be written: No space left on device; make room"):
        pl.train(made, "sequential", engine="virtual", folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_could_not_be_written_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoints, "_save", refused)
    with pytest.raises(OSError, match="No space"):
        checkpoints.write(tmp_path, checkpoints.Checkpoint(5, 0, (), None, {}), {})
    assert not list((tmp_path / "checkpoints").iterdir())
