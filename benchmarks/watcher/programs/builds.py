"""Programs that start short commands, write files and copy them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile


def commands() -> None:
    while True:
        subprocess.run([sys.executable, "-c", "import json, ast; ast.parse('x = 1\\n' * 20_000)"])


def writes() -> None:
    with tempfile.TemporaryFile() as file:
        while True:
            file.seek(0)
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())


def shell_pipeline() -> None:
    subprocess.run("while true; do seq 1 200000 | sort -r | tail -1 > /dev/null; done", shell=True)


PROGRAMS = {"commands": commands, "writes": writes, "shell_pipeline": shell_pipeline}
