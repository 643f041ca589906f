"""Busy processes of another program, which take their share of the cores while something is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep so many cores busy until the block ends."""
    pool = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in pool:
            process.kill()
            process.wait()
