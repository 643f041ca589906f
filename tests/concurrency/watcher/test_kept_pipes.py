"""The end of a pipe that something in the background keeps open after the child has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.concurrency.watcher.graph import find_knot
from paceline.concurrency.watcher.processes import proc
from paceline.concurrency.watcher.samples import Process, Snapshot

#: What a shell leaves in the background, and whether it is never meant to end.
LEFT = {
    "sleep infinity": True,
    f"{sys.executable} -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 0)); s.accept()'": True,
    f"{sys.executable} -c 'import time; time.sleep(10 ** 8)'": True,
    "sleep 600": False,
    f"{sys.executable} -c 'while True: pass'": False,
}


@pytest.mark.parametrize("command", LEFT)
def test_what_is_left_in_the_background_and_does_not_end_keeps_the_pipe_open(command: str, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    text = f"import subprocess; subprocess.run({f'{command} & echo $! > {numbers}'!r}, shell=True, capture_output=True)"
    with subprocess.Popen([sys.executable, "-c", text]) as started:
        try:
            holder = holder_when_the_child_has_ended(started.pid, numbers)
            process = snapshot_until(started.pid, lambda found: found.main.kept if LEFT[command] else settled(found))
        finally:
            started.kill()
            if numbers.exists() and numbers.read_text().strip():
                os.kill(int(numbers.read_text()), signal.SIGKILL)
    assert process.main.kept == LEFT[command]
    assert process.main.by == (() if LEFT[command] else (holder,))
    assert (find_knot(Snapshot(0.0, (process,)), lambda pid, tid: True) is not None) == LEFT[command]
    if LEFT[command]:
        assert f"kept open by pid {holder} (" in process.main.on


def settled(process: Process) -> bool:
    """Whether a process is seen to wait for the holder of its pipe: one that has just been forked is seen later."""
    return process.main.kind == "pipe" and process.main.by != ()


def snapshot_until(pid: int, found: Callable[[Process], bool]) -> Process:
    """Take snapshots until one is as it is to be; the test's own timeout ends what never becomes so."""
    while not found(process := proc.snapshot([pid]).processes[0]):
        time.sleep(0.02)
    return process


def holder_when_the_child_has_ended(pid: int, numbers: Path) -> int:
    while not (numbers.exists() and numbers.read_text().strip() and "Z" in states(pid)):
        time.sleep(0.02)
    return int(numbers.read_text())


def states(pid: int) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return "".join(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] for each in children)
