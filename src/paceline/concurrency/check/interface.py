"""The interface of a file: what its functions take, what blocks in them, and what they call, without any syntax."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.flow.walk import State
from paceline.concurrency.check.libraries.catalogue import LOCKS, RANK_DECORATORS
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.syntax.tree import last_line, lines_of, parent
from paceline.concurrency.check.values.calls import type_name
from paceline.concurrency.check.values.module import Module


class Call(NamedTuple):
    """A call of a function of this file (`:Pool.put`) or of another one (`store.Store.put`)."""

    target: str
    line: int
    column: int
    text: str
    awaited: bool
    held: tuple[tuple[str, int], ...] = ()  # the locks held, and the lines where they were taken
    dropped: bool = False  # nothing is done with what it returns


class Take(NamedTuple):
    """A lock that a function waits for."""

    lock: str
    line: int
    column: int
    held: tuple[tuple[str, int], ...] = ()


class Behaviour(NamedTuple):
    """What one function does to those that call it."""

    name: str
    asynchronous: bool
    takes: tuple[Take, ...]
    blocks: tuple[tuple[str, str, int], ...]  # function of a library, what it waits for, line
    calls: tuple[Call, ...]
    collectives: tuple[tuple[str, int], ...] = ()  # name and line
    one_rank: tuple[tuple[Call, str], ...] = ()  # calls that not every rank makes, and why
    only_awaited: bool = False  # a coroutine of which nothing runs unless its caller awaits it


class Interface(NamedTuple):
    """What one file says to the others."""

    behaviours: tuple[Behaviour, ...] = ()
    bases: dict[str, list[str]] = {}  # noqa: RUF012 - never changed: the interface of a file that says nothing
    locks: tuple[str, ...] = ()  # `Pool._lock`, `LOCK`: the locks that are seen to be created
    imports: dict[str, str] = {}  # noqa: RUF012


# Called once by each process, behind a test of whether that has happened: not followed into other files.
_ONCE = {"init_process_group", "init_device_mesh", "new_group", "new_subgroups", "DistributedDataParallel"}


def read_interface(row: Any) -> Interface:
    """An interface as JSON has it."""
    behaviours = tuple(
        Behaviour(
            name,
            asynchronous,
            tuple(Take(*t) for t in takes),
            blocks,
            tuple(Call(*c) for c in calls),
            names,
            tuple((Call(*call), why) for call, why in one_rank),
            only_awaited,
        )
        for name, asynchronous, takes, blocks, calls, names, one_rank, only_awaited in _tuples(row[0])
    )
    return Interface(behaviours, row[1], tuple(row[2]), row[3])


def _tuples(row: Any) -> Any:
    """Tuples in place of the lists that JSON has for them."""
    return tuple(map(_tuples, row)) if isinstance(row, list) else row


def interface_of(facts: Facts) -> Interface:
    """The interface of a file, from its facts."""
    module = facts.module
    behaviours = tuple(b for fn in module.functions if (b := _behaviour(fn, facts)) is not None)
    bases = {name: cls.bases for name, cls in module.classes.items() if cls.bases}
    return Interface(behaviours, bases, tuple(sorted(_locks(module))), dict(module.imports))


def _behaviour(fn: Function, facts: Facts) -> Behaviour | None:
    """What a function does; None when that is nothing that its callers need to know."""
    takes: dict[Take, None] = {}
    calls: dict[Call, None] = {}
    for effect, locks_held in facts.events(fn):
        at = effect.node
        if effect.kind == "take" and effect.resource is not None and _counts(effect.resource):
            takes[Take(effect.resource.id, at.lineno, at.col_offset + 1, _held(locks_held))] = None
        elif effect.kind == "call":
            target = _target(effect.callee, at, fn, facts.module)
            if target:
                awaited = isinstance(parent(at), ast.Await)
                dropped = isinstance(parent(at), ast.Expr) and not effect.perhaps
                call = Call(target, at.lineno, at.col_offset + 1, text_of(at), awaited, _held(locks_held), dropped)
                calls[call] = None
    blocks = tuple((name, block.waits, block.steps[-1][1].lineno) for name, block in facts.own_blocks(fn).items())
    collectives = tuple((name, line) for name, line in facts.sequences.own(fn) if name not in _ONCE)
    if not takes and not calls and not blocks and not collectives and not fn.asynchronous:
        return None
    one_rank = tuple(_on_one_rank(fn, list(calls), facts)) if calls else ()
    done = (tuple(takes), blocks, tuple(calls), collectives, one_rank)
    return Behaviour(fn.qualname, fn.asynchronous, *done, fn.only_awaited)


def _on_one_rank(fn: Function, calls: list[Call], facts: Facts) -> Iterator[tuple[Call, str]]:
    """The calls of other files that one side of a test of the rank makes, and the rest of the function does not."""
    often = Counter(call.target for call in calls)
    outside = [call for call in calls if not call.target.startswith(":") and often[call.target] == 1]
    if outside and fn.decorated(*RANK_DECORATORS):
        yield from ((call, f"{fn.qualname} runs on one rank only") for call in outside)
    for test in fn.tests if outside else ():
        conditions = facts.sequences.conditions(test.test, fn) if isinstance(test, ast.If) else []
        if len(conditions) != 1 or conditions[0].local or conditions[0].group or not isinstance(test, ast.If):
            continue
        why = f"`if {ast.unparse(test.test)}` depends on the rank"
        sides = [lines_of(side) for side in (test.body, test.orelse) if side]
        if not test.orelse and isinstance(test.body[-1], ast.Return) and parent(test) is fn.node:
            sides.append(range(last_line(test) + 1, last_line(fn.body) + 1))
        yield from ((call, why) for side in sides for call in outside if call.line in side)


def _counts(resource: Resource) -> bool:
    return resource.kind in LOCKS and "Semaphore" not in resource.kind and not resource.one_of_several


def _held(state: State) -> tuple[tuple[str, int], ...]:
    return tuple((h.resource.id, h.line) for h in state if h.resource.kind in LOCKS)


def _target(callee: Function | None, node: ast.expr, fn: Function, module: Module) -> str:
    """What a call runs; empty for a built-in, the standard library and what is not known."""
    if callee is not None:
        return "" if callee.generator or callee is fn else f":{callee.qualname}"
    if not isinstance(node, ast.Call):
        return ""
    name = _imported(module.canonical(node.func), node.func, module)
    if not name and isinstance(node.func, ast.Attribute):
        owner = type_name(node.func.value, fn, module)
        name = f"{owner}.{node.func.attr}" if owner else ""
    return "" if name.partition(".")[0] in sys.stdlib_module_names else name


def _imported(name: str, node: ast.expr, module: Module) -> str:
    """A canonical name if its head is imported."""
    while isinstance(node, ast.Attribute):
        node = node.value
    plain = isinstance(node, ast.Name) and node.id in module.imports and "(" not in name and "[" not in name
    return name if plain else ""


def _locks(module: Module) -> set[str]:
    """The attributes and globals that are locks for certain."""
    locks = {name for name, value in module.top.bound.items() if _makes_lock(value, module.top, module)}
    for cls in module.classes.values():
        for attribute, values in cls.values.items():
            if any(_makes_lock(value, fn, module) for value, fn in values):
                locks.add(f"{cls.name}.{attribute}")
    return locks


def _makes_lock(value: ast.expr, fn: Function, module: Module) -> bool:
    construction = module.constructed(value, fn)
    return construction is not None and construction[0] in LOCKS
