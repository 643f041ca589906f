"""The forkserver starts with the modules that are needed, and is replaced when more are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import multiprocessing, os, sys
from multiprocessing import forkserver as server
from paceline.engines.workers import forkserver

def modules(pipe):
    pipe.send({name for name in ("torch", "paceline.tuner.trials.worker") if name in sys.modules})

def loaded():
    context = multiprocessing.get_context("forkserver")
    mine, theirs = context.Pipe()
    process = context.Process(target=modules, args=(theirs,))
    process.start()
    found = mine.recv()
    process.join()
    return found

if __name__ == "__main__":
    forkserver.prepare(["paceline.tuner.trials.worker"])
    first = server._forkserver._forkserver_pid
    assert loaded() == {"paceline.tuner.trials.worker"}, loaded()
    descriptors = len(os.listdir("/proc/self/fd"))
    forkserver.prepare()
    assert loaded() == {"torch"}
    second = server._forkserver._forkserver_pid
    assert second != first and len(os.listdir("/proc/self/fd")) == descriptors
    forkserver.prepare(["paceline.tuner.trials.worker"])
    assert server._forkserver._forkserver_pid == second
    print("done")
"""


def test_one_that_has_loaded_less_is_replaced(tmp_path: Path) -> None:
    """In an interpreter of its own, since the forkserver of these tests has everything loaded."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
