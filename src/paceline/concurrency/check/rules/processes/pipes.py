"""Pipes and queues of children that are not read while they are waited for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    awaited,
    dotted,
    enclosing,
    is_within,
    keyword,
    last_line,
    parent,
    short_name,
)
from paceline.concurrency.check.values.bindings import start_arguments

ENDS = ("terminate", "kill", "send_signal")


def pipe_not_read(facts: Facts) -> Iterator[Witness]:
    """Report waits for a child whose output pipes are not read before."""
    for fn in facts.module.functions:
        yield from _in_turn(fn)
        yield from _read_afterwards(fn)
        for call in fn.calls:
            name = facts.module.canonical(call.func)
            if name in ("subprocess.call", "subprocess.check_call") and _pipes(call, fn):
                piped = " and ".join(_pipes(call, fn))
                yield _report(call, call, fn, piped, "subprocess.run(..., capture_output=True)")
            if (
                short_name(call.func) == "wait"
                and isinstance(call.func, ast.Attribute)
                and _makes(call.func.value, fn, facts)
            ):
                piped = " and ".join(_pipes(call.func.value, fn))  # type: ignore[arg-type]
                yield _report(call, call.func.value, fn, piped, "communicate()")  # type: ignore[arg-type]
        for target, value in fn.assigns:
            construction = awaited(value)
            if isinstance(construction, ast.Call) and _makes(construction, fn, facts):
                yield from _child(target, construction, fn, facts)
                yield from _fed_first(dotted(target), construction, construction, fn)
            elif isinstance(construction, ast.Call) and (child := _returned(construction, fn, facts)) is not None:
                yield from _fed_first(dotted(target), construction, child, fn)
                if len(_pipes(child, fn)) == 2 and isinstance(target, ast.Name):
                    yield from _one_of_two(target.id, construction, child, fn)


def _returned(call: ast.Call, fn: Function, facts: Facts) -> ast.Call | None:
    """The child process with pipes that a function of this file starts and returns."""
    callee = facts.module.callee(call, fn)
    for statement in callee.returns if callee is not None and callee.name != "__init__" else ():
        value = callee.bound.get(statement.value.id) if isinstance(statement.value, ast.Name) else statement.value  # type: ignore[union-attr]
        if isinstance(value, ast.Call) and _makes(value, callee, facts):  # type: ignore[arg-type]
            return value
    return None


def _fed_first(name: str, construction: ast.Call, child: ast.Call, fn: Function) -> Iterator[Witness]:
    """`p.stdin.write(data)`, `p.stdin.close()`, and only then `p.stdout.read()`."""
    if not _is_pipe(keyword(child, "stdin"), fn) or not _is_pipe(keyword(child, "stdout"), fn):
        return
    later = [c for c in fn.calls if c.lineno >= construction.lineno]
    write = next((c for c in later if dotted(c.func) == f"{name}.stdin.write"), None)
    if write is None or not write.args or isinstance(write.args[0], ast.Constant):
        return
    ends = next((c for c in later if dotted(c.func) == f"{name}.stdin.close" and c.lineno >= write.lineno), None)
    reads = [
        a for a in fn.attributes if a.attr == "stdout" and dotted(a.value) == name and a.lineno >= construction.lineno
    ]
    if ends is None or not reads or any(a.lineno < ends.lineno for a in reads):
        return
    yield Witness(write, fn, "fed-first", name=name, reads=reads)


def _makes(node: ast.expr, fn: Function, facts: Facts) -> bool:
    """Whether this starts a child process with a pipe for its output."""
    if not isinstance(node, ast.Call) or not _pipes(node, fn):
        return False
    return facts.module.constructed_kind(node, fn) == "Popen" or short_name(node.func) in (
        "create_subprocess_exec",
        "create_subprocess_shell",
    )


def _pipes(call: ast.Call, fn: Function) -> list[str]:
    """The streams of a call that are pipes."""
    return [name for name in ("stdout", "stderr") if _is_pipe(keyword(call, name), fn)]


def _is_pipe(argument: ast.expr | None, fn: Function) -> bool:
    """Whether an argument is `PIPE`, or a variable that may be: `sink = None if verbose else PIPE`."""
    if isinstance(argument, ast.IfExp):
        return _is_pipe(argument.body, fn) or _is_pipe(argument.orelse, fn)
    if isinstance(argument, ast.Name) and argument.id != "PIPE":
        value = next((scope.bound[argument.id] for scope in fn.scopes() if argument.id in scope.bound), None)
        return isinstance(value, ast.Attribute | ast.IfExp) and _is_pipe(value, fn)
    return argument is not None and short_name(argument) == "PIPE"


def _in_turn(fn: Function) -> Iterator[Witness]:
    """A loop that reads a line of one pipe and then a line of the other one, of one child."""
    lines = {c: dotted(c.func).removesuffix(".readline") for c in fn.calls if short_name(c.func) == "readline"}
    for first, of in lines.items():
        loop = enclosing(first, ast.While, ast.For)
        other = of.removesuffix("stdout") + "stderr" if of.endswith(".stdout") else ""
        second = next((c for c in lines if enclosing(c, ast.While, ast.For) is loop and lines[c] == other), None)
        is_guarded = any(short_name(c.func) in ("select", "poll", "set_blocking") and c.args for c in fn.calls)
        is_guarded = is_guarded or (second is not None and enclosing(first, ast.If) is not enclosing(second, ast.If))
        if loop is None or second is None or is_guarded or isinstance(parent(first), ast.Await):
            continue
        now, next_ = sorted((first, second), key=lambda c: c.lineno)
        yield Witness(now, fn, "in-turn", next_=next_, child=of.rpartition(".")[0])
        return


def _child(target: ast.expr, construction: ast.Call, fn: Function, facts: Facts) -> Iterator[Witness]:
    """Report the waits for one child process."""
    name, pipes = dotted(target), _pipes(construction, fn)
    if not name:
        return
    local = isinstance(target, ast.Name)
    functions = [fn] if local or fn.cls is None else list(fn.cls.methods.values())
    if local and any(_is(a, name) for c in fn.calls for a in (*c.args, *(k.value for k in c.keywords))):
        return  # the function that it is passed to may read it
    places = [
        (a, f)
        for f in functions
        for a in f.attributes
        if dotted(a.value) == name and a.attr in ("stdout", "stderr", "communicate")
    ]
    reads = [a for a, _ in places]
    for f in functions:
        for call in f.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "wait" or dotted(call.func.value) != name:
                continue
            if local and call.lineno < construction.lineno:
                continue
            local_reads = [a for a, at in places if at is f is fn and _earlier(a, call, construction)]
            elsewhere = [a for a, at in places if not local and (f is not fn or (at is not fn and _beside(at, facts)))]
            before = local_reads + elsewhere
            if not before and not _ended(name, call, f):
                yield _report(call, construction, f, " and ".join(pipes), f"{name}.communicate()")
                return
    until = _until(reads) if not local else None
    if until is not None:
        yield Witness(
            until, next((f for a, f in places if a is until)), "left-unread", name=name, construction=construction
        )
    polled = _polled(name, fn, construction, reads) if local else None
    if polled is not None:
        yield _report(polled, construction, fn, " and ".join(pipes), f"{name}.communicate()")
    if local and len(pipes) == 2:
        yield from _one_of_two(name, construction, construction, fn)


def _one_of_two(name: str, construction: ast.Call, child: ast.Call, fn: Function) -> Iterator[Witness]:
    """One of two pipes is read to its end while nothing reads the other one, a nested function included."""
    reads = [a for a in fn.attributes if dotted(a.value) == name and a.attr in ("stdout", "stderr", "communicate")]
    first = _one_only(reads, construction)
    beside = [n for n in ast.walk(fn.node) if isinstance(n, ast.Attribute) and dotted(n.value) == name]
    other = "stderr" if first is not None and first.attr == "stdout" else "stdout"
    if first is not None and not any(n.attr == other and n not in fn.attributes for n in beside):
        yield _one(first, child, fn, name)


def _read_afterwards(fn: Function) -> Iterator[Witness]:
    """`status = child.wait()` and then `child.stderr.read()`, wherever the child was started."""
    for wait in fn.calls:
        child = dotted(wait.func).removesuffix(".wait") if short_name(wait.func) == "wait" else ""
        reads = [a for a in fn.attributes if child and a.attr in ("stdout", "stderr") and dotted(a.value) == child]
        full_reads = [a for a in reads if dotted(parent(a) or a).endswith(".read")]
        if not full_reads or full_reads[0].lineno < wait.lineno or any(a.lineno < wait.lineno for a in reads):
            continue
        binding = fn.bound.get(child) if child.isidentifier() else None
        if binding is None and not _timeout(wait) and not _ended(child, wait, fn):
            yield Witness(wait, fn, "read-late", child=child, read=full_reads[0])
            return


def _until(reads: list[ast.Attribute]) -> ast.Attribute | None:
    """The only read of a pipe, where it is a line of a loop that is left by what the line says."""
    only = reads[0] if len(reads) == 1 else None
    line = parent(only) if only is not None else None
    call = parent(line) if isinstance(line, ast.Attribute) and line.attr == "readline" else None
    loop = enclosing(only, ast.While, ast.For) if only is not None and call is not None else None
    endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and loop.test.value
    if loop is None or not (endless or isinstance(loop, ast.For)):
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


def _polled(name: str, fn: Function, construction: ast.Call, reads: list[ast.Attribute]) -> ast.Call | None:
    """`while p.poll() is None:` where the pipe is read neither before nor inside."""
    for loop in fn.loops:
        if isinstance(loop, ast.While) and loop.lineno > construction.lineno:
            for node in ast.walk(loop.test):
                if isinstance(node, ast.Call) and dotted(node.func) == f"{name}.poll":
                    return None if any(construction.lineno <= a.lineno <= last_line(loop) for a in reads) else node
    return None


def _is(node: ast.expr, name: str) -> bool:
    return dotted(node).startswith(name) and dotted(node) in (name, name + ".stdout", name + ".stderr")


def _earlier(read: ast.Attribute, wait: ast.Call, construction: ast.Call) -> bool:
    return construction.lineno <= read.lineno <= wait.lineno


def _beside(fn: Function, facts: Facts) -> bool:
    """Whether a thread or task runs a function, and so may read while another function waits."""
    return any(root.startswith(("thread:", "task:")) for root in facts.reached.get(id(fn), ()))


def _timeout(call: ast.Call) -> bool:
    return bool(call.args or call.keywords)


def _ended(name: str, wait: ast.Call, fn: Function) -> bool:
    """Whether the function ends the child: then its wait is short, or its timeout says that the child does not obey."""
    return any(dotted(c.func) in (f"{name}.{how}" for how in ENDS) for c in fn.calls if c.lineno <= wait.lineno)


def _one_only(reads: list[ast.Attribute], construction: ast.Call) -> ast.Attribute | None:
    """The first read of a pipe to its end, where the other pipe is not read before; else None."""
    after = sorted((a for a in reads if a.lineno >= construction.lineno), key=lambda a: (a.lineno, a.col_offset))
    if not after or any(a.attr == "communicate" for a in after):
        return None
    around = parent(after[0])
    if (
        isinstance(around, ast.Attribute)
        and around.attr == "read"
        and isinstance(up := parent(around), ast.Call)
        and not up.args
    ):
        return after[0]
    if isinstance(around, ast.For | ast.comprehension) and around.iter is after[0]:
        return after[0]
    line = around.attr == "readline" if isinstance(around, ast.Attribute) else False
    loop = enclosing(after[0], ast.While, ast.For)
    if line and loop is not None and not any(a.attr != after[0].attr and is_within(a, loop) for a in after):
        return after[0]
    return None


def _one(read: ast.Attribute, construction: ast.Call, fn: Function, name: str) -> Witness:
    other = "stderr" if read.attr == "stdout" else "stdout"
    return Witness(read, fn, "one", name=name, other=other, construction=construction)


def _report(at: ast.Call, construction: ast.Call, fn: Function, pipes: str, instead: str) -> Witness:
    return Witness(
        at,
        fn,
        confidence=0.6 if _timeout(at) else 0.85,
        pipes=pipes,
        construction=construction,
        until=", until the timeout" if _timeout(at) else "",
        instead=instead,
        number=str(_order(construction, fn)),
    )


def _order(construction: ast.Call, fn: Function) -> int:
    """The index among the function's calls of that name, which changes less often than the line."""
    return sum(dotted(c.func) == dotted(construction.func) and c.lineno < construction.lineno for c in fn.calls)


READS = ("get", "get_nowait", "recv", "recv_bytes")
WRITES = ("put", "put_nowait", "send", "send_bytes", "close")


def join_before_drain(facts: Facts) -> Iterator[Witness]:
    """Report joins of a child before the first read of the queue or pipe that it writes to."""
    for fn in facts.module.functions:
        yield from _joined_first(fn, facts)
        started = [c for c in fn.calls if facts.module.constructed_kind(c, fn) == "Process"]
        for queue, start in _given(started, fn, facts).items():
            join = next((c for c in fn.calls if c.lineno > start.lineno and _joins(c, fn, facts)), None)
            if join is None:
                continue
            uses = [c for c in fn.calls if c not in started and _touches(c, queue)]
            reads = [c.lineno for c in uses if _reads(c, queue, fn, facts)]
            if any(c.lineno <= join.lineno for c in uses if c.lineno not in reads and short_name(c.func) not in WRITES):
                continue
            if reads and min(reads) > join.lineno:
                yield Witness(join, fn, queue=queue, read=min(reads), started=start)


def _joined_first(fn: Function, facts: Facts) -> Iterator[Witness]:
    """The join of children, whatever function has started them, before the first item of theirs is got from a queue."""
    waits = [e for e in facts.walker.effects(fn) if e.kind == "wait" and e.resource is not None and not e.timeout]
    joins = [e for e in waits if e.resource.kind == "Process"]  # type: ignore[union-attr]
    for get in (e for e in waits if joins and e.resource.kind == "ProcessQueue"):  # type: ignore[union-attr]
        queue = get.resource.id  # type: ignore[union-attr]
        reads = [use.line for use in facts.uses(READS, ("ProcessQueue",), queue) if use.fn is fn]
        fillers = (use.fn for use in facts.uses(PUTS, ("ProcessQueue",), queue))
        by_child = any(tag.startswith("process:") for each in fillers for tag in facts.reached.get(id(each), ()))
        made = (c for f in facts.module.functions for c in f.calls if c.lineno == joins[0].resource.line)  # type: ignore[union-attr]
        start = next(made, None)
        if by_child and start is not None and joins[0].line < min(reads):
            yield Witness(joins[0].node, fn, queue=ast.unparse(get.node.func.value), read=min(reads), started=start)  # type: ignore[attr-defined]


def _given(started: list[ast.Call], fn: Function, facts: Facts) -> dict[str, ast.Call]:
    """The parent's queue or pipe end -> the call that passes it, or the other end, to a child process."""
    by_queue: dict[str, ast.Call] = {}
    for call in started:
        for value in start_arguments(call, fn):
            resource = facts.module.resource(value, fn)
            if resource is not None and resource.kind == "ProcessQueue":
                by_queue[dotted(value)] = call
            if resource is not None and resource.kind == "Pipe" and isinstance(value, ast.Name):
                ends = [n for n, v in fn.bound.items() if v is fn.bound.get(value.id) and n != value.id]
                by_queue.update(dict.fromkeys(ends, call))
    return by_queue


def _joins(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call joins a process without a timeout."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "join" or has_timeout(call, "join") or call.args:
        return False
    resource = facts.module.resource(call.func.value, fn)
    if resource is not None:
        return resource.kind == "Process"
    if not isinstance(call.func.value, ast.Name):
        return False
    for loop in fn.loops:
        target = getattr(loop, "target", None)
        if isinstance(target, ast.Name) and target.id == call.func.value.id and isinstance(loop.iter, ast.Name):  # type: ignore[union-attr]
            return _holds_processes(loop.iter.id, fn, facts)  # type: ignore[union-attr]
    return False


def _holds_processes(name: str, fn: Function, facts: Facts) -> bool:
    """Whether this function fills the list with processes."""
    start = fn.bound.get(name)
    inside = [n for n in ast.walk(start) if isinstance(n, ast.Call)] if start is not None else []
    for call in fn.calls:
        if dotted(call.func) == f"{name}.append" and call.args:
            argument = call.args[0]
            resource = facts.module.resource(argument, fn)
            if resource is not None and resource.kind == "Process":
                return True
            inside += [argument] if isinstance(argument, ast.Call) else []
    return any(facts.module.constructed_kind(call, fn) == "Process" for call in inside)


def _touches(call: ast.Call, queue: str) -> bool:
    """Whether a call uses the queue."""
    if isinstance(call.func, ast.Attribute) and dotted(call.func.value) == queue:
        return True
    return any(dotted(a) == queue for a in (*call.args, *(k.value for k in call.keywords)))


def _reads(call: ast.Call, queue: str, fn: Function, facts: Facts) -> bool:
    """Whether a call reads the queue, or passes it to a function that does."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in READS and dotted(call.func.value) == queue:
        return True
    callee = facts.module.callee(call, fn)
    for name in callee.parameters if callee is not None else ():
        argument = facts.module.objects.argument_at(callee, name, call)  # type: ignore[arg-type]
        if argument is not None and dotted(argument.value) == queue:
            return any(dotted(c.func) in [f"{name}.{read}" for read in READS] for c in callee.calls)  # type: ignore[union-attr]
    return False
