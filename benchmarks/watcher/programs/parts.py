"""What programs of several parts are made of: ports, scripts, commands beside each other and again and again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def free_port() -> int:
    """Return a port of the loopback interface at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def folder() -> Path:
    """Return a new folder."""
    return Path(tempfile.mkdtemp())


def script(text: str, name: str = "script.py") -> Path:
    """Write a script into a folder of its own."""
    file = folder() / name
    file.write_text(textwrap.dedent(text))
    return file


def words(command: tuple[object, ...] | list[object]) -> list[str]:
    """Return a command as words."""
    return [str(each) for each in command]


@contextmanager
def background(*command: object, wait: float = 5.0, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command beside the block."""
    environment = {**os.environ, **variables}
    with subprocess.Popen(words(command), env=environment, **QUIET) as started:  # type: ignore[call-overload]
        try:
            time.sleep(wait)
            yield started
        finally:
            started.terminate()


def run(*command: object) -> None:
    """Run a command to its end."""
    subprocess.run(words(command), check=False, **QUIET)  # type: ignore[call-overload]


def repeat(*commands: list[object], pause: float) -> None:
    """Run commands one after the other, again and again, with a pause after each."""
    while True:
        for command in commands:
            run(*command)
            time.sleep(pause)


def java(source: str) -> None:
    """Run the class `Main` of a Java program."""
    run("java", script(source, "Main.java"))


def node(source: str) -> None:
    """Run a program of Node."""
    run("node", script(source, "main.js"))


def python(source: str) -> None:
    """Run a program of Python."""
    run(BIN / "python", script(source))
