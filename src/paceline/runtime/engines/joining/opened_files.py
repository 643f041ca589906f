"""The files that the user's program opens to read, from a moment on: the small files that a job needs where it travels.

Python tells of every file that it opens and of every folder that it lists (audit events). A folder that is listed
counts as all of its files, since a data set that was listed will open them later.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from paceline.runtime.engines.own_files import INSTALLED, OTHERS

#: Where programs look for what is the machine's own.
SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/run/", "/usr/", "/var/", "/tmp/pymp-", "/tmp/paceline-")
CODE = (".py", ".pyc", ".so", ".pth")


_files: set[str] = set()
_folders: set[str] = set()
_watches = False


def watch_files(joinable: bool = True) -> None:
    """Take note of what is opened from now on, if machines may join to which it goes."""
    global _watches
    if not joinable:
        return
    if not _watches:
        sys.addaudithook(_note)  # which stays until the process ends
    _watches = True


def opened() -> list[Path]:
    """Return the files that exist, without code, hidden ones and what belongs to the system; and watch no longer."""
    global _watches
    _watches = False
    code = {os.path.abspath(folder or ".") for folder in sys.path} | _folders_of_modules()
    listed = [Path(folder) for folder in _folders if folder not in code and _of_user(folder)]
    files = {*map(Path, _files), *(each for folder in listed if folder.is_dir() for each in folder.iterdir())}
    return sorted(each for each in files if _of_user(str(each)) and each.is_file())


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watches:
        return
    if event == "open" and isinstance(arguments[0], str) and _reads(arguments[2]):
        _files.add(os.path.abspath(arguments[0]))
    elif event in ("os.listdir", "os.scandir") and isinstance(arguments[0], str):
        _folders.add(os.path.abspath(arguments[0]))


def _reads(flags: Any) -> bool:
    return isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY


def _of_user(path: str) -> bool:
    parts = Path(path).parts
    hidden = any(part.startswith(".") or part in INSTALLED or part == "__pycache__" for part in parts)
    return not (hidden or path.startswith((*SYSTEM, *OTHERS)) or path.endswith(CODE))


def _folders_of_modules() -> set[str]:
    files = (getattr(module, "__file__", None) for module in tuple(sys.modules.values()))
    return {os.path.dirname(os.path.abspath(file)) for file in files if isinstance(file, str)}
