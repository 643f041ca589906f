"""Checks the text of one file. The code is never imported or run, and no file can make the checker fail."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from paceline.check.findings import Finding
from paceline.check.module import Module
from paceline.check.rules import RULES
from paceline.check.rules.rule import Rule
from paceline.check.source import Unreadable, parse
from paceline.check.summaries import Facts
from paceline.check.suppress import without_suppressed

UNREADABLE = "PC001"
DEPTH = 6_000  # recursion limit for nested syntax; the parser itself gives up before

# A file with none of these words has nothing to do with threads, processes or ranks, and is not parsed at all.
RELEVANT = re.compile(
    r"thread|async |multiprocess|asyncio|concurrent|[Qq]ueue|[Ll]ock|mutex|fork|Popen|signal|__del__|weakref"
    r"|gc\.callbacks|torch|mpi4py|MPI|dist\.|accelerat|horovod|deepspeed|[Rr]ank|exists|paceline: ignore"
)


def check_text(path: str, text: str, rules: Iterable[Rule] = tuple(RULES.values())) -> list[Finding]:
    """The findings of one file in the order of its lines, without those that a comment suppresses."""
    if not RELEVANT.search(text):
        return []
    try:
        with _deep_recursion():
            found = _findings(parse(text), text, rules)
    except Unreadable as error:
        found = [Finding(UNREADABLE, error.line, 1, "<module>", str(error), remedy="nothing in this file was checked")]
    except RecursionError:
        found = [Finding(UNREADABLE, 1, 1, "<module>", "nested too deeply", remedy="nothing in this file was checked")]
    found = without_suppressed(found, text)
    found.sort(key=lambda f: (f.line, f.column, f.rule))
    same: Counter[tuple[str, str, str]] = Counter()
    for finding in found:
        finding.path = path
        finding.ordinal = same[finding.rule, finding.function, finding.about]
        same[finding.rule, finding.function, finding.about] += 1
    return found


def _findings(tree: ast.Module, text: str, rules: Iterable[Rule]) -> list[Finding]:
    facts = Facts(Module(tree))
    found: dict[tuple[str, int, int], Finding] = {}
    for rule in rules:
        if rule.needs and not any(word in text for word in rule.needs):
            continue
        for finding in rule.find(facts):
            finding.rule = rule.code
            found.setdefault((finding.rule, finding.line, finding.column), finding)
    return list(found.values())


@contextmanager
def _deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
