"""What a call gives to the parameters of the functions that it runs: at once, in a thread or task, or later.

`submit(work, job)` runs `work(job)`, `Thread(target=work, args=(job,))` and `Pool(initializer=work, initargs=(job,))`
do, and `map(work, jobs)` gives it the elements of `jobs`. Which calls those are is data.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import keyword, short_name
from paceline.concurrency.check.values.sources import Slot, Source

#: Calls that run another function -> the keyword and position of that function; its arguments follow it.
RUNS_LATER = libraries.table("calls that run a function with what follows it")
#: The same with a tuple of arguments -> the position of the function, and how far behind it the tuple is.
TAKES_ARGUMENTS = libraries.table("calls that run a function with a tuple")
#: What makes a pool -> the position of the function that each worker runs at first; a tuple of arguments follows it.
PREPARES = libraries.table("pools whose workers run a function at first")
#: Calls that run a function for each element of what follows it.
FOR_EACH = {"map", "imap", "imap_unordered", "map_async", "starmap", "starmap_async"}


class Argument(NamedTuple):
    """One value that is passed for a parameter."""

    value: ast.expr
    caller: Function
    site: ast.Call


class Binding(NamedTuple):
    """What a call gives to a parameter, or to a key of the parameter for further arguments."""

    fn: Function
    name: str  # with a star in front of the one that takes further arguments, and two of further named ones
    source: Source
    slot: Slot = None


#: The functions that an expression may run, each with whether its first parameter is bound to an object.
Runs = Callable[[ast.expr], list[tuple[Function, bool]]]


def bindings(call: ast.Call, caller: Function, runs: Runs) -> Iterator[Binding]:
    """What a call gives to the parameters of what it runs."""
    direct = runs(call.func)
    for fn, bound in direct:
        yield from _placed(fn, bound, call.args, [k for k in call.keywords if k.arg], caller)
    name = short_name(call.func)
    initializer, given = prepares(call)
    if initializer is not None:
        for fn, bound in runs(initializer):
            yield from _placed(fn, bound, _elements(given), [], caller)
    if direct:
        return
    if name in RUNS_LATER:
        word, position = RUNS_LATER[name]
        named = [k for k in call.keywords if k.arg not in (word, None)]
        yield from _later(keyword(call, word, position), call.args[position + 1 :], named, caller, runs)
    elif name in TAKES_ARGUMENTS:
        position, further = TAKES_ARGUMENTS[name]
        target = keyword(call, "target", position) or keyword(call, "func", position)
        also = keyword(call, "kwargs")
        pairs = zip(also.keys, also.values, strict=True) if isinstance(also, ast.Dict) else ()
        named = [ast.keyword(str(k.value), v) for k, v in pairs if isinstance(k, ast.Constant)]
        arguments = _elements(keyword(call, "args", position + further))
        yield from _later(target, arguments, named, caller, runs)
    elif name in FOR_EACH and call.args:
        each = [Source("element", value, caller) for value in call.args[1:]]
        for fn, bound in runs(call.args[0]):
            names = list(fn.parameters)[int(bound) :]
            if name.startswith("star"):
                yield from (Binding(fn, p, s._replace(take="part", slot=n)) for s in each for n, p in enumerate(names))
            else:
                yield from (Binding(fn, p, s) for p, s in zip(names, each, strict=False))


def prepares(call: ast.Call) -> tuple[ast.expr | None, ast.expr | None]:
    """What each worker of the pool that a call makes runs at first, and the tuple of its arguments."""
    position = PREPARES.get(short_name(call.func), len(call.args))
    return keyword(call, "initializer", position), keyword(call, "initargs", position + 1)


def _elements(node: ast.expr | None) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else []


def _later(
    target: ast.expr | None, rest: list[ast.expr], named: list[ast.keyword], caller: Function, runs: Runs
) -> Iterator[Binding]:
    """What a function gets that is run later."""
    for fn, bound in runs(target) if target is not None else ():
        yield from _placed(fn, bound, rest, named, caller)


def _placed(
    fn: Function, bound: bool, rest: list[ast.expr], named: list[ast.keyword], caller: Function
) -> Iterator[Binding]:
    """Arguments by position, then by name; what is left over goes to the parameters for further arguments."""
    names = list(fn.parameters)[int(bound) :]
    arguments = fn.node.args if not isinstance(fn.node, ast.Module) else None
    placed = names[: _places(fn) - int(bound)]
    for parameter, value in zip(placed, rest, strict=False):
        if isinstance(value, ast.Starred):
            break
        yield Binding(fn, parameter, Source("is", value, caller))
    for value in rest[len(placed) :] if fn.rest else ():
        is_starred = isinstance(value, ast.Starred)
        yield Binding(fn, f"*{fn.rest}", Source("element" if is_starred else "is", _bare(value), caller))
    for each in named:
        if each.arg in fn.parameters:
            yield Binding(fn, each.arg, Source("is", each.value, caller))
        elif arguments is not None and arguments.kwarg is not None:
            yield Binding(fn, f"**{arguments.kwarg.arg}", Source("is", each.value, caller), each.arg)


def _bare(value: ast.expr) -> ast.expr:
    return value.value if isinstance(value, ast.Starred) else value


def _places(fn: Function) -> int:
    """How many parameters a function has that are given by position alone or by either."""
    arguments = getattr(fn.node, "args", None)
    return (
        len(arguments.posonlyargs) + len(arguments.args) if isinstance(arguments, ast.arguments) else len(fn.parameters)
    )


def fields(call: ast.Call, cls: Class, caller: Function) -> Iterator[tuple[Class, str, Source]]:
    """What a call gives to the attributes of an object whose class declares them: of a data class, a named tuple."""
    declared = [(each, name) for each in reversed(cls.ancestry) for name in each.annotations]
    for (owner, name), value in zip(declared, call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        yield owner, name, Source("is", value, caller)
    by_name = {name: owner for owner, name in declared}
    for each in call.keywords:
        if each.arg in by_name:
            yield by_name[each.arg], each.arg, Source("is", each.value, caller)


def start_arguments(call: ast.Call, fn: Function) -> list[ast.expr]:
    """The arguments of a Process or Thread: `args=` and `kwargs=`, also where they name a tuple."""
    arguments: list[ast.expr] = []
    for name, position in (("args", 3), ("kwargs", 4)):
        container = keyword(call, name, position)
        if isinstance(container, ast.Name):
            container = fn.bound.get(container.id)
        if isinstance(container, ast.Tuple | ast.List):
            arguments += container.elts
        elif isinstance(container, ast.Dict):
            arguments += container.values
    return arguments
