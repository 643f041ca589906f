"""Ends of streams that are not seen, or do not come."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, keyword, parent, short_name
from paceline.concurrency.check.threads.roots import FORKS, on_child_side
from paceline.concurrency.check.values.bindings import start_arguments

READS = ("recv", "read", "readline")
#: What takes what was read as it is, and raises nothing where it is empty.
HARMLESS = {"decode", "encode", "strip", "rstrip", "lstrip", "append", "extend", "write", "print", "endswith",
            "startswith", "find", "join", "str", "bytes", "bytearray", "debug", "info", "lower", "upper"}  # fmt: skip


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


def own_end(facts: Facts) -> Iterator[Witness]:
    """Report loops that end with the end of a pipe whose writing end the same process never closes."""
    for fn in facts.module.functions:
        for reading, writing, pipe in _pipes(fn, facts):
            yield from _inherited(reading, writing, fn, facts)
            if dotted(pipe.func) == "os.pipe":
                fork = next((c for c in fn.calls if facts.module.canonical(c.func) in FORKS), None)
                read = _read_to_end(reading, fn) if fork is not None else None
                closes = [c for c in fn.calls if _closes(c, writing)]
                closed = fork is not None and not all(on_child_side(c, fork) for c in closes)
            else:
                fork = _given(writing, fn, facts)
                read = _received_to_end(reading, fn) if fork is not None else None
                closed = any(dotted(c.func) == f"{writing}.close" for c in fn.calls)
            entered = any(dotted(item.context_expr) == writing for block in fn.withs for item in block.items)
            if fork is not None and read is not None and not closed and not entered and read.lineno > fork.lineno:
                yield Witness(read, fn, writing=writing, fork=fork)


def _inherited(reading: str, writing: str, fn: Function, facts: Facts) -> Iterator[Witness]:
    """A child that is given both ends, and reads to the end without having closed the writing one."""
    for start in (c for c in fn.calls if facts.module.constructed_kind(c, fn) == "Process"):
        target = keyword(start, "target", 1)
        child = facts.module.function_named(target, fn) if target is not None else None
        ends = [dotted(a) for a in start_arguments(start, fn)]
        if child is None or reading not in ends or writing not in ends:
            continue
        parameters = [name for name in child.parameters if name != child.self_name or child.cls is None]
        mine = dict(zip(ends, parameters, strict=False))
        read = _received_to_end(mine[reading], child) if {reading, writing} <= mine.keys() else None
        uses = [n for n in child.names if read is not None and n.id == mine[writing]]
        if read is not None and not any(isinstance(parent(n), ast.Call | ast.Attribute) for n in uses):
            yield Witness(read, child, "inherited", writing=mine[writing], fork=start)


def _pipes(fn: Function, facts: Facts) -> Iterator[tuple[str, str, ast.Call]]:
    """The pairs of ends that a function makes: the name of either end as the reading one."""
    for node in {id(t): t for t in (parent(n) for n in fn.stores) if isinstance(t, ast.Tuple)}.values():
        pipe = getattr(parent(node), "value", None)
        names = [n.id for n in node.elts if isinstance(n, ast.Name)]
        if not isinstance(pipe, ast.Call) or len(names) != 2 or len(node.elts) != 2:
            continue
        if facts.module.canonical(pipe.func) == "os.pipe":
            yield names[0], names[1], pipe
        elif facts.module.constructed_kind(pipe, fn) == "Pipe":
            yield names[0], names[1], pipe
            if not pipe.args and not pipe.keywords:
                yield names[1], names[0], pipe


def _given(writing: str, fn: Function, facts: Facts) -> ast.Call | None:
    """The child process that a function gives the writing end."""
    processes = (c for c in fn.calls if facts.module.constructed_kind(c, fn) == "Process")
    return next((c for c in processes if any(dotted(a) == writing for a in start_arguments(c, fn))), None)


def _received_to_end(reading: str, fn: Function) -> ast.Call | None:
    """A `recv()` in a loop that only EOFError ends."""
    for call in fn.calls:
        loop, tried = enclosing(call, ast.While), enclosing(call, ast.Try)
        received = isinstance(call.func, ast.Attribute) and call.func.attr in RECEIVES
        if not received or dotted(call.func.value) != reading or not isinstance(loop, ast.While):  # type: ignore[attr-defined]
            continue
        handlers = tried.handlers if isinstance(tried, ast.Try) and isinstance(loop.test, ast.Constant) else []
        caught = [h for h in handlers if h.type is not None and "EOFError" in ast.unparse(h.type)]
        ends = [n for n in ast.walk(loop) if isinstance(n, ast.Break | ast.Return)]
        if caught and all(isinstance(enclosing(n, ast.ExceptHandler), ast.ExceptHandler) for n in ends):
            return call
    return None


def _read_to_end(reading: str, fn: Function) -> ast.Call | None:
    """A read of a descriptor in a loop, or of all that comes."""
    for call in fn.calls:
        if not call.args or dotted(call.args[0]) != reading:
            continue
        if dotted(call.func) == "os.read" and enclosing(call, ast.While) is not None:
            return call
        opened = dotted(call.func) in ("os.fdopen", "open")
        method = parent(call)
        if opened and isinstance(method, ast.Attribute) and method.attr == "read":
            return call
    return None


def _closes(call: ast.Call, end: str) -> bool:
    return dotted(call.func) == "os.close" and bool(call.args) and dotted(call.args[0]) == end
