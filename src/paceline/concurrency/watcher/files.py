"""What a watcher writes and reads again: for watchers of other machines, and as a trace that is judged once more."""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.judge import CONFIRM, judge
from paceline.concurrency.watcher.report import HangReport
from paceline.concurrency.watcher.samples import (
    ELSEWHERE,
    Counters,
    Facts,
    Process,
    Snapshot,
    counters_from,
    process_from,
    snapshot_from,
    to_json,
)
from paceline.errors import UsageError

#: What another watcher wrote counts for this many seconds after it was first read.
FRESH = 20.0


class Share:
    """A folder in which the watchers of one job meet. Clocks of machines need not agree."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._host = folder, socket.gethostname()
        self._own = folder / f"{self._host}-{os.getpid()}.json"
        #: By file: what it held when it was read last, and when that was new.
        self._read: dict[str, tuple[str, float]] = {}

    def merge(self, snapshot: Snapshot, history: History) -> Snapshot:
        """Write the ranks of a snapshot, and return the snapshot with those of other machines."""
        ranks = [_main_thread(each, history) for each in snapshot.processes if each.rank is not None and each.stacks]
        written = self._own.with_suffix(".new")
        written.write_text(json.dumps({"host": self._host, "at": time.time(), "ranks": [asdict(r) for r in ranks]}))
        written.replace(self._own)
        others = sorted(path for path in self._folder.glob("*.json") if path != self._own)
        far = [rank for number, path in enumerate(others) for rank in self._ranks(path, number + 1)]
        return replace(snapshot, processes=(*snapshot.processes, *far))

    def close(self) -> None:
        """Remove what this watcher wrote: its ranks have ended."""
        self._own.unlink(missing_ok=True)

    def _ranks(self, path: Path, number: int) -> list[Process]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            text = path.read_text(encoding="utf-8")
            old, since = self._read.get(path.name, ("", 0.0))
            if text != old:
                since = time.monotonic()
                self._read[path.name] = text, since
            if time.monotonic() - since <= FRESH:
                data = json.loads(text)
                return [_far(each, data["host"], number * ELSEWHERE) for each in data["ranks"]]
        return []


def _main_thread(process: Process, history: History) -> Process:
    """Return what others need to know of a rank: its main thread alone."""
    pid = process.pid
    since = history.since(pid, pid)
    seconds = 0.0 if since is None else history.last.at - since
    facts = Facts(history.still(pid, pid), history.same_stack(pid), history.cores(pid), seconds)
    main = tuple(thread for thread in process.threads if thread.tid == pid)
    return replace(process, threads=main, stacks=process.stacks[:1], tids=process.tids[:1], facts=facts)


def _far(data: dict[str, Any], host: str, offset: int) -> Process:
    process = process_from(data)
    threads = tuple(
        each._replace(tid=each.tid + offset, wait=each.wait._replace(by=tuple(pid + offset for pid in each.wait.by)))
        for each in process.threads
    )
    tids = tuple(tid + offset for tid in process.tids)
    ends = process.pid + offset, process.parent + offset
    return replace(process, pid=ends[0], parent=ends[1], threads=threads, tids=tids, host=host)


# What was observed, kept and judged again: the trace of a snapshot folder, and the traces that tests replay.

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
