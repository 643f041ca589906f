"""Run one program: `python -m programs FAMILY NAME`; without arguments, list them.

The variable VARIANT chooses what surrounds it: 0 nothing, 1 work before it, 2 idle threads, 3 a shell that has started
it (`record.py` does that), 4 a stack of thirty frames in a thread that the main thread joins.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable

from programs import VERDICT


def surrounded(program: Callable[[], None], variant: int) -> None:
    """Run a program in the surroundings of a variant."""
    if variant == 1:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            sorted(str(number) for number in range(10_000))
    if variant == 2:
        for _ in range(3):
            threading.Thread(target=queue.Queue[int]().get, daemon=True).start()
    if variant == 4:
        thread = threading.Thread(target=deep, args=(program, 30))
        thread.start()
        thread.join()
    else:
        program()


def deep(program: Callable[[], None], frames: int) -> None:
    """Call a program so many frames further in."""
    if frames:
        deep(program, frames - 1)
    else:
        program()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        found = importlib.import_module(f"programs.{sys.argv[1]}").PROGRAMS[sys.argv[2]]
        surrounded(found, int(os.environ.get("VARIANT", "0")) % 5)
    else:
        for family in VERDICT:
            print(family, *importlib.import_module(f"programs.{family}").PROGRAMS)
