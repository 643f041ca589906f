"""Two locks that are taken in both orders."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from paceline.concurrency.check.flow.components import shortest_circles
from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.flow.witnesses import keep, together
from paceline.concurrency.check.reporting.findings import Step
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, call_steps
from paceline.concurrency.check.threads.lock_orders import WITNESSES, Edge, edges, of_instances
from paceline.narrative import Wait


def find(facts: Facts) -> Iterator[Witness]:
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


def _report(circle: list[Edge], ways: dict[tuple[str, str], list[Edge]]) -> Witness:
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
    return Witness(
        at.steps[0][1],
        at.fn,
        story=story,
        confidence=0.9 if sure and len(circle) == 2 else 0.6,
        waits=waits,
        order=" -> ".join([*names, names[0]]),
        how=_how(at),
        names=names,
        elsewhere=", ".join(_where(edge) for edge in circle[1:]),
        edge=at,
        locks=" ".join(sorted(set(names))),
    )


def _swapped(edge: Edge, likely: float) -> Witness:
    """The finding for two instances of one class, or two elements of one container."""
    one, two = (_named(end.node) for end in (edge.first, edge.second))
    runs = [Step("thread A", site.lineno, f"runs {ast.unparse(site)}") for _, site in edge.bound]
    at, lock = edge.steps[0][1], edge.first.resource.id
    return Witness(at, edge.fn, "swapped", confidence=likely, one=one, two=two, lock=lock, edge=edge, runs=runs)


def _named(node: ast.expr) -> str:
    return ast.unparse(node)


def _where(edge: Edge) -> str:
    return f"line {(edge.bound or edge.steps)[0][1].lineno}"


def _how(edge: Edge) -> str:
    return f"{edge.second.resource.id} is taken" + ("" if len(edge.steps) == 1 else f" by {text_of(edge.steps[0][1])}")


def _letter(number: int) -> str:
    return "ABCDEFGH"[number]
