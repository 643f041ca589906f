"""From a file's text to its findings. It never imports or runs what it checks, and no file stops the others."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from paceline.check.findings import Finding
from paceline.check.module import Module
from paceline.check.rules import RULES
from paceline.check.rules.rule import Rule
from paceline.check.source import Unreadable, parse
from paceline.check.summaries import Facts

DEPTH = 6_000  # of nested syntax; the parser itself stops before

# A file with none of these words has nothing that another thread, process or rank could meet.
CONCERNED = re.compile(
    r"thread|multiprocess|asyncio|concurrent|[Qq]ueue|[Ll]ock|mutex|fork|Popen|signal|__del__|weakref|gc\.callbacks"
    r"|torch|mpi4py|MPI|dist\.|accelerat|horovod|deepspeed|[Rr]ank|exists"
)


def check_text(path: str, text: str, rules: Iterable[Rule] = tuple(RULES.values())) -> list[Finding]:
    """The findings of one file, in the order of its lines."""
    if not CONCERNED.search(text):
        return []
    try:
        with _deep():
            return sorted(_findings(path, parse(text), text, rules), key=lambda f: (f.line, f.column, f.rule))
    except Unreadable as error:
        return [Finding("PC001", error.line, 1, "<module>", str(error), remedy="nothing of this file was checked", path=path)]
    except RecursionError:
        return [Finding("PC001", 1, 1, "<module>", "its syntax is nested too deeply to be checked", path=path)]


def _findings(path: str, tree: ast.Module, text: str, rules: Iterable[Rule]) -> Iterator[Finding]:
    facts = Facts(Module(path, tree))
    told: set[tuple[str, int, int]] = set()
    for rule in rules:
        if rule.needs and not any(word in text for word in rule.needs):
            continue
        for found in rule.find(facts):
            found.rule, found.path = rule.code, path
            place = (found.rule, found.line, found.column)
            if place not in told:
                told.add(place)
                yield found


@contextmanager
def _deep() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
