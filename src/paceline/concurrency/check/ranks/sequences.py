"""The sequence of collectives that a function calls, as seen by the ranks on one side of a condition.

A body's sequence is a list of names; a block that every rank decides alike (a condition of the configuration, a loop)
becomes one item with a sequence of its own. Under an assumption ("the rank is 0") only the branch of each `if` that it
selects is read, and nothing after an early `return`. Two sides are compared by doing this twice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.flow.effects import reached, runs_now
from paceline.concurrency.check.flow.walk import Walker
from paceline.concurrency.check.libraries.catalogue import RANK_ZERO_FIRST
from paceline.concurrency.check.ranks.branches import Condition, condition, makes_own_group, otherwise
from paceline.concurrency.check.ranks.collectives import Collective, collective
from paceline.concurrency.check.ranks.items import (
    LEAVES,
    Item,
    flattened,
    left_by,
    moved,
    of_branch,
    only_in,
    relevant,
    without_end,
)
from paceline.concurrency.check.ranks.lengths import Lengths
from paceline.concurrency.check.ranks.origins import asks_for_ranks, asks_for_several, decides
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    around,
    contexts_around,
    deciding_operand,
    dotted,
    enclosing,
    last_line,
    lines_of,
    on_different_branches,
    short_name,
    statement_of,
)
from paceline.concurrency.check.values.module import Module

SKIPS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
MOST = 1_000  # operations kept of a function: those of two callees may double at each call


class Sequence(NamedTuple):
    """The collectives of a body, and how it ends."""

    items: tuple[Item, ...]
    exit: str  # how the body is certainly left: return, raise, break or continue; empty otherwise


Assumption = tuple[str, bool] | None  # the key of a condition, and its value


class Sequences:
    """The sequences of the functions of a file, each computed once."""

    def __init__(self, module: Module, walker: Walker) -> None:
        self.module, self.walker, self.lengths = module, walker, Lengths(module)
        self._whole: dict[int, Sequence] = {}
        self._found: dict[int, Collective | None] = {}
        self._index: dict[int, dict[int, list[tuple[ast.expr, Collective | None, Function | None]]]] = {}
        self._differences: dict[int, list[Difference]] = {}

    def whole(self, fn: Function) -> Sequence:
        """The sequence of a function without any assumption."""
        order = reached(fn, self.callees, self._whole)
        self._whole |= {id(each): Sequence((), "") for each in order}  # a cycle of calls adds nothing to itself
        for each in order:
            items, exit_kind = self.body(each.body, each, None)
            self._whole[id(each)] = Sequence(items[:MOST], exit_kind)
        return self._whole[id(fn)]

    def callees(self, fn: Function) -> list[Function]:
        """The functions of this file that a function calls, other than as a collective."""
        return [callee for calls in self.index(fn).values() for _, found, callee in calls if callee and found is None]

    def own(self, fn: Function) -> tuple[tuple[str, int], ...]:
        """The collectives of all ranks that a function calls itself: name and line."""
        collectives = (self.collective(call, fn) for call in fn.calls)
        return tuple((c.name, c.call.lineno) for c in collectives if c is not None and not c.group)

    def operations(self, fn: Function) -> list[Item]:
        """Every collective of a function, whatever it depends on."""
        return [i for item in self.whole(fn).items for i in flattened(item)]

    def collective(self, call: ast.Call, fn: Function) -> Collective | None:
        """The collective that a call is, cached."""
        if id(call) not in self._found:
            self._found[id(call)] = collective(call, fn, self.module)
        return self._found[id(call)]

    def body(self, statements: list[ast.stmt], fn: Function, assumed: Assumption) -> Sequence:
        """The sequence of statements up to the first one that certainly leaves."""
        items: list[Item] = []
        branch_only = False  # whether the default group is of the ranks that take this branch
        for statement in statements:
            more, exit_kind = self.statement(statement, fn, assumed)
            calls = (call for call, found, _ in self.index(fn).get(id(statement), ()) if found is not None)
            branch_only = branch_only or any(
                isinstance(call, ast.Call) and makes_own_group(call, fn, self.module) for call in calls
            )
            items += map(of_branch, more) if branch_only else more
            if exit_kind:
                return Sequence(tuple(items), exit_kind)
        return Sequence(tuple(items), "")

    def statement(self, node: ast.stmt, fn: Function, assumed: Assumption) -> Sequence:
        """The sequence of one statement."""
        if isinstance(node, SKIPS):
            return Sequence(self.calls(node, fn), type(node).__name__.lower())
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and self._ends(node.value):
            return Sequence(self.calls(node, fn), "exit")
        if isinstance(node, ast.If):
            return self.branch(node, fn, assumed)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            head = self.calls(node, fn)
            inner = self.body(node.body, fn, assumed)
            within = left_by(inner.items)
            effect = (Item(inner.exit, node),) if inner.exit in LEAVES and within else ()
            loop = (Item("loop", node, within + effect),) if within else ()
            return Sequence(head + loop + self.body(node.orelse, fn, assumed).items, "")
        if isinstance(node, ast.With | ast.AsyncWith):
            head = self.calls(node, fn)
            for item in node.items:
                context = item.context_expr
                if isinstance(context, ast.Call) and short_name(context.func) in RANK_ZERO_FIRST:
                    return Sequence((*head, Item(short_name(context.func), context)), "")
            inner = self.body(node.body, fn, assumed)
            # Inside `no_sync` a backward pass averages no gradients, and so meets no one.
            alone = any(isinstance(i.context_expr, ast.Call) and is_no_sync(i.context_expr) for i in node.items)
            items = tuple(item for item in inner.items if not (alone and item.name == "backward"))
            return Sequence(head + items, inner.exit)
        if isinstance(node, ast.Try):
            if assumed == (f"except {node.lineno}", True):
                inner, caught = self.body(node.body, fn, None), self.body(node.handlers[0].body, fn, None)
                end = self.body(node.finalbody, fn, None)
                return Sequence(inner.items + caught.items + end.items, caught.exit)
            inner = self.body(node.body, fn, assumed)
            end = self.body(node.finalbody, fn, assumed)
            after = Sequence((), inner.exit) if inner.exit else self.body(node.orelse, fn, assumed)
            return Sequence(inner.items + after.items + end.items, after.exit or end.exit)
        if isinstance(node, ast.Match):
            cases = [self.body(case.body, fn, assumed).items for case in node.cases]
            return Sequence((Item("match", node, tuple(i for c in cases for i in c)),) if any(cases) else (), "")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return Sequence((), "")
        return Sequence(self.calls(node, fn), "")

    def branch(self, node: ast.If, fn: Function, assumed: Assumption) -> Sequence:
        """The sequence of an `if`: one branch under an assumption, else both as one item."""
        head = self.calls(node, fn)
        side = asks_for_several(node.test)
        if side is None and assumed is not None:
            side = self.leads_to(node, assumed)
        if side is None and assumed is not None:
            side = self.decide(node.test, fn, assumed)
        if side is not None:
            chosen = self.body(node.body if side else otherwise(node), fn, assumed)
            return Sequence(head + chosen.items, chosen.exit)
        yes, no = self.body(node.body, fn, assumed), self.body(node.orelse, fn, assumed)
        both = yes.exit if yes.exit == no.exit else ""
        if not yes.items and not no.items:
            exit_kind = yes.exit or no.exit
            leaves = assumed is not None and yes.exit != no.exit and exit_kind in LEAVES
            return Sequence((*head, Item(exit_kind, node)) if leaves else head, both)
        if self.conditions(node.test, fn):  # the ranks differ here; `differences` reports it at this test
            longer = max((yes, no), key=lambda s: len(s.items))
            return Sequence(head + longer.items, both)
        inner = (*yes.items, Item("else", node), *no.items)
        return Sequence((*head, Item(f"if {ast.unparse(node.test)}", node, inner)), both)

    def _ends(self, call: ast.Call) -> bool:
        """Whether a call ends the process."""
        return self.module.canonical(call.func) in ("sys.exit", "os._exit", "exit", "quit")

    @staticmethod
    def leads_to(node: ast.If, assumed: tuple[str, bool]) -> bool | None:
        """The branch with the `try` whose exception is assumed to be caught; None when neither has it."""
        kind, _, line = assumed[0].partition(" ")
        if kind != "except":
            return None
        for side, body in ((True, node.body), (False, node.orelse)):
            if int(line) in lines_of(body):
                return side
        return None

    def conditions(self, test: ast.expr, fn: Function) -> list[Condition]:
        """The conditions of a test that may differ between ranks."""
        if isinstance(test, ast.BoolOp):
            return [c for value in test.values for c in self.conditions(value, fn)]
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return [c._replace(sign=not c.sign) for c in self.conditions(test.operand, fn)]
        rank_condition = condition(test, fn, self.module)
        return [rank_condition] if rank_condition is not None else []

    def tests_around(self, node: ast.AST, fn: Function) -> list[ast.If]:
        """The tests around a node that may turn out differently on different ranks."""
        return [test for test in around(node, ast.If) if self.conditions(test.test, fn)]

    def decide(self, test: ast.expr, fn: Function, assumed: tuple[str, bool]) -> bool | None:
        """The value of a test under the assumption; None when it does not depend on it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.decide(test.operand, fn, assumed)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            decisions = [d for value in test.values if (d := self.decide(value, fn, assumed)) is not None]
            if not decisions:
                return None
            return all(decisions) if isinstance(test.op, ast.And) else any(decisions)
        rank_condition = condition(test, fn, self.module)
        if rank_condition is None or rank_condition.key != assumed[0]:
            return None
        return rank_condition.sign == assumed[1]

    def calls(self, node: ast.stmt, fn: Function) -> tuple[Item, ...]:
        """The collectives that a statement evaluates itself, with those of the functions that it calls."""
        items: list[Item] = []
        for call, collective_call, callee in self.index(fn).get(id(node), ()):
            if collective_call is not None:
                items.append(Item(collective_call.name, call, (), collective_call.group, collective_call.root))
            elif callee is not None:
                items += [moved(i, call) for i in self.whole(callee).items]
        return tuple(items)

    def index(self, fn: Function) -> dict[int, list[tuple[ast.expr, Collective | None, Function | None]]]:
        """Statement -> its collectives and its calls of functions of this file."""
        if id(fn) not in self._index:
            index: dict[int, list[tuple[ast.expr, Collective | None, Function | None]]] = {}
            for effect in self.walker.effects(fn):
                call = effect.node
                collective_call = self.collective(call, fn) if isinstance(call, ast.Call) else None
                callee = effect.callee if effect.callee is not fn and runs_now(effect) and not effect.perhaps else None
                if collective_call is None and (callee is None or self._one_of_several(call, fn)):
                    continue
                at = fn.body[0] if isinstance(fn.node, ast.Lambda) else statement_of(call)
                index.setdefault(id(at), []).append((call, collective_call, callee))
                if collective_call is None and callee is not None and isinstance(call, ast.Call):
                    index[id(at)] += [(call, None, handed) for handed in self._run_for(call, callee)]
            self._index[id(fn)] = index
        return self._index[id(fn)]

    def _run_for(self, site: ast.Call, callee: Function) -> Iterator[Function]:
        """The functions that a call gives to the one that it runs, which runs them: other calls give it other ones."""
        for call in callee.calls:
            if isinstance(call.func, ast.Name) and self._one_of_several(call, callee):
                argument = self.module.objects.argument_at(callee, call.func.id, site)
                named = self.module.function_named(argument.value, argument.caller) if argument is not None else None
                if named is not None and not named.generator and not named.asynchronous:
                    yield named

    def _one_of_several(self, call: ast.expr, fn: Function) -> bool:
        """Whether a call runs what this function was given, and its callers give it different functions."""
        function = call.func if isinstance(call, ast.Call) else None
        is_parameter = isinstance(function, ast.Name) and function.id in fn.parameters and function.id not in fn.bound
        return is_parameter and len(self.module.objects.arguments(fn, function.id)) > 1  # type: ignore[union-attr]

    def turns(self, fn: Function) -> Iterator[tuple[ast.For | ast.AsyncFor | ast.While, Item, str]]:
        """The loops with collectives that not every rank runs equally often, and why."""
        for loop in fn.loops if self.whole(fn).items else ():
            if isinstance(loop, ast.comprehension) or self._joined(loop, fn):
                continue
            if isinstance(loop, ast.While):
                why = self.module.varying.why(loop.test, fn)
                why = why if decides(loop.test, why) and not asks_for_ranks(loop.test) else ""
            else:
                why = self.lengths.why(loop.iter, fn)
            inner = [i for item in self.body(loop.body, fn, None).items for i in flattened(item)] if why else []
            if inner:
                yield loop, inner[0], why

    @staticmethod
    def _joined(loop: ast.AST, fn: Function) -> bool:
        """Whether ranks that are done first shadow the collectives of the others: `Join`, `hvd.join()`."""
        entered = (short_name(e.func) for e in contexts_around(loop) if isinstance(e, ast.Call))
        joins = (c for c in fn.calls if short_name(c.func) == "join" and not c.args)
        return any(name in ("Join", "join") for name in entered) or any(dotted(c.func) == "hvd.join" for c in joins)

    # -- comparing the two sides of a condition

    def differences(self, fn: Function) -> list[Difference]:
        """The tests on whose branches a function calls different collectives."""
        if id(fn) not in self._differences:
            self._differences[id(fn)] = list(self._compare(fn)) if self.whole(fn).items else []
        return self._differences[id(fn)]

    def _compare(self, fn: Function) -> Iterator[Difference]:
        by_key: dict[str, list[tuple[ast.If, Condition]]] = {}
        for test in fn.tests:
            if isinstance(test, ast.If):
                for rank_condition in self.conditions(test.test, fn):
                    by_key.setdefault(rank_condition.key, []).append((test, rank_condition))
        for key, tests in by_key.items():
            at = tests[0][1]
            if self.sides(fn.body, fn, key, at)[0] == self.sides(fn.body, fn, key, at)[1]:
                continue
            for test, rank_condition in sorted(tests, key=lambda t: t[0].lineno):
                yes = self.body(test.body, fn, (key, rank_condition.sign))
                no = self.body(otherwise(test), fn, (key, not rank_condition.sign))
                sides = [relevant(side.items, rank_condition) for side in (yes, no)]
                mine, other = (self._shared(side, fn, rank_condition) for side in sides)
                exit_kind = yes.exit or no.exit
                missed = self.missed(test, fn, rank_condition) if yes.exit != no.exit else ()
                if exit_kind in LEAVES and not missed and yes.exit != no.exit:
                    missed = self.in_further_turns(test, fn, rank_condition)
                if missed and not (mine and other):
                    yield Difference(fn, test, rank_condition, sides[not yes.exit], exit_kind, missed)
                elif [i.key for i in mine] != [i.key for i in other]:
                    only = only_in(mine, other) or only_in(other, mine) or only_in(mine, ())
                    # What is handed to another function may be called there on every rank.
                    if not {i.name for i in only} <= self._handed_over(test, fn):
                        yield Difference(fn, test, rank_condition, only, "", ())

    def _handed_over(self, test: ast.If, fn: Function) -> set[str]:
        """The collectives of functions that a branch passes to another one, which may call them."""
        inside = {id(n) for statement in (*test.body, *test.orelse) for n in ast.walk(statement)}
        arguments = (a for c in fn.calls if id(c) in inside for a in (*c.args, *(k.value for k in c.keywords)))
        handed = (self.module.function_named(a, fn) for a in arguments if isinstance(a, ast.Lambda | ast.Name))
        return {item.name for each in handed if each is not None for item in self.operations(each)}

    def choices(self, fn: Function) -> Iterator[tuple[ast.expr, Item, str]]:
        """The collectives in `a or f()` and `f() if a else b` where `a` differs: its place, the call and why."""
        for calls in self.index(fn).values() if self.whole(fn).items else ():
            for call, collective_call, callee in calls:
                items = [*self.whole(callee).items][:1] if callee else []
                items = [Item(collective_call.name, call)] if collective_call else items
                operand = deciding_operand(call) if items else None
                if operand is not None and (why := next((c.why for c in self.conditions(operand, fn)), "")):
                    yield operand, next(flattened(items[0]))._replace(at=call), why

        for entered in fn.withs if self.module.wrappers.average(fn) else ():
            for context in (item.context_expr for item in entered.items):
                chosen = fn.bound.get(context.id) if isinstance(context, ast.Name) else context
                sides = (chosen.body, chosen.orelse) if isinstance(chosen, ast.IfExp) else ()
                inner = [i for i in self.body(entered.body, fn, None).items if i.name == "backward"]
                why = next((c.why for c in self.conditions(chosen.test, fn)), "") if inner and sides else ""  # type: ignore[union-attr]
                if why and any(isinstance(n, ast.Call) and is_no_sync(n) for side in sides for n in ast.walk(side)):
                    yield chosen.test, inner[0], why  # type: ignore[union-attr]

    def _shared(self, items: tuple[Item, ...], fn: Function, at: Condition) -> tuple[Item, ...]:
        """Leave out collectives of a group that only the one rank makes: its other members are other programs."""
        return tuple(i for i in items if not (at.alone and i.group and self._made_by_one(i.group, fn)))

    def _made_by_one(self, group: str, fn: Function) -> bool:
        """Whether a group of the object is made under a test for one rank of the world."""
        head, _, name = group.rpartition(".")
        values = fn.cls.values.get(name, ()) if fn.cls is not None and head == fn.self_name else ()
        tests = [(enclosing(value, ast.If), scope) for value, scope in values if not isinstance(value, ast.Constant)]
        return bool(tests) and all(
            isinstance(t, ast.If) and any(c.alone for c in self.conditions(t.test, scope)) for t, scope in tests
        )

    def sides(self, body: list[ast.stmt], fn: Function, key: str, at: Condition) -> tuple[list[object], list[object]]:
        """The sequences of a body when a condition holds and when it does not."""
        return (
            [i.key for i in without_end(relevant(self.body(body, fn, (key, True)).items, at))],
            [i.key for i in without_end(relevant(self.body(body, fn, (key, False)).items, at))],
        )

    def missed(self, test: ast.If, fn: Function, at: Condition) -> tuple[Item, ...]:
        """The collectives after a test, on the branch that continues."""
        items = relevant(self.whole(fn).items, at)
        flat = [i for item in items for i in flattened(item)]
        return tuple(
            i for i in flat if getattr(i.at, "lineno", 0) > last_line(test) and not on_different_branches(test, i.at)
        )

    def in_further_turns(self, test: ast.If, fn: Function, at: Condition) -> tuple[Item, ...]:
        """The collectives of the loop that a branch leaves, which the other ranks call in its next turn."""
        loop = enclosing(test, ast.For, ast.AsyncFor, ast.While)
        items = relevant(self.body(loop.body, fn, None).items, at) if loop is not None else ()  # type: ignore[attr-defined]
        return tuple(i for item in items for i in flattened(item))


class Difference(NamedTuple):
    """An `if` whose branches call different collectives."""

    fn: Function
    test: ast.If
    condition: Condition
    items: tuple[Item, ...]  # only on one branch
    exit: str  # how one branch leaves the function or loop; empty when none does
    missed: tuple[Item, ...]  # what that branch then does not call


def is_no_sync(call: ast.Call) -> bool:
    """Whether `backward()` leaves the gradients of each rank as they are inside this: `model.no_sync()`."""
    return short_name(call.func) == "no_sync"
