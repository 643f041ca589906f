"""events.jsonl: what happened to the processes of a run, one line per event, in the order they were noted.

How long a death went unnoticed, and when a shard had its backup again, follows from the times here. The
trace has no place for them: an event is of a process or of a shard, and may come before the first update.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline.errors import RunFolderError
from paceline.runtime.runs.schema import StrEnum, from_dict, to_dict

FILE = "events.jsonl"


class EventKind(StrEnum):
    """What an event is about."""

    STARTED = "started"  # an agent has started a process
    ENDED = "ended"  # an agent has noticed the end of a process that it had started
    LOST = "lost"  # the desk or the head lost a process: its connection has ended, or it is silent
    VIEW = "view"  # the desk wants these servers to hold a shard, the primary first
    SERVING = "serving"  # they all do
    LEASING = "leasing"  # the desk leases batches; its number is its epoch
    AGAIN = "again"  # batches are computed again, since their pushes were lost with the servers that had them
    SHARD_LOST = "shard lost"  # no server holds the shard any longer
    HUNG = "hung"  # `paceline watch` has found that the process hangs
    GROUP = "group"  # ranks begin a group; its number is its epoch


class ProcessKind(StrEnum):
    """What a process of a run on a cluster does."""

    AGENT = "agent"
    WORKER = "worker"
    HELPER = "helper"  # of a worker: it computes chunks of the same batches
    SERVER = "server"
    DESK = "desk"


@dataclass(frozen=True)
class Event:
    """One event. -1 stands for a number that does not apply to its kind."""

    kind: EventKind
    #: When it was noted, in seconds since 1970 of the head's clock.
    at: float
    #: The process that it is about.
    process: ProcessKind | None = None
    #: The node of the process.
    rank: int = -1
    #: The number of the process: no two of a kind have the same in one run.
    number: int = -1
    #: The process's pid on its node.
    pid: int = -1
    shard: int = -1
    #: The number of the view.
    view: int = -1
    #: The servers of the view, the primary first; or the ranks of a group.
    members: tuple[int, ...] = ()
    #: Whether acknowledged pushes may be missing in the view, so that they are computed again.
    lossy: bool = False
    #: Why, as the end of a sentence.
    why: str = ""


class EventLog:
    """Writes the events of a run into its folder, after those before it was resumed; without one it only keeps them."""

    def __init__(self, run: Path | None) -> None:
        self.events: list[Event] = []
        #: Called with every event that is added.
        self.copy: Callable[[Event], None] = lambda event: None
        self._file: IO[str] | None = (run / FILE).open("a", buffering=1) if run else None

    def add(self, event: Event) -> None:
        """Append an event."""
        self.events.append(event)
        self.copy(event)
        if self._file is not None:
            self._file.write(json.dumps(to_dict(event)) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_events(run: Path) -> list[Event]:
    """Read the events of a run, up to the last whole line; none where the run was not on a cluster."""
    try:
        lines = (run / FILE).read_text(encoding="utf-8").split("\n")[:-1]
        return [from_dict(Event, json.loads(line)) for line in lines]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise RunFolderError(f"{run / FILE} is damaged: {error}") from None


def wall_time(nanoseconds: int) -> float:
    """Return the time of this process's monotonic clock as seconds since 1970."""
    return time.time() - (time.perf_counter_ns() - nanoseconds) / 1e9
