"""A message that no rank receives, or that no rank sends, in the order in which the ranks come to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.ranks.exchanges import Exchanges, is_message
from paceline.concurrency.check.ranks.messages import ANY, WORLDS, Operation, Stuck, World
from paceline.concurrency.check.ranks.traces import Impossible, Trace, Undecided
from paceline.concurrency.check.reporting.findings import Step
from paceline.concurrency.check.rules.collectives import both_send_first
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import enclosing


def find(facts: Facts) -> Iterator[Witness]:
    """Report programs of messages in which a rank waits for ever, whatever the number of ranks."""
    module = facts.module
    functions = [fn for fn in module.functions if any(is_message(call, module) for call in fn.calls)]
    if not functions:
        return
    lines = {call.lineno for found in both_send_first.find(facts) for call in (found.at, found.terms["two"])}
    settled: set[int] = set()
    exchanges = Exchanges(module, facts.sequences)
    for fn in _outermost_first(functions, facts):
        if id(fn) in settled or not _by_all(fn, facts):
            continue
        worlds = {size: outcome for size in WORLDS if (outcome := _played(fn, size, facts, exchanges)) is not None}
        if not worlds:
            continue
        settled |= {id(each) for each in _reached(fn, facts)}
        if all(stuck for stuck, _ in worlds.values()):  # a program for two ranks may leave the others of a larger world
            stuck, case = worlds[max(worlds)]
            if not lines & {s.operation.line for s in stuck}:
                yield _report(fn, stuck[0], max(worlds), case)


def _outermost_first(functions: list[Function], facts: Facts) -> list[Function]:
    """The functions with messages and their callers, callers first."""
    distances: dict[int, tuple[int, Function]] = {}
    todo = [(fn, 0) for fn in functions]
    while todo:
        fn, far = todo.pop()
        if far > DEPTH or distances.get(id(fn), (-1, fn))[0] >= far:
            continue
        distances[id(fn)] = (far, fn)
        todo += [(caller, far + 1) for caller, _ in facts.callers.get(id(fn), ()) if caller is not fn]
    return [fn for far, fn in sorted(distances.values(), key=lambda pair: (-pair[0], pair[1].line))]


def _by_all(fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether every rank calls a function: no caller in the file does so on one side of a test of the rank."""
    for caller, event in facts.callers.get(id(fn), ()) if depth < DEPTH else ():
        at: ast.AST | None = enclosing(event.effect.node, ast.If)
        while isinstance(at, ast.If):
            if facts.sequences.conditions(at.test, caller):
                return False
            at = enclosing(at, ast.If)
        if caller is not fn and not _by_all(caller, facts, depth + 1):
            return False
    return True


DEPTH = 5


def _reached(fn: Function, facts: Facts) -> list[Function]:
    functions, todo = list[Function](), [fn]
    while todo:
        each = todo.pop()
        if each not in functions:
            functions.append(each)
            todo += [c for call in each.calls if (c := facts.module.callee(call, each)) is not None]
    return functions


def _played(fn: Function, size: int, facts: Facts, exchanges: Exchanges) -> tuple[list[Stuck], str] | None:
    """The ranks of a world that wait for ever, and in which case only; None where it cannot be followed."""
    chosen = dict[str, bool]()
    followed = _followed(fn, size, facts, exchanges, chosen)
    if followed is None:
        return None
    traces, asks = followed
    kinds = {op.kind for trace in traces for op in trace}
    if not {"send", "receive"} <= kinds:
        return None
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


def _report(fn: Function, stuck: Stuck, size: int, case: str) -> Witness:
    operation, other = stuck.operation, stuck.other
    peer = f"rank {operation.peer}" if operation.peer != ANY else "every other rank"
    if operation.peer == stuck.rank:
        does = "which is the rank itself"
    elif operation.peer == size or (operation.kind == "send" and operation.peer < 0):
        does = "which does not exist"
    elif other is None:
        does = f"and {peer} has come to its end"
    else:
        does = f"and {peer} {_named(other)}"
    steps = [Step(f"rank {stuck.rank}", operation.line, _named(operation).rpartition(" (")[0])]
    if other is not None:
        steps.append(Step(peer, other.line, _named(other).rpartition(" (")[0]))
    return Witness(
        ast.Pass(lineno=operation.line, col_offset=0),
        fn,
        confidence=0.6 if case else 0.8,
        story=steps,
        size=size,
        rank=stuck.rank,
        operation=operation,
        named=_named(operation),
        does=does,
        peer=peer,
        when=f", {case}" if case else "",
    )
