"""Two locks that are taken in both orders.

One path takes A and then, still holding it, B; another takes B and then A. If two threads run them at once, each holds
the lock that the other waits for. It makes no difference that the locks are re-entrant, nor that the second one is
taken deep inside a call. A path that gives up (with a timeout, or without waiting) breaks the cycle, and so does a
third lock that both paths hold throughout.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from paceline.concurrency.check.flow.components import shortest_circles
from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.flow.witnesses import keep, together
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts, call_steps
from paceline.concurrency.check.threads.lock_orders import WITNESSES, Edge, edges, of_instances
from paceline.narrative import Wait


def find(facts: Facts) -> Iterator[Finding]:
    """Report cycles in the graph of locks that are taken while another is held."""
    ways: dict[tuple[str, str], list[Edge]] = {}
    reported: set[tuple[str, int]] = set()
    for edge in edges(facts):
        first, second = edge.first.resource, edge.second.resource
        if first.id == second.id:
            likely = 0.0 if edge.gates else of_instances(edge, facts.module)
            if likely and (first.id, edge.steps[0][1].lineno) not in reported:
                reported.add((first.id, edge.steps[0][1].lineno))
                yield _swapped(edge, likely)
        elif not first.one_of_several and not second.one_of_several:
            keep(ways.setdefault((first.id, second.id), []), edge, WITNESSES)
    following: dict[str, list[str]] = {}
    for one, other in ways:
        following.setdefault(one, []).append(other)
    for circle in shortest_circles(following):
        chosen = together([ways[pair] for pair in pairwise([*circle, circle[0]])])
        if chosen is not None:
            yield _report(chosen, ways)


def _report(circle: list[Edge], ways: dict[tuple[str, str], list[Edge]]) -> Finding:
    """The finding; its story begins with the rarer order, which is the likelier mistake."""
    ends = [(edge.first.resource, edge.second.resource) for edge in circle]
    rarest = min(range(len(circle)), key=lambda i: (len(ways[ends[i][0].id, ends[i][1].id]), i))
    circle = circle[rarest:] + circle[:rarest]
    story, waits = [], []
    for number, edge in enumerate(circle):
        who, whom = f"thread {_letter(number)}", f"thread {_letter((number + 1) % len(circle))}"
        first, second = edge.first.resource.id, edge.second.resource.id
        story += [Step(who, site.lineno, f"runs {ast.unparse(site)}") for _, site in edge.bound]
        story.append(Step(who, edge.taken, f"{edge.fn.qualname} takes {first}"))
        story += call_steps(who, edge.steps, f"waits for {second}, which {whom} holds")
        waits.append(Wait(who, f"took {first} at line {edge.taken}", f"release {second}", whom))
    at, names = circle[0], [edge.first.resource.id for edge in circle]
    sure = all(end.resource.sure for edge in circle for end in (edge.first, edge.second))
    return finding(
        at.steps[0][1],
        at.fn,
        f"locks are taken in both orders ({' -> '.join([*names, names[0]])}): here {_how(at)} with {names[0]} held, "
        f"the other way at {', '.join(_where(edge) for edge in circle[1:])}",
        story,
        remedy=f"take {names[0]} and {at.second.resource.id} in one order everywhere, or release the first "
        "before the second",
        about=" ".join(sorted(set(names))),
        confidence=0.9 if sure and len(circle) == 2 else 0.6,
        waits=waits,
    )


def _swapped(edge: Edge, likely: float) -> Finding:
    """The finding for two instances of one class, or two elements of one container."""
    one, two = (_named(end.node) for end in (edge.first, edge.second))
    lock = edge.first.resource.id
    wait = call_steps("thread A", edge.steps, f"waits for {two}, which thread B holds")
    return finding(
        edge.steps[0][1],
        edge.fn,
        f"{one} and then {two} are taken, two of {lock}, and nothing says which of them comes first: another thread "
        "that has them the other way round waits for this one, and this one for it",
        [
            *(Step("thread A", site.lineno, f"runs {ast.unparse(site)}") for _, site in edge.bound),
            Step("thread A", edge.taken, f"{edge.fn.qualname} takes {one}"),
            *wait,
            Step("thread B", edge.taken, f"{edge.fn.qualname}, with the two the other way round, takes {two}"),
            Step("thread B", edge.steps[0][1].lineno, f"waits for {one}, which thread A holds"),
        ],
        remedy="take the two in a fixed order, such as sorted by id() or by their index, or one after the other",
        about=lock,
        confidence=likely,
        waits=[
            Wait("thread A", f"took {one}", f"release {two}", "thread B"),
            Wait("thread B", f"took {two}", f"release {one}", "thread A"),
        ],
    )


def _named(node: ast.expr) -> str:
    return ast.unparse(node)


def _where(edge: Edge) -> str:
    return f"line {(edge.bound or edge.steps)[0][1].lineno}"


def _how(edge: Edge) -> str:
    return f"{edge.second.resource.id} is taken" + ("" if len(edge.steps) == 1 else f" by {text_of(edge.steps[0][1])}")


def _letter(number: int) -> str:
    return "ABCDEFGH"[number]


RULE = Rule(
    "PC101",
    "lock-order",
    "two locks taken in both orders",
    find,
    bad="""
        import threading

        class Account:
            def __init__(self):
                self._books = threading.Lock()
                self._cash = threading.RLock()

            def pay(self):
                with self._books:
                    with self._cash:
                        self.paid = True

            def audit(self):
                with self._cash:
                    self._count()

            def _count(self):
                with self._books:
                    return self.paid
    """,
    good="""
        import threading

        class Account:
            def __init__(self):
                self._books = threading.Lock()
                self._cash = threading.RLock()

            def pay(self):
                with self._books:
                    with self._cash:
                        self.paid = True

            def audit(self):
                with self._books, self._cash:
                    return self.paid
    """,
)
