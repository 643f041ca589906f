"""Children whose pipes nobody empties, closes or feeds."""

from __future__ import annotations

import os
import subprocess
import sys

WRITES = [sys.executable, "-c", "print('x' * 5_000_000)"]


def output_not_read() -> None:
    subprocess.Popen(WRITES, stdout=subprocess.PIPE).wait()


def errors_not_read() -> None:
    code = "import sys; sys.stderr.write('x' * 1_000_000); print('done')"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout
    child.stdout.read()


def input_not_closed() -> None:
    subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL).wait()


def both_ways_full() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin
    child.stdin.write(b"x" * 5_000_000)


def end_inherited_by_a_sibling() -> None:
    """The second child inherits the writing end of the first one's pipe, so that the first never sees the end."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    first = subprocess.Popen(["cat"], stdin=read, stdout=subprocess.PIPE)
    second = subprocess.Popen(["cat"], stdin=first.stdout, close_fds=False)
    os.close(write)
    second.wait()


PROGRAMS = {
    "output_not_read": output_not_read,
    "errors_not_read": errors_not_read,
    "input_not_closed": input_not_closed,
    "both_ways_full": both_ways_full,
    "end_inherited_by_a_sibling": end_inherited_by_a_sibling,
}
