"""Lets a case happen: the real command, in this process, with workers of its own."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import paceline.interfaces.cli
from tests.errors.cases import Case


def happen(case: Case, folder: Path) -> tuple[int, str]:
    """The exit code, and what people read."""
    with memory_group(case.memory) if case.memory else contextlib.nullcontext("") as group:
        (folder / "job.py").write_text(case.head + case.code.replace("GROUP", group))
        return _happen(case, folder)


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[str]:
    """The file that takes a process into a control group of so many bytes; GroupRefused where none may be made."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    group, bound = (old, "memory.limit_in_bytes") if old.is_dir() else (new, "memory.max")
    group /= f"paceline-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise GroupRefused(str(error)) from error
    try:
        try:
            (group / bound).write_text(str(limit))
        except OSError as error:  # the parent group does not hand the control of memory on
            raise GroupRefused(str(error)) from error
        yield str(group / "cgroup.procs")
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):  # its process is still being taken down
                group.rmdir()
                break
            time.sleep(0.05)


class GroupRefused(Exception):
    """This process may not make control groups."""


def _happen(case: Case, folder: Path) -> tuple[int, str]:
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    said, before = (
        io.StringIO(),
        (os.getcwd(), sys.argv, warnings.showwarning, resource.getrlimit(resource.RLIMIT_FSIZE)),
    )
    try:
        os.chdir(folder)
        sys.argv = ["paceline", *case.command.split()]
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("default")
            try:
                paceline.interfaces.cli.main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
    finally:
        os.chdir(before[0])
        sys.argv, warnings.showwarning = before[1], before[2]
        resource.setrlimit(resource.RLIMIT_FSIZE, before[3])
    return code, said.getvalue()
