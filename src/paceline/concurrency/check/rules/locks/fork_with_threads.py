"""A fork of a process that has threads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.forks import FORKS
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing, last_line
from paceline.concurrency.check.together.places import same_file
from paceline.concurrency.check.values.library_types import type_name

#: Functions that start a child and wait for it.
RUNS = tuple(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output"))


def find(facts: Facts) -> Iterator[Witness]:
    """Report forks in files that start threads, unless the child execs."""
    lines = [r.line for r in facts.roots if r.kind == "thread" and not r.alone]
    lines += [
        c.lineno
        for fn in facts.module.functions
        for c in fn.calls
        if facts.module.constructed_kind(c, fn) == "Thread" or _starts(c, fn, facts) or _runs_in_threads(c, fn, facts)
    ]
    for fn in facts.module.functions if lines else ():
        if any(short_name(c.func).startswith(("execl", "execv", "spawn")) and c.lineno > fn.line for c in fn.calls):
            continue
        for call in fn.calls:
            line = next((line for line in lines if same_file(line, call.lineno)), None)
            if line is not None and _forks(call, fn, facts) and not _comes_first(call, fn, line):
                yield _report(fn, call, line)


def _starts(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call starts a thread that was made elsewhere."""
    resource = resource_of(call, ("start",), fn, facts)
    return resource is not None and resource.kind == "Thread"


def _runs_in_threads(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call gives a task to an executor of threads, which starts one for it."""
    resource = resource_of(call, ("submit", "map"), fn, facts)
    executor = call.func.value if resource is not None and isinstance(call.func, ast.Attribute) else None
    return executor is not None and type_name(executor, fn, facts.module).endswith("ThreadPoolExecutor")


def _forks(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call forks this process: itself, or as a process or pool of a context that is said to fork."""
    if facts.module.canonical(call.func) in FORKS:
        return True
    if facts.module.constructed_kind(call, fn) == "Popen" or facts.module.canonical(call.func) in RUNS:
        code = keyword(call, "preexec_fn")
        return code is not None and not is_constant(code, None)
    receiver = (
        call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in ("Pool", "Process") else None
    )
    if isinstance(receiver, ast.Name):
        receiver = next((scope.bound[receiver.id] for scope in fn.scopes() if receiver.id in scope.bound), None)
    context = receiver if isinstance(receiver, ast.Call) and short_name(receiver.func) == "get_context" else None
    return context is not None and is_constant(keyword(context, "method", 0), "fork")


def _report(fn: Function, call: ast.Call, line: int) -> Witness:
    how = ", and runs Python code in the child (preexec_fn)," if keyword(call, "preexec_fn") is not None else ""
    return Witness(
        call,
        fn,
        how=how,
        line=line,
        instead="use start_new_session=, process_group= or umask= in place of preexec_fn, or a small program"
        if how
        else "fork before the first thread is started, or use subprocess or the spawn method",
    )


def _comes_first(fork: ast.Call, fn: Function, started: int) -> bool:
    """Whether the only threads are started by the same function, after the fork."""
    loop = enclosing(fork, ast.For, ast.While)
    again = loop is not None and started <= last_line(loop)
    return fork.lineno < started <= last_line(fn.node) and not again
