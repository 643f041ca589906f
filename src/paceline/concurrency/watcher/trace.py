"""What was observed, kept and judged again: the trace of a snapshot folder, and the traces that tests replay."""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.judge import CONFIRM, judge
from paceline.concurrency.watcher.report import HangReport
from paceline.concurrency.watcher.samples import Counters, Snapshot, counters_from, snapshot_from, to_json
from paceline.errors import UsageError

FILE, BLOCK = "trace.json.gz", "report.txt"


class Trace:
    """Readings and snapshots in the order in which they were taken; the oldest are forgotten."""

    def __init__(self, samples: Iterable[Counters | Snapshot] = (), keep: int | None = 120) -> None:
        self.samples: deque[Counters | Snapshot] = deque(samples, maxlen=keep)

    def save(self, folder: Path) -> None:
        """Write the trace into a folder."""
        data = [{"look" if isinstance(each, Snapshot) else "glance": to_json(each)} for each in self.samples]
        # No time of writing, so that the same trace gives the same bytes.
        packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
        (folder / FILE).write_bytes(packed)

    @staticmethod
    def load(folder: Path) -> Trace:
        """Read a trace from a folder."""
        try:
            data = json.loads(gzip.decompress((folder / FILE).read_bytes()))
            return Trace(
                [snapshot_from(e["look"]) if "look" in e else counters_from(e["glance"]) for e in data], keep=None
            )
        except FileNotFoundError:
            raise UsageError(f"{folder} has no {FILE}: name a folder written by `paceline watch --save`") from None
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{folder / FILE} is no trace of the watcher: {error}") from error

    def judge(self) -> list[HangReport]:
        """Judge every snapshot as it was judged when it was taken."""
        history, before = History(), RecentSnapshots()
        reports = []
        for each in self.samples:
            if isinstance(each, Counters):
                history.add(each)
            else:
                history.observe(each)
                report = judge(history, each, before.of(each))
                reports += [report] if report else []
        return reports


class RecentSnapshots:
    """Remembers the snapshots that a later one is confirmed by."""

    def __init__(self) -> None:
        self._snapshots: deque[Snapshot] = deque(maxlen=4)

    def of(self, snapshot: Snapshot) -> Snapshot | None:
        """Return the newest snapshot that is `CONFIRM` seconds older than this one, and remember this one."""
        old = [each for each in self._snapshots if snapshot.at - each.at >= CONFIRM * 0.9]
        self._snapshots.append(snapshot)
        return old[-1] if old else None
