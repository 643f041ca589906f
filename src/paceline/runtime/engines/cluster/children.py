"""The processes that an agent has started, and what they say."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from time import perf_counter_ns as now
from typing import Any, NamedTuple

from paceline.runtime.engines.observer import GONE
from paceline.runtime.engines.workers.messages import Died
from paceline.runtime.engines.workers.process import start_process
from paceline.runtime.runs.live import ProcessKind


class ProcessName(NamedTuple):
    """What a process does in the run."""

    kind: ProcessKind
    #: No two processes of a kind have the same number in one run.
    number: int
    #: The shard that a server holds from the start, or -1.
    shard: int = -1


@dataclass(frozen=True, eq=False)
class Child:
    """One process, and the agent's end of the pipe to it."""

    process: BaseProcess
    pipe: Connection
    #: Takes what the process says, so that the agent can wait for its sockets meanwhile.
    listener: threading.Thread
    name: ProcessName
    #: When it was started, in nanoseconds.
    started: int = field(default_factory=now)

    def send(self, message: object) -> None:
        """Send a message, if the process still runs."""
        with contextlib.suppress(OSError):  # its death is on the way
            self.pipe.send(message)


class Children:
    """Starts processes by the forkserver, as the local engine does, and ends them."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called, by another thread, when `messages` has something new."""
        self._wake = wake
        self._all: list[Child] = []
        self._inbox: SimpleQueue[tuple[Child, Any]] = SimpleQueue()
        #: Those whose end `messages` has not returned yet.
        self.running: list[Child] = []
        #: Processes that were started and are not told of yet.
        self.news: list[Child] = []

    def start(self, name: ProcessName, target: Callable[..., None], args: tuple[object, ...]) -> Child:
        """Start a process. Its last argument is its end of the pipe."""
        process, mine = start_process(target, args)
        listener = threading.Thread(target=lambda: self._listen(child), name="paceline-child", daemon=True)
        child = Child(process, mine, listener, name)
        self._all.append(child)
        self.running.append(child)
        self.news.append(child)
        listener.start()
        return child

    def messages(self) -> list[tuple[Child, Any]]:
        """Return what the processes have said since the last call; `Died` where a pipe has ended."""
        inbox: list[tuple[Child, Any]] = []
        while True:
            try:
                child, message = self._inbox.get_nowait()
            except Empty:
                return inbox
            inbox.append((child, message))
            if isinstance(message, Died):
                self.running.remove(child)

    def end(self) -> None:
        """End the processes that still run by SIGKILL, since their further work would be discarded."""
        for child in self._all:
            child.process.kill()
        for child in self._all:
            child.process.join(GONE)
            child.listener.join(GONE)
            child.pipe.close()
            if child.process.exitcode is not None:
                child.process.close()
        self._all.clear()

    def _listen(self, child: Child) -> None:
        while True:
            message: object = Died()
            with contextlib.suppress(EOFError, OSError):
                message = child.pipe.recv()
            self._inbox.put((child, message))
            self._wake()
            if isinstance(message, Died):
                return
