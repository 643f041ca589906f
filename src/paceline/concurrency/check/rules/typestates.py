"""Typestates: what has to be done with an object before its function leaves it.

    made ──opens──► open ──owes──► owed ──closes──► done
                                    │
                                    └── a breach: the function raises or returns, or makes a call that must come later

A function names an object, and calls move it from state to state along the function's control-flow graph, as in Strom
and Yemini's typestates. The walk visits every step once for the one state that matters, *owed*: the first step on a
way to a breach is the witness. An object that escapes (it is returned, stored, given to others) may be closed by
others, and is not followed. What the calls are called is data, in the rows of the checker and of a user's project.

A call is named by

    ourlib.Pool.lease       a function, or a method of an object whose class is known
    Queue.get               a method of what the checker knows as a queue, a lock, a process, ...
    Popen(stdin=PIPE)       the construction of such an object, with an argument
    .stdin.write            a method of the open object itself
    *.acquire*              any method that is called so; `!` before it excludes what it names
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from paceline.concurrency.check.flow.duties import Duty, Skipped, one_of
from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.libraries.catalogue import CONSTRUCTORS, LOCKS
from paceline.concurrency.check.rules.rule import Witness, in_tuples
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, keyword, parent, short_name, user_of
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.values.calls import method_name

#: The forms of a breach, and the terms that their sentences may name.
FORMS = ("raised", "left", "early")
TERMS = {"at", "fn", "opens", "owed", "closes", "closing", "step", "of"}
_KINDS = frozenset(CONSTRUCTORS.values())
_CONDITIONS = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.IfExp, ast.Lambda, ast.FunctionDef, ast.ExceptHandler)


class Automaton(NamedTuple):
    """A duty: the calls that open an object, oblige, and close it, and what must not come while it is owed."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    owes: tuple[str, ...] = ()  # calls with the open object after which it is owed; without any it is at once
    breach: tuple[str, ...] = ("raise", "return")  # or calls
    proven: bool = False  # only where the function itself closes it later, whatever happens: that proves the duty
    kept: bool = False  # only the result of the call is the object, where a name keeps it
    once: bool = False  # not in a loop
    at: str = "opens"  # where it is reported: where it is opened, or at the `breach`


class Opened(NamedTuple):
    """An object, by the call that opens it: the result that a name keeps, or else what the call is a method of."""

    call: ast.Call
    name: str
    owner: str

    def is_named(self, node: ast.AST) -> bool:
        """Whether an expression is the object."""
        return dotted(node) == (self.name or self.owner)


def duties(rows: Iterable[Mapping[str, Any]]) -> tuple[Callable[[Facts], Iterator[Witness]], ...]:
    """What finds the breaches of the duties in a rule's row."""
    automata = [Automaton(**in_tuples(row)) for row in rows]
    return (partial(breaches, automata),) if automata else ()


def breaches(automata: Sequence[Automaton], facts: Facts) -> Iterator[Witness]:
    """The ways on which a function leaves an object that it has opened."""
    openings = [name[2:] for automaton in automata for name in automaton.opens if name.startswith("*.")]
    for fn in facts.module.functions:
        if any(_fits(fn.name, name) for name in openings):
            continue  # it is itself called like what opens an object, and leaves it open for its caller
        for automaton in automata:
            for opened in _opened(automaton, fn, facts) if fn is not facts.module.top or not automaton.proven else ():
                yield from _breaches(automaton, opened, fn, facts)


def _opened(automaton: Automaton, fn: Function, facts: Facts) -> Iterator[Opened]:
    """The objects that a function opens and keeps to itself."""
    for call in fn.calls:
        if not _is_any(call, automaton.opens, fn, facts):
            continue
        # In a loop the next turn may close what this one opened.
        if automaton.once and in_loop(call, fn):
            continue
        up = user_of(call)
        owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if isinstance(up, ast.Expr) and not automaton.kept:
            yield Opened(call, "", owner)
        elif isinstance(up, ast.Assign) and len(up.targets) == 1 and isinstance(up.targets[0], ast.Name):
            yield Opened(call, up.targets[0].id, owner)


def _breaches(automaton: Automaton, opened: Opened, fn: Function, facts: Facts) -> Iterator[Witness]:
    closing = [call for call in fn.calls if _concerns(call, automaton.closes, opened, fn, facts)]
    if automaton.proven:
        closing = [call for call in closing if call.lineno > opened.call.lineno]
        # A function that closes the object on a condition says that it is not always to be closed.
        if not closing or _is_conditional(closing[0], fn):
            return
    elif _escapes(opened, automaton, fn, facts):
        return
    duty = Duty(fn, one_of(closing))
    obliging = [call for call in fn.calls if _concerns(call, automaton.owes, opened, fn, facts)]
    starts = duty.steps(one_of(obliging if automaton.owes else [opened.call]))
    calls = [call for call in fn.calls if _concerns(call, automaton.breach, opened, fn, facts)]
    # A wait with a timeout gives up, and leaves time to close the object after it.
    early = [call for call in calls if not has_timeout(call, short_name(call.func))]
    skipped = [Skipped(step, False) for step in duty.reached_after(starts, one_of(early))]
    kinds = {kind for kind, name in ((True, "raise"), (False, "return")) if name in automaton.breach}
    ways = sorted(duty.left_after(starts, at_end=not automaton.proven), key=lambda way: (way.raised, way.node.line))
    for way in [*skipped, *(way for way in ways if way.raised in kinds)][:1]:
        form = "early" if skipped else "raised" if way.raised else "left"
        at = next(c for c in early if c.lineno >= way.node.line) if skipped else opened.call
        closes = closing[0] if closing else None
        yield Witness(
            way.node.syntax or at if automaton.at == "breach" else at,
            fn,
            form,
            opens=opened.call,
            closes=closes,
            closing=text_of(closes) if closes is not None else " or ".join(automaton.closes),
            step=way.node,
            owed=(obliging or [opened.call])[0],
            of=_named(opened, fn, facts),
        )


def _named(opened: Opened, fn: Function, facts: Facts) -> str:
    """What the object is of: the queue, the pool, or else its own name."""
    function = opened.call.func
    owner = facts.module.resource(function.value, fn) if isinstance(function, ast.Attribute) else None
    if owner is not None and owner.sure:
        return owner.id
    return opened.name if opened.owner.partition(".")[0] in facts.module.imports else opened.owner or opened.name


def _concerns(call: ast.Call, patterns: tuple[str, ...], opened: Opened, fn: Function, facts: Facts) -> bool:
    """Whether a call is one of these, and of the object."""
    if call is opened.call:
        return False
    own = [pattern for pattern in patterns if pattern.startswith(".")]
    if any(dotted(call.func) == (opened.name or opened.owner) + pattern for pattern in own):
        return True
    others = tuple(pattern for pattern in patterns if "." in pattern and not pattern.startswith("."))
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_argument = bool(opened.name) and any(map(opened.is_named, [*call.args, *(k.value for k in call.keywords)]))
    if opened.name and not is_argument:
        return receiver is not None and opened.is_named(receiver) and _is_any(call, others, fn, facts)
    of_others = any(p.partition(".")[0] in ("*", *_KINDS) for p in others)  # any method that is called so
    same = receiver is None or dotted(receiver) == opened.owner or not of_others
    return same and _is_any(call, others, fn, facts)


def _is_any(call: ast.Call, patterns: Iterable[str], fn: Function, facts: Facts) -> bool:
    """Whether a call runs what one of these names, and none of those that are excluded."""
    if not any(_is(call, pattern, fn, facts) for pattern in patterns if not pattern.startswith("!")):
        return False
    return not any(_is(call, pattern[1:], fn, facts) for pattern in patterns if pattern.startswith("!"))


def _is(call: ast.Call, pattern: str, fn: Function, facts: Facts) -> bool:
    name, _, having = pattern.rstrip(")").partition("(")
    owner, _, method = name.rpartition(".")
    word, _, value = having.partition("=")
    if having and not may_be(keyword(call, word), value, fn):
        return False
    if owner == "*":
        return (
            isinstance(call.func, ast.Attribute)
            and _fits(call.func.attr, method)
            and not ((lock := facts.module.resource(call.func.value, fn)) is not None and lock.kind in LOCKS)
        )
    if name in _KINDS:
        return facts.module.constructed_kind(call, fn) == name
    if short_name(call.func) != method and not isinstance(call.func, ast.Name):
        return False
    if owner in _KINDS:
        resource = facts.module.resource(call.func.value, fn) if isinstance(call.func, ast.Attribute) else None
        return resource is not None and resource.kind == owner and not resource.one_of_several
    return name in _names(call, fn, facts) or any(name.endswith(f".{own}") for own in _own_names(call, fn, facts))


def may_be(argument: ast.expr | None, value: str, fn: Function) -> bool:
    """Whether an argument is this value, as `PIPE`, or a variable or a choice that may be."""
    todo, visited = [argument], set[str]()
    while todo:
        node = todo.pop()
        if isinstance(node, ast.IfExp):
            todo += [node.body, node.orelse]
        elif isinstance(node, ast.Name) and node.id != value:
            # A variable may be chosen from itself: `sink = sink if verbose else PIPE`.
            todo += [
                scope.bound[node.id] for scope in fn.scopes() if node.id in scope.bound and node.id not in visited
            ][:1]
            visited.add(node.id)
        elif node is not None and short_name(node) == value:
            return True
    return False


def _names(call: ast.Call, fn: Function, facts: Facts) -> set[str]:
    """What a call of a library runs, by its canonical names."""
    return {method_name(call.func, fn, facts.module), facts.module.canonical(call.func)}


def _own_names(call: ast.Call, fn: Function, facts: Facts) -> Iterator[str]:
    """What a call of the program's own code runs, by its name and that of its class."""
    function = facts.module.function_named(call.func, fn)
    if function is not None:
        yield f"{function.cls.name}.{function.name}" if function.cls is not None else function.name


def _fits(name: str, pattern: str) -> bool:
    """Whether a name is one, or begins with one, whatever its case and underscores around it."""
    name = name.lower().strip("_")
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _is_conditional(closes: ast.Call, fn: Function) -> bool:
    """Whether closing depends on a condition, is done on a failure only, or in a function inside this one."""
    at = parent(closes)
    while at is not None and at is not fn.node:
        if isinstance(at, _CONDITIONS):
            return True
        at = parent(at)
    return False


def _escapes(opened: Opened, automaton: Automaton, fn: Function, facts: Facts) -> bool:
    """Whether others may get the result of a call: it is kept elsewhere, returned, captured or passed on."""
    if not opened.name:
        return False
    entered = {dotted(item.context_expr).partition(".")[0] for block in fn.withs for item in block.items}
    if opened.name in fn.globals | fn.nonlocals | entered:
        return True
    patterns = (*automaton.closes, *automaton.owes, *automaton.breach)
    for scope in (fn, *(f for f in facts.module.functions if fn in f.scopes() and f is not fn)):
        for use in (n for n in scope.names if n.id == opened.name and isinstance(n.ctx, ast.Load)):
            up = parent(use)
            call = parent(up) if isinstance(up, ast.keyword) else up
            known = isinstance(call, ast.Call) and _concerns(call, patterns, opened, scope, facts)
            looked_at = isinstance(up, ast.Attribute | ast.Compare | ast.UnaryOp | ast.If | ast.While | ast.BoolOp)
            # A function inside this one, or any use that is not known, may keep the object or close it.
            if scope is not fn or not (known or looked_at):
                return True
    return False
