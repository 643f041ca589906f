"""The end of a pipe that does not come: a child has ended, but what it left in the background keeps the pipe open."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from paceline.concurrency.watcher.asking import asked
from paceline.concurrency.watcher.samples import Wait
from paceline.concurrency.watcher.waits import NO_END, Waits, children_of, parent_of, state_of, threads_of

_CHANGES = "anon_inode:inotify"  # what one waits for that follows a file


def kept_open(waits: Waits, pid: int, wait: Wait) -> Wait:
    """Return a wait for the end of a pipe as one that nothing ends, if what keeps the pipe open is not meant to end.

    So after `subprocess.run("server &", shell=True, capture_output=True)`: the child has ended, and what it has started
    in the background has inherited the pipe. The wait itself where that is not so.
    """
    if wait.kind != "pipe" or not wait.by or pid in wait.by or not any(map(_has_ended, children_of(pid))):
        return wait
    if any(_is_below(each, pid) or not _lasts(waits, each) for each in wait.by):
        return wait
    pipes = {f"pipe:[{each}]" for each in re.findall(r"pipe (\d+)", wait.on)}
    names = ", ".join(f"pid {each} ({_name(each)})" for each in wait.by if pipes & _opened(each))
    return wait._replace(by=(), on=f"the end of {wait.on.replace('data in ', '')}, kept open by {names}", kept=True)


def _lasts(waits: Waits, pid: int) -> bool:
    """Whether a process listens for connections, sleeps for ever or does nothing but sleep and print."""
    if waits.holders.serves(pid):
        return True
    thread_waits = [asked(waits, pid, tid, waits.of(pid, tid, state_of(pid, tid))) for tid in threads_of(pid)]
    return bool(thread_waits) and all(each.on in (NO_END, _CHANGES) or each.polls == "idles" for each in thread_waits)


def _has_ended(pid: int) -> bool:
    return state_of(pid, pid) == "Z"


def _opened(pid: int) -> set[str]:
    """Return what a process has open: others of `Wait.by` may only be about to receive the pipe."""
    files: set[str] = set()
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                files.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return files


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1:
        pid = parent_of(pid)
        if pid == ancestor:
            return True
    return False


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    return "ended"
