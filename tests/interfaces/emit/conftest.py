"""Stand-ins for the programs that the files call: each writes down the words that it was called with."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.runtime.runs.record import RunRecord, Status
from paceline.runtime.runs.schema import write_json

DEADLINE = 120.0

#: What each stand-in does after it has written its words to calls/NAME, with a zero byte behind each.
PROGRAMS = {
    "scontrol": 'printf "node7\\nnode9\\n"',
    "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"',
    "ray": 'if [ -e "$CALLS/ray_fails" ]; then exit 0; fi; while [ "$1" != -- ]; do shift; done; shift; "$@"',
    "paceline": """
        env >"$CALLS/environment"
        if [ -e "$CALLS/waits" ]; then
            trap 'exit 143' TERM
            echo >"$CALLS/ready"
            while :; do sleep 0.05; done
        fi
        exit "$(cat "$CALLS/status" 2>/dev/null || echo 0)"
    """,
}


class Stage:
    """A folder with the stand-ins, in which a script is run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.started: list[subprocess.Popen[str]] = []
        self.calls.mkdir()
        programs = folder / "programs"
        programs.mkdir()
        for name, body in PROGRAMS.items():
            (programs / name).write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" >"$CALLS/{name}"\n{body}\n')
            (programs / name).chmod(0o755)
        self.environ = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "CALLS": str(self.calls)}

    def start(self, shell: str, script: str, **environ: str) -> subprocess.Popen[str]:
        (self.folder / "script").write_text(script)
        process = subprocess.Popen(
            [shell, "script"],
            cwd=self.folder,
            env=self.environ | environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, shell: str, script: str, **environ: str) -> tuple[int, str]:
        """Run a script to its end; return its exit status and what it printed."""
        process = self.start(shell, script, **environ)
        printed, _ = process.communicate(timeout=DEADLINE)
        return process.returncode, printed

    def words(self, program: str) -> list[str]:
        """Return the words that a program was called with, or none if it was not called."""
        file = self.calls / program
        return file.read_text().split("\0")[:-1] if file.exists() else []

    def until(self, condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
        """Wait for a condition, as long as the process lives."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)

    def left(self, runs: str, status: Status, name: str = "20260101-120000-job-ring") -> Path:
        """Make the folder of a run that an earlier process left."""
        path = self.folder / runs / name
        path.mkdir(parents=True)
        write_json(path / "run.json", RunRecord(plan="ring", status=status).as_dict())
        return path

    def close(self) -> None:
        """End what a test that failed has left."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()
