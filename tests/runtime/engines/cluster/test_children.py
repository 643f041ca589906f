"""The processes of an agent are ended with it."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any, cast

from paceline.runtime.engines.cluster.children import Child, Children, ProcessName
from paceline.runtime.runs.live import ProcessKind


class _Slow:
    """A process that takes longer to end than it is waited for."""

    exitcode = None
    killed = False

    def kill(self) -> None:
        self.killed = True

    def join(self, seconds: float) -> None:
        """It runs on."""

    def close(self) -> None:
        raise ValueError("Cannot close a process while it is still running.")


def test_a_killed_process_that_takes_long_to_end_is_no_error() -> None:
    children, slow = Children(lambda: None), _Slow()
    mine, theirs = multiprocessing.Pipe()
    listener = threading.Thread(target=lambda: None)
    listener.start()
    children._all.append(Child(cast(Any, slow), mine, listener, ProcessName(ProcessKind.WORKER, 0)))
    children.end()
    theirs.close()
    assert slow.killed
    assert mine.closed
