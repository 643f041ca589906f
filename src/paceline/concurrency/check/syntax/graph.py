"""The control-flow graph of one function.

    lock.acquire()        [step] ──────────┐ raises
    try:                     │             ▼
        work()            [step] ─raises─► [finally: release] ─► raise exit
    finally:                 │
        lock.release()    [finally: release] ─► return exit

The graph is built from its end: every statement gets the node that follows it, so a `finally` is simply built once for
each place that it leads to (what follows, an exception, a return, a break, a continue), and so is the end of a `with`.
The head of a loop is a node of its own that knows what comes after the loop, so that a walk can bound it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from paceline.concurrency.check import libraries
from paceline.concurrency.check.syntax.tree import short_name

Statements = list[ast.stmt]
LARGEST = 20_000  # nodes of one function; a `finally` inside a `finally` is copied for each way out of both


class TooLarge(Exception):
    """The graph of a function has too many nodes to be walked."""


# Calls that are assumed never to raise; an exception edge out of each would bury the relevant ones.
HARMLESS = libraries.names("functions that do not raise")


@dataclass(eq=False, slots=True)
class Node:
    """One step: what is evaluated, and the steps that may follow."""

    kind: str  # step, test, enter, leave, handler, return, raise, head, end
    syntax: ast.AST | None
    line: int
    next: list[Node] = field(default_factory=list)
    otherwise: Node | None = None  # of a test: the step when it is false
    raises: Node | None = None
    exit: Node | None = None  # of the head of a loop: the step after the loop

    def following(self) -> Iterator[Node]:
        """The steps that may follow without an exception."""
        yield from self.next
        if self.otherwise is not None:
            yield self.otherwise


@dataclass(frozen=True, slots=True)
class _Exits:
    """Where each way out of a block leads."""

    raises: Node
    returns: Node
    breaks: Node | None = None
    continues: Node | None = None
    caught: bool = False  # inside a `try`: then its author expects anything in it to raise


@dataclass(eq=False)
class Graph:
    """A function's control flow."""

    entry: Node
    end: Node  # normal exit
    failure: Node  # exit by an exception
    nodes: list[Node]


def build(body: Statements, line: int = 0) -> Graph:
    """Build the graph of the body of a function or module."""
    return _Builder().graph(body, line)


class _Builder:
    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def graph(self, body: Statements, line: int) -> Graph:
        """Build the whole graph."""
        last = body[-1].end_lineno or line if body else line
        end, failure = self.node("end", None, last), self.node("end", None, last)
        entry = self.block(body, end, _Exits(failure, end))
        return Graph(entry, end, failure, self.nodes)

    def node(self, kind: str, syntax: ast.AST | None, line: int, *following: Node, raises: Node | None = None) -> Node:
        """Add a node."""
        if len(self.nodes) >= LARGEST:
            raise TooLarge
        new_node = Node(kind, syntax, line, list(following), None, raises)
        self.nodes.append(new_node)
        return new_node

    def block(self, body: Statements, follow: Node, exits: _Exits) -> Node:
        """Build statements from last to first; returns the node of the first one."""
        for statement in reversed(body):
            build_one = _BUILDERS.get(type(statement))
            if build_one is None:
                follow = self.simple(statement, follow, exits)
            else:
                follow = build_one(self, statement, follow, exits)
        return follow

    def simple(self, statement: ast.stmt, follow: Node, exits: _Exits) -> Node:
        """Build a statement without control flow of its own."""
        raises = exits.raises if exits.caught or may_raise(statement) else None
        return self.node("step", statement, statement.lineno, follow, raises=raises)

    # -- ways out

    def return_(self, statement: ast.Return, follow: Node, exits: _Exits) -> Node:
        value = statement.value
        raises = exits.raises if value is not None and (exits.caught or may_raise(value)) else None
        return self.node("return", statement, statement.lineno, exits.returns, raises=raises)

    def raise_(self, statement: ast.Raise, follow: Node, exits: _Exits) -> Node:
        return self.node("raise", statement, statement.lineno, exits.raises)

    def break_(self, statement: ast.Break, follow: Node, exits: _Exits) -> Node:
        return self.node("step", None, statement.lineno, exits.breaks or exits.raises)

    def continue_(self, statement: ast.Continue, follow: Node, exits: _Exits) -> Node:
        return self.node("step", None, statement.lineno, exits.continues or exits.raises)

    # -- branches

    def test(self, test: ast.expr, yes: Node, no: Node, exits: _Exits) -> Node:
        """Build a test. Operands of `and`, `or` and `not` become steps of their own, since not all are evaluated."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.test(test.operand, no, yes, exits)
        if isinstance(test, ast.BoolOp):
            entry = self.test(test.values[-1], yes, no, exits)
            for value in reversed(test.values[:-1]):
                both = isinstance(test.op, ast.And)
                entry = self.test(value, entry if both else yes, no if both else entry, exits)
            return entry
        node = self.node("test", test, test.lineno, yes, raises=exits.raises if may_raise(test) else None)
        node.otherwise = no
        return node

    def if_(self, statement: ast.If, follow: Node, exits: _Exits) -> Node:
        yes = self.block(statement.body, follow, exits)
        no = self.block(statement.orelse, follow, exits)
        return self.test(statement.test, yes, no, exits)

    def match(self, statement: ast.Match, follow: Node, exits: _Exits) -> Node:
        """Build the cases from last to first, each falling through to the next."""
        no = follow
        for case in reversed(statement.cases):
            yes = self.block(case.body, follow, exits)
            if case.guard is not None:
                yes = self.test(case.guard, yes, no, exits)
            elif isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                no = yes
                continue
            node = self.node("test", None, case.pattern.lineno, yes)
            node.otherwise = no
            no = node
        raises = exits.raises if may_raise(statement.subject) else None
        return self.node("step", statement.subject, statement.lineno, no, raises=raises)

    # -- loops

    def while_(self, statement: ast.While, follow: Node, exits: _Exits) -> Node:
        """Build a loop; `while True` is left only by a break, return or exception."""
        head = self.node("head", None, statement.lineno)
        out = self.block(statement.orelse, follow, exits)
        head.exit = out
        body = self.block(statement.body, head, replace(exits, breaks=follow, continues=head))
        if isinstance(statement.test, ast.Constant) and statement.test.value:
            head.exit = follow
            head.next.append(body)
        else:
            head.next.append(self.test(statement.test, body, out, exits))
        return head

    def for_(self, statement: ast.For | ast.AsyncFor, follow: Node, exits: _Exits) -> Node:
        """Build a loop: its head is reached before every iteration."""
        head = self.node("head", None, statement.lineno)
        out = self.block(statement.orelse, follow, exits)
        head.exit = out
        body = self.block(statement.body, head, replace(exits, breaks=follow, continues=head))
        turn = self.node("test", None, statement.lineno, body)
        turn.otherwise = out
        head.next.append(turn)
        asynchronous = isinstance(statement, ast.AsyncFor)
        raises = exits.raises if asynchronous or may_raise(statement.iter) else None
        return self.node("step", statement.iter, statement.lineno, head, raises=raises)

    # -- with and try: what runs on the way out

    def guarded(self, exits: _Exits, leave: Callable[[Node], Node]) -> _Exits:
        """The same exits, each through its own copy of the nodes that `leave` builds."""
        return _Exits(
            leave(exits.raises),
            leave(exits.returns),
            exits.breaks and leave(exits.breaks),
            exits.continues and leave(exits.continues),
            exits.caught,
        )

    def with_(self, statement: ast.With | ast.AsyncWith, follow: Node, exits: _Exits) -> Node:
        return self.with_items(statement, 0, follow, exits)

    def with_items(self, statement: ast.With | ast.AsyncWith, index: int, follow: Node, exits: _Exits) -> Node:
        """Build the items of a `with` from `index` on, and its body."""
        if index == len(statement.items):
            return self.block(statement.body, follow, exits)
        item = statement.items[index]
        line = item.context_expr.lineno
        leave = self.node("leave", item, line, follow)
        inner = self.guarded(exits, lambda target: self.node("leave", item, line, target))
        if _suppresses(item.context_expr):
            inner.raises.next.append(follow)
        body = self.with_items(statement, index + 1, leave, inner)
        asynchronous = isinstance(statement, ast.AsyncWith)
        raises = exits.raises if asynchronous or may_raise(item.context_expr) else None
        return self.node("enter", item, line, body, raises=raises)

    def try_(self, statement: ast.Try, follow: Node, exits: _Exits) -> Node:
        """Build handlers and body; a `finally` is copied for each way out."""
        if statement.finalbody:
            # An exception in the `finally` itself leaves it, and does not come back to it.
            outer = exits
            exits = self.guarded(outer, lambda target: self.block(statement.finalbody, target, outer))
            follow = self.block(statement.finalbody, follow, outer)
        inside = exits
        if statement.handlers:
            dispatch = self.node("step", None, 0)
            for handler in statement.handlers:
                caught = self.block(handler.body, follow, exits)
                dispatch.next.append(self.node("handler", handler, handler.lineno, caught))
            # An exception that no handler names goes on.
            if not any(catches_all(handler) for handler in statement.handlers):
                dispatch.next.append(exits.raises)
            inside = replace(exits, raises=dispatch, caught=True)
        after = self.block(statement.orelse, follow, exits)
        return self.block(statement.body, after, inside)


_BUILDERS: dict[type[ast.stmt], Callable[..., Node]] = {
    ast.Return: _Builder.return_,
    ast.Raise: _Builder.raise_,
    ast.Break: _Builder.break_,
    ast.Continue: _Builder.continue_,
    ast.If: _Builder.if_,
    ast.Match: _Builder.match,
    ast.While: _Builder.while_,
    ast.For: _Builder.for_,
    ast.AsyncFor: _Builder.for_,
    ast.With: _Builder.with_,
    ast.AsyncWith: _Builder.with_,
    ast.Try: _Builder.try_,
}
if hasattr(ast, "TryStar"):
    _BUILDERS[ast.TryStar] = _Builder.try_


def catches_all(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches every exception."""
    kind = handler.type
    if kind is None:
        return True
    names = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(n, ast.Name) and n.id in ("Exception", "BaseException") for n in names)


def _suppresses(expression: ast.expr) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else expression
    return short_name(called) == "suppress"


def expressions(node: Node) -> ast.AST | None:
    """The syntax that this step evaluates, without the bodies of compound statements."""
    syntax = node.syntax
    if isinstance(syntax, ast.withitem):
        return syntax.context_expr if node.kind == "enter" else None
    if isinstance(syntax, ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return None
    return syntax


def _may_look_up(call: ast.Call) -> bool:
    """Whether this asks a dictionary for a key that it need not have: `record.get("id")`."""
    named = bool(call.args) and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    return named and isinstance(call.func, ast.Attribute) and call.func.attr == "get"


def may_raise(syntax: ast.AST) -> bool:
    """Whether evaluating this may raise: it calls, awaits, yields, asserts or imports something."""
    todo: list[ast.AST] = [syntax]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call):
            if short_name(node.func) not in HARMLESS and not _may_look_up(node):
                return True
        elif isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.Assert | ast.Import | ast.ImportFrom):
            return True
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        todo.extend(ast.iter_child_nodes(node))
    return False
