"""Who could answer a thread that asks again and again by a clock, as `polling` finds it in the source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from paceline.concurrency.watcher.polling import loop_of
from paceline.concurrency.watcher.processes.coroutines import Task
from paceline.concurrency.watcher.processes.holders import file_of
from paceline.concurrency.watcher.processes.interpreter import Interpreter
from paceline.concurrency.watcher.processes.syscalls import SLEEPS, SystemCall
from paceline.concurrency.watcher.samples import AGAIN, CLOSED, OF_A_WORKER, OPEN_FILE_LOCK, Stack, Thread, Wait
from paceline.concurrency.watcher.waits import Waits, call_of

_EVENT = ["wait", "wait"]  # the innermost functions of a thread that uses an event as a clock: `while not stop.wait(9)`


def asked(waits: Waits, pid: int, tid: int, wait: Wait) -> Wait:
    """Return a wait for a clock with what is asked for by it, and by whom it could be given; else the wait itself.

    Only workers write the results of a pool, although the pool's own process has the pipe open as well.
    """
    interpreter = waits.interpreter(pid) if wait.kind in ("clock", "pipe") else None
    thread = interpreter.thread(tid) if interpreter is not None else None
    if wait.kind == "pipe":
        delivers = thread is not None and thread.delivers
        return wait._replace(by=tuple(each for each in wait.by if each != pid), on=OF_A_WORKER) if delivers else wait
    call = call_of(pid, tid) if thread is not None and thread.stack else None
    if call is None or thread is None:
        return wait
    stack = thread.stack
    if thread.loop is not None and os.path.basename(stack[0].file) == "selectors.py":
        untimed = waits.without_timeout(pid, tid, call)
        closed = not thread.loop.ready and untimed.kind in CLOSED
        return wait._replace(by=untimed.by, on="what its tasks wait for", polls="asks") if closed else wait
    if thread.lock_file:
        by = waits.holders.of_file(file_of(pid, thread.lock_file))
        return wait._replace(by=by, on=f"the lock on {thread.lock_file}", polls="asks") if by else wait
    if call.name in SLEEPS and not _sleeps(pid, stack):  # C code that sleeps between two attempts, as SQLite's
        return _locked(waits, pid, wait)
    if _serves_as_manager(stack):
        return wait._replace(by=(pid,), on="the end of its manager", polls="asks")
    if not thread.loads and (source_wait := _by_its_source(waits, pid, call, wait, stack)) is not None:
        return source_wait
    untimed = waits.without_timeout(pid, tid, call)
    if untimed.kind not in CLOSED or not untimed.by:
        return wait
    return wait._replace(by=untimed.by, on=untimed.on + AGAIN, polls="asks")


def _by_its_source(waits: Waits, pid: int, call: SystemCall, wait: Wait, stack: Stack) -> Wait | None:
    """Return the wait as the source of its loop explains it; None if the system call says for what it asks."""
    loop = loop_of(stack, lambda file: _source(pid, file))
    if loop is None or [frame.function for frame in stack[:2]] == _EVENT == [_event(f.file) for f in stack[:2]]:
        return wait
    if not loop.asks:
        return wait._replace(polls="idles")
    if loop.file_lock:
        return _locked(waits, pid, wait)
    if call.name in SLEEPS and loop.takes:
        return wait
    if call.name not in SLEEPS:
        return None
    by = waits.holders.reaching(pid, waits.tree)
    return wait._replace(by=by, on="what its loop asks for", polls="asks") if by else wait


def tasks_of(waits: Waits, pid: int, interpreter: Interpreter) -> Iterator[Thread]:
    """Iterate over the tasks of the event loops of a process, each with what it waits for."""
    for loop in (each.loop for each in interpreter.threads if each.loop is not None):
        for task in loop.tasks:
            yield Thread(task.number, _wait_of(waits, pid, task), task.name)


def _wait_of(waits: Waits, pid: int, task: Task) -> Wait:
    if not task.timer:
        return Wait("task", (pid,), task.on, task.owners)
    loop = loop_of(task.stack, lambda file: _source(pid, file))
    if loop is None or (task.timer == "sleep" and loop.takes) or (task.main and not loop.asks):
        return Wait("clock", on=f"asyncio.{task.timer}")
    by = waits.holders.reaching(pid, waits.tree) or (pid,)
    return Wait("clock", by, "what its loop asks for", polls="asks" if loop.asks else "idles")


def _serves_as_manager(stack: Stack) -> bool:
    """Whether the main thread of a manager of multiprocessing waits until a client ends it."""
    serves = next((each for each in stack if os.path.basename(each.file) != "threading.py"), stack[0])
    return serves.function == "serve_forever" and serves.file.endswith("/multiprocessing/managers.py")


def _event(file: str) -> str:
    return "wait" if os.path.basename(file) == "threading.py" else ""


def _locked(waits: Waits, pid: int, wait: Wait) -> Wait:
    """Return the wait for a lock on a file that the process has open, if there is one that is held."""
    by = waits.holders.of_open_files(pid)
    return wait._replace(by=by, on=OPEN_FILE_LOCK, polls="asks") if by else wait


def _sleeps(pid: int, stack: Stack) -> bool:
    """Whether the innermost line may call Python's own `sleep`; so of a line that cannot be read."""
    lines = _source(pid, stack[0].file).splitlines()
    return not 0 < stack[0].line <= len(lines) or "sleep" in lines[stack[0].line - 1]


def _source(pid: int, file: str) -> str:
    path = file_of(pid, file)
    try:
        return _read(os.path.realpath(path), os.stat(path).st_mtime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=64)
def _read(path: str, _changed: int) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
