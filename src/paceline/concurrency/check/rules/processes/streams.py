"""Ends of streams that are not seen, or do not come."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, parent, short_name
from paceline.concurrency.check.threads.children import Child, children
from paceline.concurrency.check.threads.roots import FORKS, on_child_side

READS = ("recv", "read", "readline")
#: What takes what was read as it is, and raises nothing where it is empty.
HARMLESS = libraries.names("functions that may be given no bytes")


def end_of_stream(facts: Facts) -> Iterator[Witness]:
    """Report loops over reads that are left by what was read only."""
    for fn in facts.module.functions:
        for call in fn.calls:
            loop = enclosing(call, ast.While, ast.For) if _reads(call) else None
            if isinstance(loop, ast.While) and _endless(loop, call, fn):
                yield Witness(call, fn, loop=loop)
                break


def _reads(call: ast.Call) -> bool:
    """Whether this reads from a stream: a socket's `recv` and a file's `read` are given a size."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in READS or call.keywords:
        return False
    name = dotted(call.func.value).lower()
    if any(word in name for word in ("serial", "ser.", "port", "tty", "uart", "usb", "i2c", "queue", "input", "stdin")):
        return False  # these wait, or give nothing when a timeout is over
    sized = len(call.args) == 1 and not (isinstance(call.args[0], ast.Constant) and call.args[0].value is None)
    return bool(name) and not name.endswith("ser") and (sized or (call.func.attr == "readline" and not call.args))


def _endless(loop: ast.While, call: ast.Call, fn: Function) -> bool:
    """Whether nothing but what was read ends a loop, in which an empty read changes nothing."""
    consumer = parent(call)
    consumer = parent(consumer) if isinstance(consumer, ast.Await) else consumer
    while (
        isinstance(consumer, ast.Attribute | ast.Call) and short_name(getattr(consumer, "func", consumer)) in HARMLESS
    ):
        consumer = parent(consumer)
    target = consumer.targets[0] if isinstance(consumer, ast.Assign) and len(consumer.targets) == 1 else None
    target = consumer.target if isinstance(consumer, ast.AugAssign) and isinstance(consumer.op, ast.Add) else target
    # A `try` inside the loop may leave it where an empty read makes something raise.
    if not isinstance(target, ast.Name | ast.Attribute) or enclosing(call, ast.Try) is not enclosing(loop, ast.Try):
        return False
    names = {dotted(target)}
    grown = {dotted(n.target) for n in ast.walk(loop) if isinstance(n, ast.AugAssign) and _is_of(n.value, names)}
    tests = [n.test for n in ast.walk(loop) if isinstance(n, ast.If | ast.While)]
    if isinstance(loop.test, ast.Constant) and loop.test.value:
        tests = tests[1:]
        if not any(isinstance(n, ast.Break | ast.Return) for s in loop.body for n in ast.walk(s)):
            return False  # is meant to continue for ever
    grows = isinstance(consumer, ast.AugAssign)
    if not all(_by_content(test, {*names, *grown}, names if not grows else set()) for test in tests):
        return False
    return not any(_may_raise(n, names, fn) for s in loop.body for n in ast.walk(s))


def _is_of(value: ast.expr, names: set[str]) -> bool:
    """Whether this is what was read, perhaps decoded."""
    value = value.func.value if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else value
    return dotted(value) in names


def _by_content(test: ast.expr, all_of: set[str], read: set[str]) -> bool:
    """Whether a test is true only of something that was read: `c == "\\n"`, `b"\\r\\n" in data`, `len(data) < n`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = test.operand
        return isinstance(inner, ast.Call) and short_name(inner.func) == "endswith" and _by_content(inner, all_of, read)
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute):
        return test.func.attr in ("endswith", "startswith") and dotted(test.func.value) in all_of
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    left, right = test.left, test.comparators[0]
    if isinstance(test.ops[0], ast.In | ast.NotIn):
        return dotted(right) in all_of and isinstance(left, ast.Constant) and bool(left.value)
    sized = isinstance(left, ast.Call) and short_name(left.func) == "len" and len(left.args) == 1
    if sized and dotted(left.args[0]) in all_of - read:  # type: ignore[attr-defined]
        return isinstance(test.ops[0], ast.Lt | ast.NotEq | ast.LtE)
    if isinstance(test.ops[0], ast.Eq | ast.NotEq) and dotted(left) in all_of:
        return isinstance(right, ast.Constant) and bool(right.value)
    return False


def _may_raise(node: ast.AST, names: set[str], fn: Function) -> bool:
    """Whether something is done with what was read that ends the loop, or may raise where it is empty."""
    if isinstance(node, ast.Raise | ast.Yield | ast.YieldFrom):
        return True
    if isinstance(node, ast.Subscript):
        return dotted(node.value) in names and not isinstance(node.slice, ast.Slice)
    if not isinstance(node, ast.Call):
        return False
    name = short_name(node.func)
    is_argument = any(dotted(n) in names for a in [*node.args, *(k.value for k in node.keywords)] for n in ast.walk(a))
    return is_argument and name not in HARMLESS and name not in ("len", *READS)


RECEIVES = ("recv", "recv_bytes")

End = tuple[ast.Call, int]  # of a pipe: what makes it, and which of the two


def own_end(facts: Facts) -> Iterator[Witness]:
    """Report reads to the end of a pipe whose writing end the same process has, and never closes."""
    for fn in facts.module.functions:
        for call in fn.calls:
            stream = _read_to_end(call, fn)
            for pipe, part in _ends(stream, fn, facts) if stream is not None else ():
                # Of a pipe of two ways each process has the end that the other writes to.
                one_way = dotted(pipe.func) == "os.pipe" or bool(pipe.args or pipe.keywords)
                if not one_way or part == 0:
                    yield from _kept_open(call, fn, (pipe, 1 - part), facts)


def _kept_open(read: ast.Call, fn: Function, writing: End, facts: Facts) -> Iterator[Witness]:
    """The process that reads, where it has the writing end open: a child that was given both, or their parent."""
    target = getattr(parent(writing[0]), "targets", [None])[0]
    if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return
    name = ast.unparse(target.elts[writing[1]])
    entered = {f for f in facts.module.functions for e in _entered(f) if writing in _ends(e, f, facts)}
    closes = [f for f in facts.module.functions if f in entered or any(_closes(c, writing, f, facts) for c in f.calls)]
    for child in children(facts):
        inside = facts.reached_from(child.runs) if child.runs is not None else set()
        if fn in inside and not any(f in inside for f in closes) and _has(writing, read, fn, child, facts):
            yield Witness(read, fn, "inherited", writing=name, fork=child.call)
            return
        given = any(writing in _ends(value, child.fn, facts) for value in child.given)
        before = child.fn is fn and read.lineno < child.call.lineno
        if given and fn not in inside and all(f in inside for f in closes) and not before:
            yield Witness(read, fn, writing=name, fork=child.call)
            return
    fork = next((c for c in fn.calls if facts.module.canonical(c.func) in FORKS and c.lineno < read.lineno), None)
    theirs = [c for c in fn.calls if fork is not None and _closes(c, writing, fn, facts)]
    childs = fork is not None and on_child_side(read, fork)
    if fork is None or any(on_child_side(c, fork) is childs or c.lineno < fork.lineno for c in theirs):
        return
    if childs:
        yield Witness(read, fn, "inherited", writing=name, fork=fork)
    else:
        yield Witness(read, fn, writing=name, fork=fork)


def _entered(fn: Function) -> list[ast.expr]:
    """What the blocks of a function enter, and so close at their end."""
    return [item.context_expr for block in fn.withs for item in block.items]


def _ends(stream: ast.expr, fn: Function, facts: Facts) -> list[End]:
    """The ends of pipes that an expression may be, or a file that was opened on one."""
    ends: list[End] = []
    for call, maker, part in facts.module.objects.results(stream, fn):
        if dotted(call.func) == "os.pipe" or facts.module.constructed_kind(call, maker) == "Pipe":
            ends.append((call, part))
        elif dotted(call.func) in ("os.fdopen", "open") and call.args and call.args[0] is not stream:
            ends += _ends(call.args[0], maker, facts)
    return ends


def _has(end: End, read: ast.Call, fn: Function, child: Child, facts: Facts) -> bool:
    """Whether a child has an end that it could close: in its arguments or globals, or beside the one that it reads."""
    names = [(value, child.fn) for value in child.given]
    names += [(ast.Name(name, ast.Load()), facts.module.top) for name in facts.module.top.bound]
    stream = _read_to_end(read, fn)
    owner = facts.module.type_of(stream.value, fn) if isinstance(stream, ast.Attribute) else None
    beside = [v for values in owner.values.values() for v, _ in values] if owner is not None else []
    return any(end in _ends(name, scope, facts) for name, scope in names) or end[0] in beside


def _read_to_end(call: ast.Call, fn: Function) -> ast.expr | None:
    """What a call reads to its end: by `recv()` in a loop that only EOFError ends, `os.read()` in a loop, `read()`."""
    loop, tried = enclosing(call, ast.While), enclosing(call, ast.Try)
    if dotted(call.func) == "os.read" and call.args:
        return call.args[0] if loop is not None else None
    if not isinstance(call.func, ast.Attribute) or (call.func.attr == "read" and call.args):
        return None
    if call.func.attr in RECEIVES:
        handlers = tried.handlers if isinstance(loop, ast.While) and tried is not None else []
        caught = [h for h in handlers if h.type is not None and "EOFError" in ast.unparse(h.type)]
        ends = [n for n in ast.walk(loop) if isinstance(n, ast.Break | ast.Return)] if loop is not None else []
        endless = isinstance(getattr(loop, "test", None), ast.Constant)
        if not endless or not caught or not all(enclosing(n, ast.ExceptHandler) is not None for n in ends):
            return None
    return call.func.value if call.func.attr in (*RECEIVES, "read") else None


def _closes(call: ast.Call, end: End, fn: Function, facts: Facts) -> bool:
    """Whether a call closes an end of a pipe."""
    if dotted(call.func) == "os.close" and call.args:
        return end in _ends(call.args[0], fn, facts)
    return (
        isinstance(call.func, ast.Attribute) and call.func.attr == "close" and end in _ends(call.func.value, fn, facts)
    )
