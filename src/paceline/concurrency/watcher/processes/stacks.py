"""Python stacks of the processes that the watcher started: faulthandler, registered in them before their first line.

A folder with a sitecustomize.py comes first on PYTHONPATH. A process that has not run it does not handle the signal, is
recognised by that and never signalled.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from paceline.concurrency.watcher.processes.proc import caught_signals
from paceline.concurrency.watcher.samples import Frame, Stack

#: A signal that no program is known to use, and the variable that names the folder in which stacks are written.
SIGNAL = signal.SIGRTMAX - 3
VARIABLE = "PACELINE_STACKS"
_INJECTED = Path(__file__).parent / "inject"
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


def environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command whose Python processes write their stacks to a folder on a signal."""
    path = os.pathsep.join(filter(None, (str(_INJECTED), inherited.get("PYTHONPATH", ""))))
    return {**inherited, "PYTHONPATH": path, VARIABLE: f"{folder}:{int(SIGNAL)}"}


def ask(folder: Path, pids: Iterable[int], patience: float = 1.0) -> dict[int, tuple[Stack, ...]]:
    """Ask processes for their stacks, and return those that answer within `patience` seconds."""
    receivers = [pid for pid in pids if caught_signals(pid) >> (SIGNAL - 1) & 1]
    for pid in receivers:
        with suppress(OSError):
            _file(folder, pid).write_text("")
            os.kill(pid, SIGNAL)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and not all(_complete(folder, pid) for pid in receivers):
        time.sleep(0.02)
    answers = {pid: parse(_text(folder, pid)) for pid in receivers}
    return {pid: stacks for pid, stacks in answers.items() if stacks}


def parse(text: str) -> tuple[Stack, ...]:
    """Parse what faulthandler wrote: the thread that handled the signal, the main thread, comes first."""
    stacks: list[list[Frame]] = []
    main = 0
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            main = len(stacks) if line.startswith("Current") else main
            stacks.append([])
        elif stacks and (match := _FRAME.match(line)):
            stacks[-1].append(Frame(match[1], int(match[2]), match[3]))
    return tuple(tuple(stack) for stack in stacks[main : main + 1] + stacks[:main] + stacks[main + 1 :])


def _file(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.stack"


def _text(folder: Path, pid: int) -> str:
    with suppress(OSError):
        return _file(folder, pid).read_text(errors="replace")
    return ""


def _complete(folder: Path, pid: int) -> bool:
    """Whether a process has written its last line: a frame, of the current thread or a later one."""
    text = _text(folder, pid)
    return "Current thread" in text and text.endswith("\n") and text.rstrip().splitlines()[-1].startswith("  File")
