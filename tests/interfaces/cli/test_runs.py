"""The list of runs."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

import paceline as pl
from paceline.interfaces.testing.jobs import JOBS
from paceline.runtime.runs.live import ABSENT, FILE, Heartbeat, LiveRecord, Phase, ProcessRecord
from paceline.runtime.runs.record import Status, read_record
from paceline.runtime.runs.schema import to_dict, write_json
from tests.interfaces.cli.conftest import Command


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    for plan in ("sequential", "ring:workers=2", "downpour:workers=2"):
        pl.train(JOBS["mlp"](), plan, engine="virtual", max_updates=3, folder=runs)
    return runs


def running(folder: Path) -> Path:
    """Let the run by ring look as one that goes on, or that was killed."""
    (ring,) = folder.glob("*ring*")
    write_json(ring / "run.json", replace(read_record(ring), status=Status.RUNNING, summary=None).as_dict())
    return ring


def test_runs_are_listed_with_their_status_in_the_order_of_their_starts(stored: Path, command: Command) -> None:
    ring = running(stored)
    said = command("runs", str(stored))
    rows = said.err.splitlines()[2:]
    assert [row.split()[1] for row in rows] == ["done", "killed", "done"]
    assert [row.split()[0].rpartition("-")[2] for row in rows] == ["sequential", "ring", "downpour"]
    with Heartbeat(ring, 10):
        listed = json.loads(command("runs", str(stored), "--filter", "ring:workers=2 running", "--json").out)["runs"]
    (run,) = listed
    assert (run["folder"], run["status"], run["updates"]) == (str(ring), "running", 0)


def test_what_a_filter_selects_is_deleted_and_nothing_that_goes_on(stored: Path, command: Command) -> None:
    ring = running(stored)
    with Heartbeat(ring, 10):
        assert "goes on" in command("runs", str(stored), "--delete", "--yes").err
    assert "give --filter" in command("runs", str(stored), "--delete").err
    assert len([*stored.iterdir()]) == 3
    assert command("runs", str(stored), "--filter", "killed", "--delete", "--yes").code == 0
    assert not ring.exists()
    assert len([*stored.iterdir()]) == 2
    assert command("runs", str(stored), "--filter", "killed").code == 2


def test_a_run_of_another_machine_goes_on_while_its_heartbeat_is_new(stored: Path, command: Command) -> None:
    ring = running(stored)

    def status(age: float) -> str:
        elsewhere = ProcessRecord(2**22 + 1, 0.0)  # above the largest number that a process can have here
        write_json(
            ring / FILE, to_dict(LiveRecord(Phase.TRAINING, time.time() - age, elsewhere, 1, 10, machine="another"))
        )
        (run,) = json.loads(command("runs", str(stored), "--filter", "ring", "--json").out)["runs"]
        return str(run["status"])

    assert status(2.0) == "running"
    assert "goes on" in command("runs", str(stored), "--filter", "ring", "--delete", "--yes").err
    assert status(2 * ABSENT) == "killed"
