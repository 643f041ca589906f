"""Parents that wait for children that are at work or asleep."""

from __future__ import annotations

import subprocess
import sys
import threading


def in_thread() -> None:
    thread = threading.Thread(target=subprocess.run, args=(["sleep", "600"],))
    thread.start()
    thread.join()


PROGRAMS = {
    "run": lambda: subprocess.run(["sleep", "600"]),
    "shell_pipeline": lambda: subprocess.run("sleep 600 | cat | wc -l", shell=True),
    "in_thread": in_thread,
    "reads_a_busy_child": lambda: subprocess.run([sys.executable, "-c", "while True: pass"], capture_output=True),
    "three_deep": lambda: subprocess.run(["sh", "-c", "sh -c 'sleep 600; true'; true"]),
}
