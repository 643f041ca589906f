"""What a function owes to other threads on every path: to mark an item as done, to set an event, to meet at a barrier.

A step that does it *meets* the duty. The paths that do not are found by walking the control-flow graph backwards from
its ends, without passing a step that meets it: linear in the size of the graph, whatever loops and handlers it has.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.graph import Graph, Node, expressions, may_raise


class Skipped(NamedTuple):
    """A step from which the duty is not met any more."""

    node: Node
    raised: bool  # because the step raises; else because of the way that it continues
    caught: bool = False  # and the function itself catches that


class Duty:
    """The steps of a function that meet a duty."""

    def __init__(self, fn: Function, meets: Callable[[ast.Call], bool]) -> None:
        self.graph: Graph | None = fn.graph
        self._nodes = self.graph.nodes if self.graph else []
        #: The calls of each step, in no particular order.
        self._calls = {id(node): list(_calls(node)) for node in self._nodes}
        self._met = {id(node) for node in self.steps(meets)}
        self._before: dict[int, list[Node]] = {}
        for node in self._nodes:
            for after in node.following():
                self._before.setdefault(id(after), []).append(node)

    def steps(self, does: Callable[[ast.Call], bool]) -> list[Node]:
        """The steps with such a call."""
        return [node for node in self._nodes if any(map(does, self._calls[id(node)]))]

    def skipped_after(self, starts: list[Node]) -> Iterator[Skipped]:
        """The steps after one of these from which the duty is not met before the next of these, or before a failure."""
        if self.graph is None or not starts:
            return
        again = self._leading_to(starts)
        goes_on = self._leading_to([*starts, self.graph.end])
        fails = goes_on | self._leading_to([self.graph.failure])
        meets = self._meeting(starts)
        todo = [(after, True) for start in starts for after in start.following()]
        visited = {id(start) for start in starts}
        while todo:
            node, met = todo.pop()
            if id(node) in visited or id(node) in self._met:
                continue
            visited.add(id(node))
            if met and id(node) in again and id(node) not in meets:
                yield Skipped(node, False)
            elif id(node) in meets and node.raises is not None and id(node.raises) in fails:
                yield Skipped(node, True, id(node.raises) in goes_on)
            elif met and node.kind == "raise" and id(node) in fails and id(node) not in goes_on:
                yield Skipped(node, True)
            todo += [(after, id(node) in meets) for after in node.following()]

    def failed_in(self, starts: list[Node], calls: list[ast.Call]) -> Iterator[Skipped]:
        """The steps with one of these calls that raise while its arguments are computed: the duty is not met."""
        risky = {id(call) for call in calls if any(may_raise(argument) for argument in call.args)}
        again = self._leading_to(starts)
        for node in self.steps(lambda call: id(call) in risky):
            if node.raises is not None and id(node.raises) in again:
                yield Skipped(node, True, True)

    def left_after(self, starts: list[Node], at_end: bool = False) -> Iterator[Skipped]:
        """The steps after one of these on which the function returns, or raises, without having met the duty.

        `at_end` also counts the steps after which the body of the function is over.
        """
        if self.graph is None:
            return
        ends = self._leading_to([self.graph.end])
        fails = ends | self._leading_to([self.graph.failure])
        for node in self._unmet(_after(starts), starts):
            if node.raises is not None and id(node.raises) in fails:
                yield Skipped(node, True, id(node.raises) in ends)
            is_last = at_end and node.syntax is not None and self.graph.end in node.next
            if (node.kind == "return" or is_last) and id(node) in ends:
                yield Skipped(node, False)

    def reached_after(self, starts: list[Node], does: Callable[[ast.Call], bool]) -> Iterator[Node]:
        """The steps with such a call to which a way leads from one of these without having met the duty."""
        return (node for node in self._unmet(_after(starts)) if any(map(does, self._calls[id(node)])))

    def returns_without(self) -> list[Skipped]:
        """The returns that are reached from the beginning without having met the duty, where other ways meet it."""
        unmet = self._unmet([self.graph.entry]) if self.graph is not None and self._met else ()
        return sorted((Skipped(n, False) for n in unmet if n.kind == "return"), key=lambda skipped: skipped.node.line)

    def skipped_by_exceptions(self) -> Iterator[Skipped]:
        """The steps that are certain to lead to the duty unless they raise."""
        if self.graph is None:
            return
        avoids = self._leading_to([self.graph.end])
        fails = avoids | self._leading_to([self.graph.failure])
        meets = self._meeting([])
        for node in sorted(self._nodes, key=lambda n: n.line):
            # A step from which a way avoids the duty without an exception owes it no one.
            certain = any(id(after) in meets for after in node.following()) and id(node) not in avoids
            if certain and node.raises is not None and id(node) not in self._met and id(node.raises) in fails:
                yield Skipped(node, True, id(node.raises) in avoids)

    def _leading_to(self, ends: list[Node]) -> set[int]:
        """The steps from which one of these is reached without an exception and without meeting the duty."""
        return self._closure(ends, self._met)

    def _meeting(self, starts: list[Node]) -> set[int]:
        """The steps from which the duty may be met, before one of these."""
        return self._closure([n for n in self._nodes if id(n) in self._met], {id(start) for start in starts})

    def _unmet(self, first: list[Node], other_than: Iterable[Node] = ()) -> Iterator[Node]:
        """These steps and all to which ways lead from them on which the duty is not met, the nearest first."""
        todo, visited = list(first), self._met | {id(node) for node in other_than}
        for node in todo:
            if id(node) not in visited:
                visited.add(id(node))
                yield node
                todo += node.following()

    def _closure(self, ends: list[Node], through: set[int]) -> set[int]:
        """The steps that lead to one of these, not through others."""
        closure: set[int] = set()
        todo = list(ends)
        while todo:
            node = todo.pop()
            if id(node) not in closure:
                closure.add(id(node))
                todo += [b for b in self._before.get(id(node), ()) if id(b) not in through]
        return closure


def _after(starts: list[Node]) -> list[Node]:
    return [after for start in starts for after in start.following()]


def one_of(calls: Iterable[ast.Call]) -> Callable[[ast.Call], bool]:
    """Whether a call is one of these."""
    call_ids = {id(call) for call in calls}
    return lambda call: id(call) in call_ids


def _calls(node: Node) -> Iterator[ast.Call]:
    syntax = expressions(node)
    if syntax is not None:
        yield from (part for part in ast.walk(syntax) if isinstance(part, ast.Call))
