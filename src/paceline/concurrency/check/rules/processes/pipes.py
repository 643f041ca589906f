"""Pipes and queues of children that are not read while they are waited for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.rules.typestates import may_be
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    arguments_of,
    awaited,
    dotted,
    enclosing,
    is_within,
    keyword,
    last_line,
    parent,
    receiver_of,
    short_name,
)

ENDS = ("terminate", "kill", "send_signal")
OUTPUTS = ("stdout", "stderr")


def pipe_not_read(facts: Facts) -> Iterator[Witness]:
    """Report waits for a child whose output pipes are not read before."""
    for fn in facts.module.functions:
        yield from _in_turn(fn)
        yield from _read_afterwards(fn)
        for call in fn.calls:
            if facts.module.canonical(call.func) in ("subprocess.call", "subprocess.check_call") and _pipes(call, fn):
                yield _report(call, call, fn, "subprocess.run(..., capture_output=True)")
            child = receiver_of(call) if short_name(call.func) == "wait" else None
            if isinstance(child, ast.Call) and _makes(child, fn, facts):
                yield _report(call, child, fn, "communicate()")
        for target, value in fn.assigns:
            begun = awaited(value)
            if not isinstance(begun, ast.Call):
                continue
            child = begun if _makes(begun, fn, facts) else _returned(begun, fn, facts)
            if child is begun:
                yield from _child(target, begun, fn, facts)
            if child is not None:
                yield from _fed_first(dotted(target), begun, child, fn)
                if child is not begun and isinstance(target, ast.Name):
                    yield from _one_of_two(target.id, begun, child, fn)


def _returned(call: ast.Call, fn: Function, facts: Facts) -> ast.Call | None:
    """The child process with pipes that a function of this file starts and returns."""
    callee = facts.module.callee(call, fn)
    for statement in callee.returns if callee is not None and callee.name != "__init__" else ():
        value = callee.bound.get(statement.value.id) if isinstance(statement.value, ast.Name) else statement.value  # type: ignore[union-attr]
        if isinstance(value, ast.Call) and _makes(value, callee, facts):  # type: ignore[arg-type]
            return value
    return None


def _fed_first(name: str, begun: ast.Call, made: ast.Call, fn: Function) -> Iterator[Witness]:
    """`p.stdin.write(data)`, `p.stdin.close()`, and only then `p.stdout.read()`."""
    if any(not may_be(keyword(made, stream), "PIPE", fn) for stream in ("stdin", "stdout")):
        return
    later = [c for c in fn.calls if c.lineno >= begun.lineno]
    write = next((c for c in later if dotted(c.func) == f"{name}.stdin.write"), None)
    # A constant is short, and fits the pipe.
    if write is None or not write.args or isinstance(write.args[0], ast.Constant):
        return
    ends = next((c for c in later if dotted(c.func) == f"{name}.stdin.close" and c.lineno >= write.lineno), None)
    reads = [a for a in fn.attributes if dotted(a) == f"{name}.stdout" and a.lineno >= begun.lineno]
    if ends is not None and reads and all(a.lineno >= ends.lineno for a in reads):
        yield Witness(write, fn, "fed-first", name=name, reads=reads)


def _makes(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether this starts a child process with a pipe for its output."""
    makers = ("create_subprocess_exec", "create_subprocess_shell")
    is_child = short_name(call.func) in makers or facts.module.constructed_kind(call, fn) == "Popen"
    return is_child and bool(_pipes(call, fn))


def _pipes(call: ast.Call, fn: Function) -> list[str]:
    """The streams of a call that are pipes."""
    return [name for name in OUTPUTS if may_be(keyword(call, name), "PIPE", fn)]


def _in_turn(fn: Function) -> Iterator[Witness]:
    """A loop that reads a line of one pipe and then a line of the other one, of one child."""
    lines = {dotted(c.func).removesuffix(".readline"): c for c in fn.calls[::-1] if short_name(c.func) == "readline"}
    # These say which of the pipes has something to read.
    selects = any(short_name(c.func) in ("select", "poll", "set_blocking") and c.args for c in fn.calls)
    for of, first in lines.items() if not selects else ():
        second = lines.get(of.removesuffix("stdout") + "stderr") if of.endswith(".stdout") else None
        loop = enclosing(first, ast.While, ast.For)
        if second is None or loop is None or enclosing(second, ast.While, ast.For) is not loop:
            continue
        if enclosing(first, ast.If) is enclosing(second, ast.If) and not isinstance(parent(first), ast.Await):
            now, next_ = sorted((first, second), key=lambda c: c.lineno)
            yield Witness(now, fn, "in-turn", next_=next_, child=of.rpartition(".")[0])
            return


def _child(target: ast.expr, made: ast.Call, fn: Function, facts: Facts) -> Iterator[Witness]:
    """Report the waits for one child process."""
    name, local = dotted(target), isinstance(target, ast.Name)
    # A child that is handed on may be read by the function that gets it.
    if not name or (local and any(_passed(a, name) for c in fn.calls for a in arguments_of(c))):
        return  # the function that it is passed to may read it
    functions = [fn] if local or fn.cls is None else list(fn.cls.methods.values())
    streams = {f"{name}.{stream}" for stream in (*OUTPUTS, "communicate")}
    reads = [(a, f) for f in functions for a in f.attributes if dotted(a) in streams]
    for f in functions:
        for call in f.calls:
            if dotted(call.func) != f"{name}.wait" or (local and call.lineno < made.lineno):
                continue
            before = any(
                (at is f is fn and made.lineno <= a.lineno <= call.lineno)
                or (not local and (f is not fn or (at is not fn and facts.runs_beside(at))))
                for a, at in reads
            )
            if not before and not _ended(name, call, f):
                yield _report(call, made, f, f"{name}.communicate()", fn)
                return
    if not local:
        until = _until([a for a, _ in reads])
        if until is not None:
            yield Witness(until, next(f for a, f in reads if a is until), "left-unread", name=name, construction=made)
        return
    polled = _polled(name, fn, made, [a for a, _ in reads])
    if polled is not None:
        yield _report(polled, made, fn, f"{name}.communicate()")
    yield from _one_of_two(name, made, made, fn)


def _one_of_two(name: str, begun: ast.Call, made: ast.Call, fn: Function) -> Iterator[Witness]:
    """One of two pipes is read to its end while nothing reads the other one, a nested function included."""
    if len(_pipes(made, fn)) < 2:
        return
    streams = [a for a in fn.attributes if dotted(a.value) == name and a.attr in (*OUTPUTS, "communicate")]
    first = _one_only(streams, begun)
    beside = [n for n in ast.walk(fn.node) if isinstance(n, ast.Attribute) and dotted(n.value) == name]
    other = "stderr" if first is not None and first.attr == "stdout" else "stdout"
    # A nested function that reads the other pipe runs in a thread beside this one.
    if first is not None and not any(n.attr == other and n not in fn.attributes for n in beside):
        yield Witness(first, fn, "one", name=name, other=other, construction=made)


def _read_afterwards(fn: Function) -> Iterator[Witness]:
    """`status = child.wait()` and then `child.stderr.read()`, wherever the child was started."""
    for wait in fn.calls:
        child = dotted(wait.func).removesuffix(".wait") if short_name(wait.func) == "wait" else ""
        reads = [a for a in fn.attributes if child and a.attr in OUTPUTS and dotted(a.value) == child]
        full = next((a for a in reads if dotted(parent(a) or a).endswith(".read")), None)
        if full is None or any(a.lineno < wait.lineno for a in reads) or child in fn.bound:
            continue
        if not _timeout(wait) and not _ended(child, wait, fn):
            yield Witness(wait, fn, "read-late", child=child, read=full)
            return


def _until(reads: list[ast.Attribute]) -> ast.Attribute | None:
    """The only read of a pipe, where it is a line of a loop that is left by what the line says."""
    only = reads[0] if len(reads) == 1 else None
    line = parent(only) if only is not None else None
    loop = enclosing(only, ast.While, ast.For) if only is not None else None
    if loop is None or not isinstance(line, ast.Attribute) or line.attr != "readline":
        return None
    if isinstance(loop, ast.While) and not (isinstance(loop.test, ast.Constant) and loop.test.value):
        return None
    for test in (n for n in ast.walk(loop) if isinstance(n, ast.If)):
        ended = isinstance(test.test, ast.UnaryOp) or (
            isinstance(test.test, ast.Compare)
            and isinstance(test.test.comparators[0], ast.Constant)
            and not test.test.comparators[0].value
        )
        if not ended and isinstance(test.body[-1], ast.Break | ast.Return):
            return only
    return None


def _polled(name: str, fn: Function, made: ast.Call, reads: list[ast.Attribute]) -> ast.Call | None:
    """`while p.poll() is None:` where the pipe is read neither before nor inside."""
    for loop in fn.loops:
        if isinstance(loop, ast.While) and loop.lineno > made.lineno:
            for node in ast.walk(loop.test):
                if isinstance(node, ast.Call) and dotted(node.func) == f"{name}.poll":
                    return None if any(made.lineno <= a.lineno <= last_line(loop) for a in reads) else node
    return None


def _passed(node: ast.expr, name: str) -> bool:
    """Whether an argument is a child, or one of its streams."""
    return dotted(node) in (name, f"{name}.stdout", f"{name}.stderr")


def _timeout(call: ast.Call) -> bool:
    return bool(call.args or call.keywords)


def _ended(name: str, wait: ast.Call, fn: Function) -> bool:
    """Whether the function ends the child: then its wait is short, or its timeout says that the child does not obey."""
    return any(dotted(c.func) in (f"{name}.{how}" for how in ENDS) for c in fn.calls if c.lineno <= wait.lineno)


def _one_only(reads: list[ast.Attribute], begun: ast.Call) -> ast.Attribute | None:
    """The first read of a pipe to its end, where the other pipe is not read before; else None."""
    after = sorted((a for a in reads if a.lineno >= begun.lineno), key=lambda a: (a.lineno, a.col_offset))
    if not after or any(a.attr == "communicate" for a in after):
        return None
    first, how = after[0], parent(after[0])
    if isinstance(how, ast.For | ast.comprehension) and how.iter is first:
        return first
    method, call = how.attr if isinstance(how, ast.Attribute) else "", parent(how) if how is not None else None
    if method == "read" and isinstance(call, ast.Call) and not call.args:
        return first
    loop = enclosing(first, ast.While, ast.For) if method == "readline" else None
    return first if loop and not any(a.attr != first.attr and is_within(a, loop) for a in after) else None


def _report(at: ast.Call, made: ast.Call, fn: Function, instead: str, maker: Function | None = None) -> Witness:
    alike = [c for c in fn.calls if dotted(c.func) == dotted(made.func) and c.lineno < made.lineno]
    return Witness(
        at,
        fn,
        confidence=0.6 if _timeout(at) else 0.85,
        pipes=" and ".join(_pipes(made, maker or fn)),
        construction=made,
        until=", until the timeout" if _timeout(at) else "",
        instead=instead,
        number=str(len(alike)),  # which changes less often than the line
    )
