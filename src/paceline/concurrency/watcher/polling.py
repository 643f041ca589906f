"""Loops that ask again and again, by a clock, for what another thread or process can give, and who could give it.

The source of the line that a thread waits at decides: a `while` loop whose every call is known to ask, to sleep or to
print does nothing else until an answer comes. A loop with a deadline, a counter that is compared, or any call that is
not known may do anything, so nothing is said of it.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Generator, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.watcher.processes.coroutines import Task
from paceline.concurrency.watcher.processes.holders import file_of
from paceline.concurrency.watcher.processes.interpreter import Interpreter
from paceline.concurrency.watcher.samples import (
    AGAIN,
    CLOSED,
    OF_A_WORKER,
    OPEN_FILE_LOCK,
    Frame,
    Stack,
    Thread,
    ThreadWait,
)
from paceline.concurrency.watcher.waits import SLEEPS, SystemCall, Waits, call_of

#: What asks, and fails by an exception when there is nothing.
_RAISES = frozenset({"get", "get_nowait", "result", "exception", "flock", "lockf", "communicate"})
#: What asks, and returns something true when it was given.
_GIVES = frozenset({"acquire", "is_set", "poll", "done", "ready", "wait", "wait_for"})
_ASKS = (
    _RAISES
    | _GIVES
    | frozenset({"is_alive", "empty", "full", "qsize", "locked", "running", "join", "select", "waitpid", "cancelled"})
)
_SLEEPS = frozenset({"sleep"})
_PRINTS = frozenset(
    {
        "print",
        "flush",
        "debug",
        "info",
        "warning",
        "error",
        "len",
        "isinstance",
        "str",
        "repr",
        "format",
        "any",
        "all",
        "min",
        "max",
        "sum",
        "bool",
        "int",
        "float",
        "range",
        "enumerate",
        "list",
        "items",
        "values",
        "keys",
    }
)
#: Inside a `with` block these keep its lock for a while, and so stop others, and let them go on afterwards.
_LASTS = frozenset({"sleep", "acquire", "get", "put", "join", "result", "poll", "select", "communicate"})
#: These take what others may wait to be rid of: a loop that sleeps in between may give way by them.
_TAKES = frozenset({"get", "get_nowait", "acquire"})
_FILE_LOCKS = frozenset({"flock", "lockf"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FARTHEST, _LONGEST = 5, 400_000  # frames, characters of source


class PollingLoop(NamedTuple):
    """What a thread does that sleeps in a loop."""

    asks: bool  # for something; otherwise it only sleeps and prints, for ever
    file_lock: bool  # what it asks for is a lock on a file
    takes: bool = False  # an item or a lock, so that it does more than wait while it sleeps


def loop_of(stack: Stack, source: Callable[[str], str]) -> PollingLoop | None:
    """Return the loop that a thread is in; None if there is none, or one that may do more than ask.

    Args:
        stack: The thread's stack, the innermost frame first.
        source: Returns the source of a file; an empty string if it cannot be had.
    """
    ours = [frame for frame in stack if not frame.standard]
    for frame in ours[:_FARTHEST]:
        module = _parsed(source(frame.file))
        function = _innermost(module, frame, (*_FUNCTIONS, ast.Lambda)) or module
        loop = _innermost(function, frame, (ast.While,)) if function is not None else None
        if module is None or function is None or (loop is None and not isinstance(function, _FUNCTIONS)):
            return None
        try:
            if isinstance(loop, ast.While):
                return _judged(loop, module)
            assert isinstance(function, _FUNCTIONS)
            _known(list(_idle(function.body)), module)
        except _UnknownError:
            return None
    return None


class _UnknownError(Exception):
    """The loop may do something that is not understood."""


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module | None:
    if not text or len(text) > _LONGEST:
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _innermost(root: ast.AST | None, frame: Frame, kinds: tuple[type[ast.AST], ...]) -> ast.AST | None:
    """Return the innermost node of some kinds that contains the line of a frame."""
    nodes = [
        node
        for node in (ast.walk(root) if root is not None else ())
        if isinstance(node, kinds) and node is not root and node.lineno <= frame.line <= (node.end_lineno or 0)  # type: ignore[attr-defined]
    ]
    return max(nodes, key=lambda node: node.lineno, default=None)  # type: ignore[attr-defined]


def _judged(loop: ast.While, module: ast.Module) -> PollingLoop:
    expressions = [loop.test, *_idle(loop.body)]
    calls = _known(expressions, module)
    changed = {name.id for node in ast.walk(loop) for name in _computed(node)}
    compared = {name.id for node in ast.walk(loop) if isinstance(node, ast.Compare) for name in _names(node)}
    if changed & compared:
        raise _UnknownError
    forever = isinstance(loop.test, ast.Constant) and not any(
        isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop)
    )
    return PollingLoop(bool(calls & _ASKS) or not forever, bool(calls & _FILE_LOCKS), bool(calls & _TAKES))


def _idle(statements: list[ast.stmt]) -> Iterator[ast.expr]:
    """Iterate over what is evaluated when everything that is asked for fails."""
    for each in statements:
        if isinstance(each, ast.Try):
            ends = yield from _tried(each)
        elif isinstance(each, ast.If):
            ends = yield from _chosen(each)
        elif isinstance(each, (ast.While, ast.For)):
            yield each.test if isinstance(each, ast.While) else each.iter
            yield from _idle([*each.body, *each.orelse])
            ends = False
        elif isinstance(each, ast.With):
            if any(_called(inner) & _LASTS for inner in each.body):
                raise _UnknownError
            yield from (item.context_expr for item in each.items)
            yield from _idle(each.body)
            ends = _leaves(each.body)
        elif isinstance(each, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)):
            ends = False
            if each.value is not None:
                yield each.value
        elif isinstance(each, (ast.Pass, ast.Continue, ast.Break, ast.Return, ast.Raise, ast.Nonlocal, ast.Global)):
            ends = _leaves([each])
        else:
            raise _UnknownError
        if ends:
            return


def _tried(each: ast.Try) -> Generator[ast.expr, None, bool]:
    """Iterate over a `try` of which the first question fails; return whether what follows is not reached."""
    fails = next((at for at, s in enumerate(each.body) if _called(s) & _RAISES), None)
    if fails is None:
        yield from _idle([*each.body, *each.orelse])
    else:
        yield from _idle(each.body[: fails + 1])
    for handler in each.handlers:
        yield from _idle(handler.body)
    yield from _idle(each.finalbody)
    return fails is not None and all(_leaves(handler.body) for handler in each.handlers)


def _chosen(each: ast.If) -> Generator[ast.expr, None, bool]:
    """Iterate over an `if` of which the question is answered by no; return whether what follows is not reached."""
    yield each.test
    refused = isinstance(each.test, ast.UnaryOp) and isinstance(each.test.op, ast.Not)
    condition = each.test.operand if isinstance(each.test, ast.UnaryOp) else each.test
    name = _name(condition.func) if isinstance(condition, ast.Call) else ""
    holds = (name in _GIVES and refused) or (name == "empty" and not refused)
    skipped = (name in _GIVES and not refused) or (name == "empty" and refused)
    if not skipped and not _ends(each.body):
        yield from _idle(each.body)
    if not holds:
        yield from _idle(each.orelse)
    return holds and _leaves(each.body)


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Continue, ast.Break, ast.Return, ast.Raise))


def _ends(body: list[ast.stmt]) -> bool:
    """Whether a branch leaves the loop: since the loop goes on, it was not taken."""
    return isinstance(body[-1], (ast.Break, ast.Return, ast.Raise))


def _known(expressions: list[ast.expr], module: ast.Module) -> set[str]:
    """Return the names of the functions that are called; all must be known, and attributes be plain data."""
    names: set[str] = set()
    for node in (node for each in expressions for node in ast.walk(each)):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            raise _UnknownError
        if isinstance(node, ast.Await) and not isinstance(node.value, ast.Call):
            raise _UnknownError
        if isinstance(node, ast.Call):
            name = _name(node.func)
            if name not in _ASKS | _SLEEPS | _PRINTS:
                raise _UnknownError
            names.add(name)
    methods = {id(node.func) for each in expressions for node in ast.walk(each) if isinstance(node, ast.Call)}
    for node in (node for each in expressions for node in ast.walk(each)):
        if isinstance(node, ast.Attribute) and id(node) not in methods and not _is_data(node.attr, module):
            raise _UnknownError
    return names


def _is_data(name: str, module: ast.Module) -> bool:
    """Whether an attribute is a constant, or one that the same file assigns and does not define as a property."""
    if name[0].isupper():
        return True
    nodes = list(ast.walk(module))
    stored = any(isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Store) for n in nodes)
    fields = (statement for n in nodes if isinstance(n, ast.ClassDef) for statement in n.body)
    stored = stored or any(isinstance(each, (ast.Assign, ast.AnnAssign)) and _stores(each, name) for each in fields)
    return stored and not any(isinstance(n, _FUNCTIONS) and n.name == name for n in nodes)


def _stores(statement: ast.Assign | ast.AnnAssign, name: str) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(isinstance(each, ast.Name) and each.id == name for each in targets)


def _called(statement: ast.stmt) -> set[str]:
    return {_name(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)}


def _name(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Name))


def _computed(node: ast.AST) -> Iterator[ast.Name]:
    """Iterate over the variables that a statement computes from others, as a counter."""
    if isinstance(node, ast.AugAssign):
        yield from _names(node.target)
    elif isinstance(node, ast.Assign) and any(isinstance(each, ast.BinOp) for each in ast.walk(node.value)):
        for target in node.targets:
            yield from _names(target)


# Who could answer a thread that asks again and again by a clock, as `polling` finds it in the source.

_EVENT = ["wait", "wait"]  # the innermost functions of a thread that uses an event as a clock: `while not stop.wait(9)`


def asked(waits: Waits, pid: int, tid: int, wait: ThreadWait) -> ThreadWait:
    """Return a wait for a clock with what is asked for by it, and by whom it could be given; else the wait itself.

    Only workers write the results of a pool, although the pool's own process has the pipe open as well.
    """
    interpreter = waits.interpreter(pid) if wait.kind in ("clock", "pipe") else None
    thread = interpreter.thread(tid) if interpreter is not None else None
    if wait.kind == "pipe":
        delivers = thread is not None and thread.delivers
        return wait._replace(by=tuple(each for each in wait.by if each != pid), on=OF_A_WORKER) if delivers else wait
    call = call_of(pid, tid) if thread is not None and thread.stack else None
    if call is None or thread is None:
        return wait
    stack = thread.stack
    if thread.loop is not None and os.path.basename(stack[0].file) == "selectors.py":
        untimed = waits.without_timeout(pid, tid, call)
        closed = not thread.loop.ready and untimed.kind in CLOSED
        return wait._replace(by=untimed.by, on="what its tasks wait for", polls="asks") if closed else wait
    if thread.lock_file:
        by = waits.holders.of_file(file_of(pid, thread.lock_file))
        return wait._replace(by=by, on=f"the lock on {thread.lock_file}", polls="asks") if by else wait
    if call.name in SLEEPS and not _sleeps(pid, stack):  # C code that sleeps between two attempts, as SQLite's
        return _locked(waits, pid, wait)
    if _serves_as_manager(stack):
        return wait._replace(by=(pid,), on="the end of its manager", polls="asks")
    if not thread.loads and (source_wait := _by_its_source(waits, pid, call, wait, stack)) is not None:
        return source_wait
    untimed = waits.without_timeout(pid, tid, call)
    if untimed.kind not in CLOSED or not untimed.by:
        return wait
    return wait._replace(by=untimed.by, on=untimed.on + AGAIN, polls="asks")


def _by_its_source(waits: Waits, pid: int, call: SystemCall, wait: ThreadWait, stack: Stack) -> ThreadWait | None:
    """Return the wait as the source of its loop explains it; None if the system call says for what it asks."""
    loop = loop_of(stack, lambda file: _source(pid, file))
    if loop is None or [frame.function for frame in stack[:2]] == _EVENT == [_event(f.file) for f in stack[:2]]:
        return wait
    if not loop.asks:
        return wait._replace(polls="idles")
    if loop.file_lock:
        return _locked(waits, pid, wait)
    if call.name in SLEEPS and loop.takes:
        return wait
    if call.name not in SLEEPS:
        return None
    by = waits.holders.reaching(pid, waits.tree)
    return wait._replace(by=by, on="what its loop asks for", polls="asks") if by else wait


def tasks_of(waits: Waits, pid: int, interpreter: Interpreter) -> Iterator[Thread]:
    """Iterate over the tasks of the event loops of a process, each with what it waits for."""
    for loop in (each.loop for each in interpreter.threads if each.loop is not None):
        for task in loop.tasks:
            yield Thread(task.number, _wait_of(waits, pid, task), task.name)


def _wait_of(waits: Waits, pid: int, task: Task) -> ThreadWait:
    if not task.timer:
        return ThreadWait("task", (pid,), task.on, task.owners)
    loop = loop_of(task.stack, lambda file: _source(pid, file))
    if loop is None or (task.timer == "sleep" and loop.takes) or (task.main and not loop.asks):
        return ThreadWait("clock", on=f"asyncio.{task.timer}")
    by = waits.holders.reaching(pid, waits.tree) or (pid,)
    return ThreadWait("clock", by, "what its loop asks for", polls="asks" if loop.asks else "idles")


def _serves_as_manager(stack: Stack) -> bool:
    """Whether the main thread of a manager of multiprocessing waits until a client ends it."""
    serves = next((each for each in stack if os.path.basename(each.file) != "threading.py"), stack[0])
    return serves.function == "serve_forever" and serves.file.endswith("/multiprocessing/managers.py")


def _event(file: str) -> str:
    return "wait" if os.path.basename(file) == "threading.py" else ""


def _locked(waits: Waits, pid: int, wait: ThreadWait) -> ThreadWait:
    """Return the wait for a lock on a file that the process has open, if there is one that is held."""
    by = waits.holders.of_open_files(pid)
    return wait._replace(by=by, on=OPEN_FILE_LOCK, polls="asks") if by else wait


def _sleeps(pid: int, stack: Stack) -> bool:
    """Whether the innermost line may call Python's own `sleep`; so of a line that cannot be read."""
    lines = _source(pid, stack[0].file).splitlines()
    return not 0 < stack[0].line <= len(lines) or "sleep" in lines[stack[0].line - 1]


def _source(pid: int, file: str) -> str:
    path = file_of(pid, file)
    try:
        return _read(os.path.realpath(path), os.stat(path).st_mtime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=64)
def _read(path: str, _changed: int) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
