"""The glances of the last seconds, and since when each thread has not run. Pure."""

from __future__ import annotations

from collections import deque

from paceline.watcher.samples import Glance, Pace

#: Seconds without a single instruction after which a thread is still. Garbage collectors, databases and interpreters
#: that look whether something is to be done wake several times in this time.
STILL = 5.0


class History:
    """Keeps the glances of a window, and forgets older ones."""

    def __init__(self, window: float = STILL) -> None:
        self._window = window
        self._glances: deque[Glance] = deque()
        #: By process and thread: the pace it had last, and when it was first seen to have that pace.
        self._since: dict[tuple[int, int], tuple[Pace, float]] = {}

    @property
    def first(self) -> Glance:
        """The oldest glance of the window."""
        return self._glances[0]

    @property
    def last(self) -> Glance:
        """The newest glance."""
        return self._glances[-1]

    def add(self, glance: Glance) -> None:
        """Take a glance."""
        self._glances.append(glance)
        while len(self._glances) > 2 and glance.at - self._glances[1].at >= self._window:
            self._glances.popleft()
        kept = {}
        for pid, threads in glance.threads.items():
            for tid, pace in threads.items():
                before = self._since.get((pid, tid))
                same = before is not None and before[0].runs == pace.runs
                kept[pid, tid] = (pace, before[1]) if same and before else (pace, glance.at)
        self._since = kept

    def still_since(self, pid: int, tid: int) -> float | None:
        """When a thread was first seen as it still is; None if there is no such thread."""
        found = self._since.get((pid, tid))
        return found[1] if found else None

    def still(self, pid: int, tid: int) -> bool:
        """Whether a thread has not run for the whole window."""
        since = self.still_since(pid, tid)
        return since is not None and self.last.at - since >= self._window

    def suspects(self) -> frozenset[int]:
        """Return the processes whose main thread is still: without one there is no reason to look closer."""
        return frozenset(pid for pid in self.last.threads if self.still(pid, pid))
