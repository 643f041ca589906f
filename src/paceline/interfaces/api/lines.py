"""Lines about progress: what functions that take more than a second say meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable

#: Is called with lines of text about the progress.
Say = Callable[[str], None]


def to_stderr(line: str) -> None:
    """Print a line to standard error, as functions do unless they are called with another `say`."""
    print(line, file=sys.stderr, flush=True)


def silent(line: str) -> None:
    """Print nothing."""
