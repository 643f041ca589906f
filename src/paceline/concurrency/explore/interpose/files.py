"""Files: to open one, to look for one, to list a folder or to change it is an operation, as Python's audit events tell.

So is each call by which the program reads or writes one, or locks it. What is read is let through, and a connection or
a program that is started is outside the control.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import Any

from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.operation import Mode, Touch

CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
READS = {"os.listdir", "os.scandir", "stat"}
OUTSIDE = {"socket.connect", "sqlite3.connect", "subprocess.Popen"}
CONTENTS = {"read", "readline", "readlines", "write", "writelines", "truncate"}
_stat, _flock = os.stat, fcntl.flock


def _announce(event: str, arguments: tuple[Any, ...]) -> None:
    if event in OUTSIDE and (where := control.here()) is not None and len(where[0].tasks) > 1:
        where[0].outside[event] = None
    elif event in CHANGES or event in READS or event == "open":
        touch(arguments[0], event in CHANGES or (event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))))


def touch(name: Any, is_change: bool) -> None:
    """Announce an operation on a file."""
    where = control.here()
    if where is None or len(where[0].tasks) == 1 or not isinstance(name, str | bytes | os.PathLike):
        return
    path = os.path.abspath(os.fsdecode(name))
    if not path.endswith((".py", ".pyc", ".so")):  # of an import
        mode: Mode = "write" if is_change else "read"
        folder = Touch(("file", os.path.dirname(path)), "mark" if is_change else "read")
        verb = "changes" if is_change else "looks at"
        control.step(verb, os.path.basename(path), ("file", path), mode=mode, others=(folder,), is_data=True)


def contents(function: Any, *args: Any, **settings: Any) -> Any:
    """Call a method of an open file."""
    touch(getattr(function.__self__, "name", None), not function.__name__.startswith("read"))
    return function(*args, **settings)


def _announced_stat(path: Any, *args: Any, **settings: Any) -> os.stat_result:
    _announce("stat", (path,))
    return _stat(path, *args, **settings)


def flock(file: Any, operation: int, *_: Any) -> None:
    """Lock a file as `flock` does, also for `lockf`, which would distinguish real processes only."""
    number = file if isinstance(file, int) else file.fileno()

    def is_free() -> bool:
        try:
            _flock(number, operation | fcntl.LOCK_NB)
            _flock(number, fcntl.LOCK_UN)
        except BlockingIOError:
            return False
        return True

    if control.here() is not None and not operation & fcntl.LOCK_NB:
        order: Any = {"releases": True} if operation & fcntl.LOCK_UN else {"ready": is_free, "acquires": True}
        control.step("locks", "a file", ("lock", os.fstat(number).st_ino), **order)
    _flock(number, operation)


def install() -> None:
    sys.addaudithook(_announce)
    fcntl.flock = fcntl.lockf = flock
    os.stat = _announced_stat  # which `exists` calls, and which has no event
