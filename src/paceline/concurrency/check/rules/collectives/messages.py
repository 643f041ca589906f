"""Messages between ranks: without a partner, in the wrong order, not waited for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.ranks.messages import ANY, WORLDS, Exchanges, Operation, Stuck, World, is_message
from paceline.concurrency.check.ranks.traces import Impossible, Trace, Undecided
from paceline.concurrency.check.reporting.findings import Step
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    dotted,
    enclosing,
    is_constant,
    keyword,
    last_line,
    on_different_branches,
    parent,
    short_name,
)


class Outcome(NamedTuple):
    """Ranks that wait for a message for ever, in every world that can be followed."""

    fn: Function
    stuck: Stuck  # the first of them
    size: int  # of the largest world
    case: str  # in which case only


def both_send_first(facts: Facts) -> Iterator[Witness]:
    """Report exchanges in which two ranks start with the same call, so that each waits for the other."""
    for outcome in _outcomes(facts):
        one, two = outcome.stuck.operation, outcome.stuck.other
        if outcome.stuck.alike and one.call is not None and two is not None:
            reason, need = "each waits for the other to receive once a message no longer fits the buffer", "receive"
            if one.kind == "receive":
                reason, need = "neither ever sends", "send"
            yield Witness(one.call, outcome.fn, kind=one.kind, both=(one.call, two.call), reason=reason, need=need)


def message_without_partner(facts: Facts) -> Iterator[Witness]:
    """Report programs of messages in which a rank waits for ever, whatever the number of ranks."""
    for outcome in _outcomes(facts):
        if not outcome.stuck.alike:
            yield _without_partner(outcome)


def _outcomes(facts: Facts) -> Iterator[Outcome]:
    """What comes of the programs of messages of a file, each followed from the outermost function that all run."""
    module = facts.module
    functions = [fn for fn in module.functions if any(is_message(call, module) for call in fn.calls)]
    settled: set[int] = set()
    exchanges = Exchanges(module, facts.sequences)
    for fn in _outermost_first(functions, facts):
        if id(fn) in settled or not _by_all(fn, facts):
            continue
        worlds = {size: outcome for size in WORLDS if (outcome := _played(fn, size, facts, exchanges)) is not None}
        settled |= {id(each) for each in facts.reached_from(fn)} if worlds else set()
        if worlds and all(stuck for stuck, _ in worlds.values()):  # a program for two may leave the others of more
            stuck, case = worlds[max(worlds)]
            yield Outcome(fn, stuck[0], max(worlds), case)


def _outermost_first(functions: list[Function], facts: Facts) -> list[Function]:
    """The functions with messages and their callers, callers first."""
    distances: dict[int, tuple[int, Function]] = {}
    todo = [(fn, 0) for fn in functions]
    while todo:
        fn, far = todo.pop()
        if far > CALLERS or distances.get(id(fn), (-1, fn))[0] >= far:
            continue
        distances[id(fn)] = (far, fn)
        todo += [(caller, far + 1) for caller, _ in facts.callers.get(id(fn), ()) if caller is not fn]
    return [fn for far, fn in sorted(distances.values(), key=lambda pair: (-pair[0], pair[1].line))]


def _by_all(fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether every rank calls a function: no caller in the file does so on one side of a test of the rank."""
    sites = facts.callers.get(id(fn), ()) if depth < CALLERS else ()
    return not any(facts.sequences.tests_around(event.effect.node, caller) for caller, event in sites) and all(
        caller is fn or _by_all(caller, facts, depth + 1) for caller, _ in sites
    )


CALLERS = 5


def _played(fn: Function, size: int, facts: Facts, exchanges: Exchanges) -> tuple[list[Stuck], str] | None:
    """The ranks of a world that wait for ever, and in which case only; None where it cannot be followed."""
    chosen = dict[str, bool]()
    followed = _followed(fn, size, facts, exchanges, chosen)
    if followed is None:
        return None
    traces, asks = followed
    kinds = {op.kind for trace in traces for op in trace}
    # A program of one kind only has its other half elsewhere.
    if not {"send", "receive"} <= kinds:
        return None
    # A send may return before its message is received; whether it does depends on the library and the size.
    if always := World(traces, buffered=True).stuck():
        return always, ""
    if late := World(traces, buffered=False).stuck():
        return late, "once a message does not fit the buffer"
    other = _followed(fn, size, facts, exchanges, dict.fromkeys(chosen, False)) if chosen and asks else None
    return (World(other[0], buffered=True).stuck(), "where a rank has found nothing") if other is not None else ([], "")


def _followed(
    fn: Function, size: int, facts: Facts, exchanges: Exchanges, chosen: dict[str, bool]
) -> tuple[list[list[Operation]], bool] | None:
    """What each rank of a world does, and whether it asks for what a rank may have found or not."""
    traces, asks = list[list[Operation]](), False
    for rank in range(size):
        trace = Trace(facts.module, facts.sequences, exchanges, rank, size, chosen)
        try:
            trace.run(fn, {})
        # Nothing is reported of a program that cannot be followed on every rank.
        except (Undecided, Impossible, RecursionError):
            return None
        traces.append(trace.operations)
        asks = asks or bool(trace.found)
    return traces, asks


def _named(operation: Operation) -> str:
    tag = f" with the tag {operation.tag}" if operation.tag not in (0, ANY) else ""
    if operation.kind not in ("send", "receive"):
        return f"calls {operation.kind} (line {operation.line})"
    whom = "any rank" if operation.peer == ANY else f"rank {operation.peer}"
    way = f"sends to {whom}" if operation.kind == "send" else f"receives from {whom}"
    return f"{way}{tag} (line {operation.line})"


def _without_partner(outcome: Outcome) -> Witness:
    fn, stuck, size, case = outcome
    operation, other = stuck.operation, stuck.other
    peer = f"rank {operation.peer}" if operation.peer != ANY else "every other rank"
    if operation.peer == stuck.rank:
        does = "which is the rank itself"
    elif operation.peer == size or (operation.kind == "send" and operation.peer < 0):
        does = "which does not exist"
    else:
        does = f"and {peer} " + ("has come to its end" if other is None else _named(other))
    ranks = [(f"rank {stuck.rank}", operation), *([(peer, other)] if other is not None else [])]
    story = [Step(who, at.line, _named(at).rpartition(" (")[0]) for who, at in ranks]
    sure, when = (0.6, f", {case}") if case else (0.8, "")
    at = ast.Pass(lineno=operation.line, col_offset=0)
    return Witness(
        at,
        fn,
        confidence=sure,
        story=story,
        size=size,
        rank=stuck.rank,
        operation=operation,
        named=_named(operation),
        does=does,
        peer=peer,
        when=when,
    )


BEGIN = ("isend", "irecv", "Isend", "Irecv", "issend", "Issend")
ADDS = ("append", "add", "appendleft", "extend", "insert")
NOT_WAITED_FOR_DEPTH = 6  # names, lists and calls through which a value is followed
#: What may be asked of a tensor while a message is under way.
FORM = {"shape", "dtype", "device", "ndim", "size", "numel", "dim", "element_size", "is_cuda", "nbytes"}


def not_waited_for(facts: Facts) -> Iterator[Witness]:
    """Report calls whose handle is dropped, and buffers that are used before the handle is waited for."""
    for call, fn in ((c, f) for c, f in facts.module.calls if _begins(c, f, facts)):
        if _is_dropped(call, fn, facts):
            how = "dropped" if isinstance(parent(call), ast.Expr) else "never waited for"
            message = f"{text_of(call)} returns a handle that is {how}: the program cannot tell when"
            yield Witness(call, fn, message=message)
        elif (use := _used_early(call, fn, facts)) is not None:
            at, wait = use
            yield Witness(at, fn, "early", wait=wait, call=call, line=getattr(at, "lineno", call.lineno))


def _used_early(call: ast.Call, fn: Function, facts: Facts) -> tuple[ast.AST, int] | None:
    """Where the buffer of a call is used before its handle is waited for, and the line of the wait."""
    up = parent(call)
    handle = dotted(up.targets[0]) if isinstance(up, ast.Assign) and isinstance(up.targets[0], ast.Name) else ""
    buffer = dotted(call.args[0]) if call.args and isinstance(call.args[0], ast.Name | ast.Attribute) else ""
    last = last_line(call)
    reads = [n.lineno for n in fn.names if n.id == handle and isinstance(n.ctx, ast.Load) and n.lineno > last]
    if not handle or not buffer or not reads:
        return None
    sends = "send" in short_name(call.func).lower()
    uses: list[ast.Name | ast.Attribute] = [*fn.names, *fn.attributes]
    for node in sorted(uses, key=lambda n: n.lineno):
        if not last < node.lineno < min(reads) or dotted(node) != buffer or on_different_branches(call, node):
            continue
        if isinstance(node.ctx, ast.Store):
            # From here on the name stands for another tensor.
            return None if not isinstance(parent(node), ast.AugAssign) else (node, min(reads))
        if (_changes(node) if sends else _reads(node)) and not _in_message(node, fn, facts):
            return node, min(reads)
    return None


def _changes(node: ast.AST) -> bool:
    """Whether a tensor is changed in place here."""
    up = parent(node)
    if isinstance(up, ast.Subscript) and up.value is node:
        return isinstance(up.ctx, ast.Store)
    called = isinstance(up, ast.Attribute) and isinstance(parent(up), ast.Call)
    return called and up.attr.endswith("_") and not up.attr.endswith("__")  # type: ignore[union-attr]


def _reads(node: ast.AST) -> bool:
    """Whether what is in a tensor is read here, rather than its form."""
    up = parent(node)
    return not (isinstance(up, ast.Attribute) and up.attr in FORM) and not isinstance(up, ast.Delete)


def _in_message(node: ast.AST, fn: Function, facts: Facts) -> bool:
    """Whether this is an argument of another message."""
    around = enclosing(node, ast.Call)
    return isinstance(around, ast.Call) and (_begins(around, fn, facts) or short_name(around.func) in ("P2POp", "len"))


def _begins(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call starts a message or collective and returns a handle."""
    if short_name(call.func) in BEGIN and isinstance(call.func, ast.Attribute):
        owner = dotted(call.func.value)
        mpi = any(name.startswith("mpi4py") for name in facts.module.imports.values())
        return owner in ("dist", "torch.distributed") or (mpi and "comm" in owner.lower())
    return is_constant(keyword(call, "async_op"), True) and facts.sequences.collective(call, fn) is not None


def _is_dropped(node: ast.AST, fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether nothing in the file ever reads what an expression returns."""
    up = parent(node)
    if isinstance(up, ast.Expr):
        return True
    if depth > NOT_WAITED_FOR_DEPTH:
        return False
    if isinstance(up, ast.List | ast.Tuple | ast.Set | ast.ListComp | ast.IfExp):
        is_test = isinstance(up, ast.IfExp) and up.test is node
        return not is_test and _is_dropped(up, fn, facts, depth + 1)
    if isinstance(up, ast.Assign) and up.value is node:
        return all(_is_unread(target, fn, facts, depth + 1) for target in up.targets)
    if isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.attr in ADDS and node in up.args:
        return _is_unread(up.func.value, fn, facts, depth + 1)
    if isinstance(up, ast.Return):
        sites = facts.callers.get(id(fn), ())
        return bool(sites) and all(_is_dropped(event.effect.node, caller, facts, depth + 1) for caller, event in sites)
    return False


def _is_unread(target: ast.AST, fn: Function, facts: Facts, depth: int) -> bool:
    """Whether what a name or an attribute of the own object holds is never read."""
    if isinstance(target, ast.Name):
        if target.id in fn.globals or target.id in fn.nonlocals or fn is facts.module.top:
            return False
        inner = [f for f in facts.module.functions if fn in f.scopes()]
        if target.id in fn.parameters:
            return False
        reads: list[tuple[ast.AST, Function]] = [(n, f) for f in inner for n in f.names if n.id == target.id]
    elif isinstance(target, ast.Attribute) and fn.self_name and dotted(target.value) == fn.self_name:
        reads = [(n, f) for f in facts.module.functions for n in f.attributes if n.attr == target.attr]
    else:
        return False
    loads = [(n, f) for n, f in reads if isinstance(n.ctx, ast.Load)]  # type: ignore[attr-defined]
    return all(_is_filled(n) or _is_dropped(n, f, facts, depth) for n, f in loads)


def _is_filled(node: ast.AST) -> bool:
    """Whether this only adds to a container."""
    up = parent(node)
    return isinstance(up, ast.Attribute) and up.attr in ADDS and isinstance(parent(up), ast.Call)
