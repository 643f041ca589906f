"""The live screen: a row for each process of the tree. Pure."""

from __future__ import annotations

from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.samples import Process, Snapshot, users_line

CLEAR = "\033[H\033[J"
_HEAD = ("PROCESS", "THREADS", "CORES", "STILL", "WAITS FOR", "AT")
_WIDEST = 44


def screen(history: History, snapshot: Snapshot, verdict: tuple[str, float]) -> str:
    """Return the table as lines of text: what each process uses, since when it is still, and what it waits for."""
    rows = [_HEAD, *(_row(history, each) for each in snapshot.processes if not each.outside)]
    widths = [min(max(len(row[column]) for row in rows), _WIDEST) for column in range(len(_HEAD))]
    lines = ["  ".join(f"{cell[:width]:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([f"{verdict[0]} (probability {verdict[1]:.2f})", *(line.rstrip() for line in lines)])


def _row(history: History, process: Process) -> tuple[str, ...]:
    since = history.since(process.pid, process.pid)
    still = history.still(process.pid, process.pid) and since is not None
    line = users_line(process.stacks[0]) if process.stacks else None
    wait = process.main
    return (
        process.label,
        str(len(process.threads)),
        f"{history.cores(process.pid):.2f}",
        f"{history.last.at - since:.0f} s" if still and since is not None else "",
        wait.kind if wait.kind in ("running", "stopped") else wait.on or wait.kind,
        f"{line.file.rpartition('/')[2]}:{line.line} in {line.function}" if line else "",
    )
