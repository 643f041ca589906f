"""Runs a command and reports what it and all of its descendants have cost, also those that leave its process group."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36


def measured(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a command in a process that adopts whatever it leaves, and return its seconds, CPU seconds and memory."""
    done = subprocess.run([sys.executable, __file__, *command], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[-1][:300]}\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _main(command: Sequence[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.perf_counter()
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wall, code, cpu, memory = 0.0, 0, 0.0, 0
    while True:
        try:
            pid, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        cpu, memory = cpu + used.ru_utime + used.ru_stime, max(memory, used.ru_maxrss)
        if pid == first.pid:
            wall, code = time.perf_counter() - begun, os.waitstatus_to_exitcode(status)
    print(json.dumps({"wall s": round(wall, 2), "cpu s": round(cpu, 2), "largest process MB": memory // 1024}))
    return code


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
