"""How strong the signs are that several threads use the objects of a class, or the globals of a file, at once.

A rule that needs no second function to compare with (`if self.x is None: self.x = make()`) rests on this alone: an
object that owns a lock, a queue or a thread is meant for several threads; an object of a file that merely imports
`threading` may be.
"""

from __future__ import annotations

import ast
import re

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import is_constant, keyword, short_name
from paceline.concurrency.check.together import file_number, same_file

OWNS_LOCK, OWNS_OTHER, CLAIMS, STARTS, IMPORTS, NAMED = 1.0, 0.8, 0.75, 0.6, 0.35, 0.3

_CLAIM = re.compile(r"(?<!not )\b(thread[- ]?safe|threadsafe|multi-?threaded|concurrent(ly)? (access|use|call))", re.I)
_SHARED_NAMES = re.compile(r"(Pool|Cache|Registry|Broker|Container|Scheduler|Dispatcher|Manager|LRU|Memo)")
_THREAD_MODULES = ("threading", "_thread", "concurrent.futures", "multiprocessing.pool", "socketserver", "queue")
_OTHERS = {"Queue", "SimpleQueue", "Event", "Executor", "Thread", "Barrier", "Local"}


def of_threads(cls: Class | None, facts: Facts, line: int = 0) -> float:
    """How strong the signs are, from 0 to 1: of a class, or of the globals around a line, and of its file."""
    evidence = facts.evidence
    name = cls.name if cls is not None else str(file_number(line))
    if name not in evidence:
        strength = _of_class(cls, facts) if cls is not None else _of_globals(facts, line)
        # Files that are read together still count one by one: what one of them imports says nothing of the others.
        evidence[name] = max(strength, _of_file(facts, line if cls is None else cls.node.lineno))
    return evidence[name]


def _of_class(cls: Class, facts: Facts) -> float:
    if cls.is_thread or owns_lock(cls, facts):
        return OWNS_LOCK
    strength = CLAIMS if claims_safety(cls) else NAMED if _SHARED_NAMES.search(cls.name) else 0.0
    for value, fn in (pair for each in cls.ancestry for pairs in each.values.values() for pair in pairs):
        construction = facts.module.constructed(value, fn)
        kind = construction[0] if construction is not None else _lock_by_name(value)
        if kind in LOCKS - ASYNC_LOCKS:
            return OWNS_LOCK
        # one that runs one task after the other says nothing of those that submit them
        serial = construction is not None and is_constant(keyword(construction[1], "max_workers", 0), 1)
        strength = OWNS_OTHER if kind in _OTHERS and not (kind == "Executor" and serial) else strength
    return strength


def claims_safety(cls: Class) -> bool:
    """Whether the documentation of a class says that several threads may use an object of it."""
    return _CLAIM.search(ast.get_docstring(cls.node, clean=False) or "") is not None


def of_all_objects(fn: Function) -> bool:
    """Whether the state of a function's first argument is one for the whole process: that of a class."""
    return fn.name == "__new__" or fn.self_name in ("cls", "klass", "mcs", "metacls")


def owns_lock(cls: Class, facts: Facts) -> bool:
    """Whether an attribute of the class is a lock for threads: made here, or given to the constructor."""
    resources = (facts.module.attribute(each, name) for each in cls.ancestry for name in each.values)
    return any(r is not None and r.kind in LOCKS - ASYNC_LOCKS for r in resources)


def _lock_by_name(value: ast.expr) -> str:
    """The kind of a lock that a call makes, by its last name: `self._make_lock()`, `ThreadLock()`, `RWLock()`."""
    name = short_name(value.func).lower() if isinstance(value, ast.Call) else ""
    return "Lock" if name.endswith(("lock", "mutex")) and not name.startswith(("async", "file", "un")) else ""


def _of_globals(facts: Facts, line: int) -> float:
    """The signs for the globals of a file: a lock among them."""
    top = facts.module.top
    for value in top.bound.values():
        construction = facts.module.constructed(value, top) if same_file(value.lineno, line) else None
        if construction is not None and construction[0] in LOCKS - ASYNC_LOCKS:
            return OWNS_LOCK
    return 0.0


def _of_file(facts: Facts, line: int) -> float:
    """The signs of a file as a whole: what it starts or imports."""
    if any(root.kind == "thread" and same_file(root.line, line) for root in facts.roots):
        return STARTS
    origins = facts.module.imports.values()
    return IMPORTS if any(origin.startswith(_THREAD_MODULES) for origin in origins) else 0.0
