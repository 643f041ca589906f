"""Files: to open one, to look for one, to list a folder or to change it is an operation, as Python's audit events tell.

What a file contains is let through, and a connection or a program that is started is outside the control.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.operation import Mode, Touch

CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
READS = {"os.listdir", "os.scandir", "stat"}
OUTSIDE = {"socket.connect", "sqlite3.connect", "subprocess.Popen"}
_stat = os.stat


def _announce(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" and event not in CHANGES and event not in READS and event not in OUTSIDE:
        return
    where = control.here()
    if where is None or len(where[0].tasks) == 1:
        return
    if event in OUTSIDE:
        where[0].outside[event] = None
    elif isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        is_change = event in CHANGES or (event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)))
        if not path.endswith((".py", ".pyc", ".so")):  # of an import
            mode: Mode = "write" if is_change else "read"
            folder = Touch(("file", os.path.dirname(path)), "mark" if is_change else "read")
            verb = "changes" if is_change else "looks at"
            control.step(verb, os.path.basename(path), ("file", path), mode=mode, others=(folder,), is_data=True)


def _announced_stat(path: Any, *args: Any, **settings: Any) -> os.stat_result:
    _announce("stat", (path,))
    return _stat(path, *args, **settings)


def install() -> None:
    sys.addaudithook(_announce)
    os.stat = _announced_stat  # which `exists` calls, and which has no event
