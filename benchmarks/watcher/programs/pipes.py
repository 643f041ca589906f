"""Processes that wait for each other at pipes."""

from __future__ import annotations

import os
import subprocess
import sys


def full_pipe() -> None:
    """The parent waits for a child's end, and the child for room in the pipe that nobody reads."""
    child = subprocess.Popen([sys.executable, "-c", "print('x' * 1_000_000)"], stdout=subprocess.PIPE)
    child.wait()


def both_read() -> None:
    to_child, to_parent = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.read(to_child[0], 1)
    else:
        os.read(to_parent[0], 1)


def own_end_kept() -> None:
    """A reader waits for the end of a pipe whose writing end it has kept open itself."""
    read, write = os.pipe()
    os.write(write, b"x")
    with open(read, "rb") as file:
        file.read()


def unread_answers() -> None:
    """Both sides of `cat` are full: the parent writes on, and reads nothing."""
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin
    child.stdin.write(b"x" * 1_000_000)
    child.stdin.flush()


PROGRAMS = {
    "full_pipe": full_pipe,
    "both_read": both_read,
    "own_end_kept": own_end_kept,
    "unread_answers": unread_answers,
}
