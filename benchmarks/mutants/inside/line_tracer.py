"""Which lines each test runs, in all of its processes. A line is written the moment that it is first run, so that a
process may be killed. Code whose lines were all seen in a test, or that has shown no new one for long, is not traced
any more in that test; in the second case the hit of line 0 says that others of the file may have been run too.

files    the files looked at, one a line
current  the number of the test that is being run; 0: none
hits     (test, file, line), each as in HIT
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

HIT = struct.Struct("<III")
NUMBER = struct.Struct("<I")
MORE = 0
PATIENCE = 20_000  # lines of some code without a new one,
CALLS = 1_000_000  # or calls of any, of this process: what follows in the test is no longer traced
Local = Callable[[FrameType, str, Any], Any]


@dataclass
class Left:
    """What a test has not run yet of some code."""

    code: CodeType
    lines: set[int]
    patience: int = PATIENCE


class Tracer:
    def __init__(self, folder: Path) -> None:
        self.files = {name: number for number, name in enumerate((folder / "files").read_text().splitlines())}
        self.hits = os.open(folder / "hits", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.current = os.open(folder / "current", os.O_RDWR | os.O_CLOEXEC)
        self.test, self.left, self.calls = 0, dict[int, Left](), 0
        self.read()

    def read(self) -> None:
        """In a new process: which test has started it."""
        self.switch(NUMBER.unpack(os.pread(self.current, NUMBER.size, 0))[0])

    def write(self, test: int) -> None:
        """In the process that runs tests: what comes next."""
        os.pwrite(self.current, NUMBER.pack(test), 0)
        self.switch(test)

    def switch(self, test: int) -> None:
        self.test, self.left, self.calls = test, {}, 0
        sys.settrace(self.called)

    def called(self, frame: FrameType, event: str, _: Any) -> Local | None:
        code = frame.f_code
        if code.co_filename not in self.files or not self.test or code.co_name == "<module>":
            return None
        self.calls += 1
        if self.calls > CALLS:
            for each in {each.code.co_filename for each in self.left.values()}:
                self.hit(each, MORE)
            sys.settrace(None)
            return None
        if id(code) not in self.left:
            self.left[id(code)] = Left(code, {line for *_, line in code.co_lines() if line})
        return self.ran(frame, "line", None)

    def ran(self, frame: FrameType, event: str, _: Any) -> Local | None:
        left = self.left.get(id(frame.f_code))
        if event != "line" or left is None:
            return self.ran
        line = frame.f_lineno
        if line in left.lines:
            left.lines.discard(line)
            left.patience, self.calls = PATIENCE, 0
            self.hit(frame.f_code.co_filename, line)
        left.patience -= 1
        if left.patience == 0 and left.lines:
            left.lines.clear()
            self.hit(frame.f_code.co_filename, MORE)
        return self.ran if left.lines else None

    def hit(self, file: str, line: int) -> None:
        os.write(self.hits, HIT.pack(self.test, self.files[file], line))


tracer: Tracer | None = None


def start(folder: str) -> None:
    global tracer
    tracer = Tracer(Path(folder))
    os.register_at_fork(after_in_child=tracer.read)
    threading.settrace(tracer.called)
