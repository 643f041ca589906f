"""The control-flow graph against CPython itself: every line that runs is reached, in an order that the graph allows."""

from __future__ import annotations

import ast
import sys
from itertools import groupby
from types import FrameType
from typing import Any

import pytest

from paceline.concurrency.check.syntax.graph import Node, build

PROGRAMS = {
    "finally on every way out": """
def f(x):
    for i in range(3):
        try:
            if x == 0:
                return 1
            if x == 1:
                break
            if x == 2:
                continue
            if x == 3:
                raise ValueError
            i += 1
        finally:
            x += 0
    else:
        x = 9
    return x
""",
    "handlers and else": """
def f(x):
    try:
        y = [1, 2][x]
    except IndexError:
        y = 3
    except TypeError:
        raise
    else:
        y = 4
    finally:
        x = 5
    return y
""",
    "with, that may swallow": """
from contextlib import suppress
def f(x):
    with suppress(ValueError):
        if x > 1:
            raise ValueError
        x = 2
    while True:
        x += 1
        if x > 3:
            break
    return x
""",
    "match and booleans": """
def f(x):
    match x:
        case 0:
            y = 0
        case 1 | 2 if x > 1:
            y = 1
        case _:
            y = 2
    if (y and x) or not y:
        return 1
    while x and y:
        x -= 1
    else:
        y = 0
    return y
""",
    "nested finally": """
def f(x):
    try:
        try:
            if x:
                return [x][x]
        finally:
            for i in (1, 2):
                if i == x:
                    continue
                x = x
    except IndexError:
        x = 7
    finally:
        x = x
    return x
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_step_that_python_takes_is_an_edge(name: str) -> None:
    tree = ast.parse(PROGRAMS[name])
    function = tree.body[-1]
    assert isinstance(function, ast.FunctionDef)
    graph = build(function.body, function.lineno)
    space: dict[str, Any] = {}
    exec(compile(tree, name, "exec"), space)
    for argument in range(5):
        known = {node.line for node in graph.nodes}  # `try:` and `else:` are no steps
        lines = [line for line, _ in groupby(line for line in _lines(space["f"], argument) if line in known)]
        assert len(lines) > 2
        assert _walks(graph.entry, lines), (argument, lines)


def _lines(function: Any, argument: int) -> list[int]:
    """The lines that a call runs, as CPython says."""
    seen: list[int] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not function.__code__:
            return None
        if event == "line":
            seen.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(argument)
    except (ValueError, IndexError, TypeError):
        pass
    finally:
        sys.settrace(before)
    return seen


def _walks(entry: Node, lines: list[int]) -> bool:
    """Whether some path through the graph visits these lines in this order; steps of other lines may lie between."""
    at = _until(entry, lines[0])
    for line in lines[1:]:
        following = {
            id(n): n for node in at for s in (*node.following(), *filter(None, [node.raises])) for n in _until(s, line)
        }
        at = list(following.values())
    return bool(at)


def _until(start: Node, line: int) -> list[Node]:
    """The first nodes of that line on every way from here, through at most a few nodes of other lines."""
    found, todo, seen = [], [(start, 0)], set()
    while todo:
        node, far = todo.pop()
        if id(node) in seen or far > 6:
            continue
        seen.add(id(node))
        if node.line == line:
            found.append(node)
        todo += [(s, far + 1) for s in (*node.following(), *filter(None, [node.raises]))]
    return found
