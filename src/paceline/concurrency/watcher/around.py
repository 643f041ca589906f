"""The watcher around a run of Paceline: a process of its own, started when the run has lasted for some seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.errors import RunFolderError
from paceline.runtime.runs.live import read_live

#: Seconds after which a run is watched: shorter ones have no use for it, and starting a process has a price.
AFTER = 10.0


@contextmanager
def watched_run(runs: Path, after: float = AFTER) -> Iterator[None]:
    """Watch the run that this process makes in a folder of runs; a hang goes to standard error and to its folder."""
    started: list[subprocess.Popen[bytes]] = []
    begun = time.time()

    ended = threading.Event()

    def start() -> None:
        while not started and not ended.wait(after):
            folder = run_of_this_process(runs, begun)
            if folder is not None:
                command = [sys.executable, "-m", "paceline", "watch", "--run", str(folder)]
                started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for watcher in started:
            watcher.terminate()
            watcher.wait()


def run_of_this_process(runs: Path, begun: float) -> Path | None:
    """Return the folder of the run that this process makes; None while there is none with workers."""
    for folder in runs.iterdir() if runs.is_dir() else ():
        live = None
        with suppress(OSError, RunFolderError):  # it may be a file, damaged, or gone by now: none is this run
            live = read_live(folder) if folder.stat().st_mtime >= begun - 1 else None
        if live is not None and live.process.pid == os.getpid() and live.workers:
            return folder
    return None
