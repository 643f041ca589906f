"""Which classes and names are locks, where no constructor of a library says so."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.syntax.declarations import Class, Resource
from paceline.concurrency.check.syntax.names import short_name


def lock_class(cls: Class, attribute: Callable[[Class, str], Resource | None]) -> str | None:
    """The kind of lock that a class of this file is: one that wraps a lock, and does nothing else."""
    if not all(_OF_LOCKS.match(name) for name in cls.methods):
        return None
    for take, free in (("acquire", "release"), ("lock", "unlock")):
        if take not in cls.methods or free not in cls.methods:
            continue
        takes = cls.methods[take]
        for call in takes.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("acquire", "lock"):
                lock = attribute(cls, short_name(call.func.value))
                if lock is not None and lock.kind in catalogue.LOCKS:
                    return lock.kind if len(takes.body) == 1 else "RLock"  # it may let its owner in again
    return None


def guessed(where: str, name: str) -> Resource | None:
    """A lock or condition that is recognised by its name alone."""
    low = name.lower().rstrip("s")
    if low.endswith(catalogue.CONDITION_WORDS) or low == "cond" or low == "cv":
        return Resource(where, "Condition", False)
    if low.endswith(catalogue.LOCK_WORDS) and not low.endswith(_NOT_LOCKS):
        return Resource(where, "Lock", False)
    return None


#: The methods of a class that is a lock, and nothing else.
_OF_LOCKS = re.compile(
    r"(__\w+__|_?(try_?)?(acquire|release|lock|unlock|locked|lock_\w+|acquire_\w+|release_\w+|is_\w+))$"
)
_NOT_LOCKS = (
    "block",
    "clock",
    "unlock",
    "deadlock",
    "trylock",
    "try_lock",
    "flock",
    "has_lock",
    "is_lock",
    "interlock",
)


def derived(cls: Class) -> str | None:
    """The kind of resource that the instances of a class of this file are."""
    if cls.is_a("threading.Thread", "threading.Timer"):
        return "Thread"
    return "Process" if cls.is_a("multiprocessing.Process", "multiprocessing.context.Process") else None
