"""CPU time of this process, its children and theirs, as the kernel's scheduler counts it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def nanoseconds() -> int:
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    family, found = {os.getpid()}, 0
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    for process in family:
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                found += int((task / "schedstat").read_text().split()[0])
    return found
