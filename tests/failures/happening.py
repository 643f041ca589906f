"""Lets a case happen: the real command, in this process, with workers of its own."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys
import warnings
from pathlib import Path

import paceline.cli
from tests.failures.cases import Case


def happen(case: Case, folder: Path) -> tuple[int, str]:
    """The exit code, and what people read."""
    (folder / "job.py").write_text(case.head + case.code)
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
                paceline.cli.main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
    finally:
        os.chdir(before[0])
        sys.argv, warnings.showwarning = before[1], before[2]
        resource.setrlimit(resource.RLIMIT_FSIZE, before[3])
    return code, said.getvalue()
