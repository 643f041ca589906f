"""The glances of the last seconds, and since when each thread has not run and each stack is the same. Pure."""

from __future__ import annotations

from collections import deque

from paceline.watcher.graph import Knot, find_retries
from paceline.watcher.samples import Facts, Glance, Look, Pace, Stack

#: Seconds without a single instruction after which a thread is still. Garbage collectors, databases and interpreters
#: that look whether something is to be done wake several times in this time.
STILL = 5.0
#: A tree that uses less of a core than this does little enough that it may hang.
QUIET = 0.05


class History:
    """Keeps the glances of a window, and forgets older ones."""

    def __init__(self, window: float = STILL) -> None:
        self._window = window
        self._glances: deque[Glance] = deque()
        #: By process and thread: the pace it had last, and when it was first seen to have that pace.
        self._since: dict[tuple[int, int], tuple[Pace, float]] = {}
        #: By process: the main thread's stack in the newest look, and when it was first seen.
        self._stacks: dict[int, tuple[Stack, float]] = {}
        self._looked = 0.0
        #: By process: what the watcher of another machine says.
        self._elsewhere: dict[int, Facts] = {}
        #: Threads that ask for each other's locks again and again, since when, and in how many looks.
        self._retries: tuple[Knot, float, int] | None = None

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

    def observe(self, look: Look) -> None:
        """Take the stacks of a look, and what other watchers say."""
        self._elsewhere = {each.pid: each.facts for each in look.processes if each.facts is not None}
        kept = {}
        for process in look.processes:
            stack = process.stacks[0] if process.stacks else ()
            old = self._stacks.get(process.pid)
            kept[process.pid] = old if old is not None and old[0] == stack else (stack, look.at)
        self._stacks, self._looked = kept, look.at
        retries, before = find_retries(look), self._retries
        if retries is None:
            self._retries = None
        elif before is not None and before[0].threads == retries.threads:
            self._retries = retries, before[1], before[2] + 1
        else:
            self._retries = retries, look.at, 1

    def retries(self, seconds: float) -> tuple[Knot, float] | None:
        """Return the threads that three looks at least, in so many seconds, saw to ask for each other's locks.

        With them, since when.
        """
        if self._retries is None or self._retries[2] < 3 or self._looked - self._retries[1] < seconds:
            return None
        return self._retries[:2]

    def since(self, pid: int, tid: int) -> float | None:
        """Return since when a thread is still, or a main thread that moves at the same lines."""
        if pid in self._elsewhere:
            return self.last.at - self._elsewhere[pid].seconds
        found = self.still_since(pid, tid)
        if tid == pid and pid in self._stacks and not self.still(pid, tid):
            return self._stacks[pid][1]
        return found

    def same_stack(self, pid: int) -> bool:
        """Whether the main thread was at the same lines in all looks of a window."""
        if pid in self._elsewhere:
            return self._elsewhere[pid].same_stack
        stack, since = self._stacks.get(pid, ((), self._looked))
        return stack != () and self._looked - since >= self._window

    def cores(self, pid: int) -> float:
        """Return how much of a core a process used in the window."""
        if pid in self._elsewhere:
            return self._elsewhere[pid].cores
        first, last = self.first.threads.get(pid, {}), self.last.threads.get(pid, {})
        ran = sum(pace.ran - (first[tid].ran if tid in first else 0) for tid, pace in last.items())
        return ran / 1e9 / max(self.last.at - self.first.at, 1e-9)

    @property
    def quiet(self) -> bool:
        """Whether the whole tree has done next to nothing in the window."""
        return self.last.at - self.first.at >= self._window and sum(map(self.cores, self.last.threads)) < QUIET

    def still_since(self, pid: int, tid: int) -> float | None:
        """When a thread was first seen as it still is; None if there is no such thread."""
        found = self._since.get((pid, tid))
        return found[1] if found else None

    def still(self, pid: int, tid: int) -> bool:
        """Whether a thread has not run for the whole window."""
        if pid in self._elsewhere:
            return self._elsewhere[pid].still
        since = self.still_since(pid, tid)
        return since is not None and self.last.at - since >= self._window

    def suspects(self) -> frozenset[int]:
        """Return the processes whose main thread is still: without one there is no reason to look closer."""
        return frozenset(pid for pid in self.last.threads if self.still(pid, pid))
