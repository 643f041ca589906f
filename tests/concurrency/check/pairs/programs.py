"""Writes the programs of the tables: a bug, and a way in which it is reached.

A way is a program with holes: `USE x.work()` runs the method of a `Store` as the bug demands, `DEF f():` declares a
function that may be a coroutine, `GO f()` calls such a function, and `RUN f` starts it. Beside `Store` there is always
a class `Decoy` with the same methods, so that nothing is found by the name of a method alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

TABLES = Path(__file__).parent


class Bug(NamedTuple):
    """A mistake, and what is put in the place of the holes of a way."""

    codes: str  # what reports it: the beginnings of rules' codes
    things: str  # the module with the class `Store`; `{...}` is in the broken program, `[...]` in the repaired one
    use: str
    repaired: str
    run: str
    asynchronous: bool = False


_DECOY = """
class Decoy:
    def work(self):
        return 0
"""

BUGS = {
    "order": Bug(
        "PC101",
        """
import threading
OUTER = threading.Lock()
class Store:
    def __init__(self):
        self.lock = threading.Lock()
    def work(self):
        with self.lock:
            return 1
    def other(self):
        with self.lock:
            with OUTER:
                return 2
"""
        + _DECOY,
        "with OUTER:\n    CALL",
        "with OUTER:\n    pass\nCALL",
        "F()",
    ),
    "again": Bug(
        "PC103",
        """
import threading
OUTER = threading.Lock()
class Store:
    def work(self):
        with OUTER:
            return 1
"""
        + _DECOY,
        "with OUTER:\n    CALL",
        "with OUTER:\n    pass\nCALL",
        "F()",
    ),
    "write": Bug(
        "PC4",
        """
import threading
OUTER = threading.Lock()
TOTALS = {"a": 0}
class Store:
    def work(self):
        {TOTALS["a"] += 1}
        [with OUTER:]
        [    TOTALS["a"] += 1]
"""
        + _DECOY,
        "CALL",
        "CALL",
        "for _ in range(4):\n    threading.Thread(target=F).start()",
    ),
    "blocking": Bug(
        "PC301",
        """
import asyncio
import threading
import time
class Store:
    def work(self):
        time.sleep(1)
"""
        + _DECOY,
        "CALL",
        "await asyncio.to_thread(lambda: CALL)",
        "asyncio.run(F())",
        True,
    ),
    "join": Bug(
        "PC1 PC2",
        """
import threading
OUTER = threading.Lock()
def count():
    with OUTER:
        return 1
WORKER = threading.Thread(target=count)
WORKER.start()
class Store:
    def work(self):
        WORKER.join()
"""
        + _DECOY,
        "with OUTER:\n    CALL",
        "with OUTER:\n    pass\nCALL",
        "F()",
    ),
    "rank": Bug(
        "PC501",
        """
import threading
import torch.distributed as dist
class Store:
    def work(self):
        dist.barrier()
"""
        + _DECOY,
        "if dist.get_rank() == 0:\n    CALL",
        "if dist.get_rank() == 0:\n    print(1)\nCALL",
        "F()",
    ),
}

#: The bugs of the callers: an object that several threads change, and a lock that a handler takes again.
CALLED = {
    "callers": Bug(
        "PC4",
        """
import threading
LOCK = threading.Lock()
class Store:
    def __init__(self):
        self.count = 0
    def work(self):
        {self.count += 1}
        [with LOCK:]
        [    self.count += 1]
    def read(self):
        return self.count
"""
        + _DECOY
        + "STORE = Store()\n",
        "",
        "",
        "",
    ),
    "handlers": Bug(
        "PC1",
        """
import signal
import threading
class Store:
    def __init__(self):
        self.lock = threading.{Lock}[RLock]()
        self.parts = []
    def work(self):
        with self.lock:
            self.parts.append(len(self.parts))
    def read(self):
        with self.lock:
            return str(len(self.parts))
"""
        + _DECOY
        + "STORE = Store()\nSTORE.read()\n",
        "",
        "",
        "",
    ),
}


def ways(table: str) -> dict[str, str]:
    """The ways of a table by their names."""
    parts = re.split(r"^== (.*)\n", (TABLES / f"{table}.txt").read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def side(difference: str, broken: bool) -> str:
    """One side of a difference: what begins with `-` is in the broken program, what begins with `+` in the repaired."""
    return "".join(f"{line[2:]}\n" for line in difference.splitlines() if not line.startswith("+" if broken else "-"))


def program(way: str, bug: Bug, broken: bool) -> dict[str, str]:
    """The files of a program, by their paths."""
    things = _chosen(bug.things, broken)
    parts = re.split(r"^-- (.*)\n", way, flags=re.M)
    if len(parts) == 1:
        return {"main.py": things + _filled(way, bug, broken)}
    files = dict(zip(parts[1::2], parts[2::2], strict=True))
    shared = "from things import *\n"
    return {"things.py": things} | {path: shared + _filled(text, bug, broken) for path, text in files.items()}


def _chosen(text: str, broken: bool) -> str:
    """A text with what is between the brackets of one kind, and without that of the other."""
    lines = []
    for line in text.splitlines():
        mark = "{" if broken else "["
        if re.match(r"\s*[\[{].*[\]}]$", line):  # a whole line
            if line.lstrip()[0] == mark:
                lines.append(line.replace(mark, "", 1)[:-1])
        else:
            lines.append(re.sub(r"\{(Lock)\}\[(RLock)\]", r"\1" if broken else r"\2", line))
    return "\n".join(lines) + "\n"


def _filled(way: str, bug: Bug, broken: bool) -> str:
    """The text of a way with its holes filled."""
    lines = []
    for line in way.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        word, _, rest = line.strip().partition(" ")
        holes = {
            "USE": (bug.use if broken else bug.repaired).replace("CALL", rest),
            "RUN": bug.run.replace("F", rest),
            "DEF": f"{'async ' if bug.asynchronous else ''}def {rest}",
            "GO": f"{'await ' if bug.asynchronous else ''}{rest}",
        }
        lines += [indent + part for part in holes[word].split("\n")] if word in holes else [line]
    return "\n".join(lines) + "\n"
