"""What an object is taken for of which nothing is known but how it is named and used.

`def sync_all(client): client.call("sync")` may be called from anywhere. `ByUse` finds the class of `client`: the one
that is named like it and has all the attributes that the function uses, or the one that alone has all of them, provided
that one of them is not a word of containers, files or threads. It does the same for an attribute that the constructor
gets from its caller. `ByName` finds the method that `callback.on_epoch_end()` runs: the only one of the file with that
name.
"""

from __future__ import annotations

import ast
import queue
import re
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import cached_property
from io import BufferedRandom, TextIOWrapper
from pathlib import Path

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.syntax.declarations import Class, Declarations, Function, Resource
from paceline.concurrency.check.syntax.tree import dotted, short_name
from paceline.concurrency.check.together import file_number, of_own_file

_KNOWN = (
    *(dict, list, set, str, bytes, deque, BufferedRandom, TextIOWrapper, Path, Executor, Future, socket.socket),
    *(queue.Queue, subprocess.Popen, threading.Thread, threading.Event, threading.Condition),
)
_WORDS = re.compile("[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+")
#: What objects of libraries, and of many classes, have as well.
COMMON = {name for cls in _KNOWN for name in dir(cls)} | libraries.names("attributes that many classes have")


class ByUse:
    """The class of an object, by the attributes that are used of it."""

    def __init__(self, classes: Iterable[Class]) -> None:
        self._having: dict[str, set[Class]] = {}
        self._known: dict[tuple[int, str], Class | None] = {}
        self._named: dict[tuple[int, str], Class | None] = {}  # by file, and by 0 for all; None: of several classes
        for cls in classes:
            words = _WORDS.findall(cls.name)
            for first in range(len(words)):
                word = "".join(words[first:]).lower()
                for key in {(0, word), (file_number(cls.node.lineno), word)}:
                    self._named[key] = cls if key not in self._named or not first else None
            for each in cls.ancestry:
                for name in (*each.methods, *each.values, *each.annotations):
                    self._having.setdefault(name, set()).add(cls)

    def of(self, fn: Function, name: str) -> Class | None:
        """The class that a parameter is an object of."""
        key = id(fn), name
        if key not in self._known:
            names = {use.attr for use in _uses(fn, name)}
            passed_on = names == {fn.name}  # to an object behind this one: `def flush(self, out): out.flush()`
            word = name.strip("_").replace("_", "")
            named = self._named.get((file_number(fn.line), word)) or self._named.get((0, word))
            fits = named is not None and all(named in self._having.get(use, ()) for use in names)
            self._known[key] = None if passed_on else named if fits else self._fitting(names, fn.line)
        return self._known[key]

    def of_attribute(self, cls: Class, name: str) -> Class | None:
        """The class of an attribute that only a base of a library assigns: the `server` of a request handler."""
        key = id(cls), name
        if key not in self._known and (cls in self._having.get(name, ()) or not any(c.bases for c in cls.ancestry)):
            self._known[key] = None
        if key not in self._known:
            uses = [a for m in cls.methods.values() for a in m.attributes if dotted(a.value) == f"{m.self_name}.{name}"]
            self._known[key] = self._fitting({use.attr for use in uses}, cls.node.lineno)
        return self._known[key]

    def _fitting(self, names: set[str], line: int) -> Class | None:
        """The only class, or the base of all, that has all of these attributes, one of which is a word of its own."""
        # `get`, `close` and the like say nothing about the class.
        if names <= COMMON:
            return None
        candidates = set.intersection(*(self._having.get(name, set()) for name in names))
        near = of_own_file(candidates, line, lambda cls: cls.node.lineno)
        bases = [cls for cls in near if not {*near} & {*cls.ancestry[1:]}]
        return bases[0] if len(bases) == 1 else None


def _uses(fn: Function, name: str) -> Iterator[ast.Attribute]:
    """The attributes that are used of a parameter, also where the constructor keeps it in an attribute."""
    yield from (a for a in fn.attributes if isinstance(a.value, ast.Name) and a.value.id == name)
    aliases = {dotted(t) for t, v in fn.assigns if isinstance(v, ast.Name) and v.id == name} if fn.cls else set()
    for method in fn.cls.methods.values() if aliases and fn.cls is not None and fn.name == "__init__" else ():
        yield from (a for a in method.attributes if isinstance(a.value, ast.Attribute) and dotted(a.value) in aliases)


class ByName:
    """The method that a call runs, by its name alone."""

    def __init__(self, module: Declarations) -> None:
        self._module = module

    def method(self, node: ast.Attribute, fn: Function) -> Function | None:
        """The only method with such a name, of an object of which nothing is known."""
        # A name of several words is rarely the name of two different methods; one of a single word often is.
        if not isinstance(node.value, ast.Name | ast.Subscript) or "_" not in node.attr.strip("_"):
            return None
        if node.attr in COMMON:
            return None
        head = dotted(node.value).partition("[")[0].partition(".")[0]
        # Where the object comes from is known, and it was none of the program's classes.
        if head in self._module.imports or any(head in scope.bound for scope in fn.scopes()):
            return None
        methods = of_own_file(self._methods.get(node.attr, []), fn.line, lambda method: method.line)
        return methods[0] if len(methods) == 1 else None

    @cached_property
    def _methods(self) -> dict[str, list[Function]]:
        """The methods that do something, by their names."""
        methods: dict[str, list[Function]] = {}
        for cls in self._module.classes.values():
            for name, method in cls.methods.items():
                if not name.startswith("__") and not all(_is_idle(statement) for statement in method.body):
                    methods.setdefault(name, []).append(method)
        return methods


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement is `pass`, a docstring or an ellipsis, as in a method that subclasses replace."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


# The class of the program that an annotation, or the last part of a name, means.


def annotated(annotation: ast.expr | None, module: Declarations) -> Class | None:
    """The class that an annotation names: `Pool`, `"Pool"`, `Optional[Pool]`, `Pool | None`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return module.classes.get(annotation.value.partition("|")[0].strip().removeprefix("Optional[").strip("]"))
    if isinstance(annotation, ast.BinOp):
        return annotated(annotation.left, module) or annotated(annotation.right, module)
    if isinstance(annotation, ast.Subscript) and short_name(annotation.value) in ("Optional", "Annotated"):
        return annotated(annotation.slice, module)
    return class_named(annotation, module) if annotation is not None else None


def class_named(node: ast.expr, module: Declarations) -> Class | None:
    """The class of the program that has the last part of a name, of which nothing else is known."""
    return None if _of_library(node, module) else module.classes.get(short_name(node))


def _of_library(node: ast.expr, module: Declarations) -> bool:
    """Whether a name is of the standard library: `sqlite3.Connection`, beside a class `Connection` of the program."""
    head = module.imports.get(dotted(node).partition(".")[0], "") if isinstance(node, ast.Attribute) else ""
    return head.partition(".")[0] in sys.stdlib_module_names


# Which classes and names are locks, where no constructor of a library says so.


def lock_class(cls: Class, attribute: Callable[[Class, str], Resource | None]) -> str | None:
    """The kind of lock that a class of this file is: one that wraps a lock, and does nothing else."""
    # A class that does more than lock is judged by what its methods do.
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
_NOT_LOCKS = libraries.words("names that only look like a lock's")


def derived(cls: Class) -> str | None:
    """The kind of resource that the instances of a class of this file are."""
    if cls.is_a("threading.Thread", "threading.Timer"):
        return "Thread"
    return "Process" if cls.is_a("multiprocessing.Process", "multiprocessing.context.Process") else None
