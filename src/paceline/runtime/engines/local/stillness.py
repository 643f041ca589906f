"""Workers that were stopped, by SIGSTOP, and stay so: no process may wait for them, as under plans with a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

#: Seconds that count of those between two looks: the parent itself may have been stopped, as by Ctrl-Z.
MOST_BETWEEN = 1.0
#: How many deadlines a worker may be stopped where the others do not go on; who waits for it names it at the first.
LATE = 1.5


class Stillness:
    """Counts for how long each worker has been stopped."""

    def __init__(
        self,
        deadline: float,
        stopped: Callable[[int], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline, self._clock, self._stopped = deadline, clock, stopped or is_stopped
        self._seconds: dict[int, float] = {}
        self._looked = clock()

    def poll(self, pids: Sequence[int | None], goes_on: bool) -> list[int]:
        """Return those of these processes that were stopped for too long; `goes_on` is whether a run does without."""
        now = self._clock()
        passed, self._looked = min(MOST_BETWEEN, now - self._looked), now
        stopped = [pid for pid in pids if pid is not None and self._stopped(pid)]
        self._seconds = {pid: self._seconds.get(pid, -passed) + passed for pid in stopped}
        most = self._deadline * (1.0 if goes_on else LATE)
        return [pid for pid, seconds in self._seconds.items() if seconds > most]


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal; one that a debugger has stopped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False
