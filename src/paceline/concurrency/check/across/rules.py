"""The rules that look across files: locks in both orders, and blocking calls under a coroutine.

A finding is reported here only if its steps are in more than one file; the rest is found in the file itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from paceline.concurrency.check.across.interface import Interface
from paceline.concurrency.check.across.linked import Linked, Node, Path, Step
from paceline.concurrency.check.flow.components import shortest_circles
from paceline.concurrency.check.flow.witnesses import keep, together
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.reporting.findings import Step as Told
from paceline.narrative import Wait

WITNESSES = 4  # paths kept per pair of locks


class Edge(NamedTuple):
    """A path that holds one lock and waits for another."""

    node: Node
    taken: int
    column: int
    steps: Path
    gates: frozenset[str]


def findings_across(interfaces: Mapping[str, Interface]) -> list[Finding]:
    """What is found in the files together, in the order of paths and lines."""
    linked = Linked(interfaces)
    findings = [*_orders(linked), *_blocking(linked), *_never_run(linked), *_some_ranks(linked)]
    return sorted(findings, key=lambda f: (f.path, f.line, f.column, f.rule, f.about))


def _orders(linked: Linked) -> Iterator[Finding]:
    """Locks that are taken in both orders by functions of several files."""
    edges = _edges(linked)
    following: dict[str, list[str]] = {}
    for first, second in sorted(edges):
        following.setdefault(first, []).append(second)
    for circle in shortest_circles(following):
        ways = [edges[pair] for pair in pairwise([*circle, circle[0]])]
        chosen = together(ways)
        if chosen is not None and len({step.path for edge in chosen for step in edge.steps}) > 1:
            yield _both_orders(circle, chosen)


def _edges(linked: Linked) -> dict[tuple[str, str], list[Edge]]:
    edges: dict[tuple[str, str], list[Edge]] = {}
    for node, behaviour in sorted(linked.functions.items()):
        if node[1].rpartition(".")[2] in ("__init__", "__new__"):
            continue  # no other thread has the object yet
        reached: list[tuple[tuple[tuple[str, int], ...], int, dict[str, Path]]] = [
            (t.held, t.column, {linked.lock(t.lock, node[0]): (Step(*node, t.line, "takes"),)}) for t in behaviour.takes
        ]
        for call, to in linked.calls.get(node, ()):
            paths = linked.takes.get(to, {})
            step = Step(*node, call.line, call.text)
            reached.append((call.held, call.column, {lock: (step, *path) for lock, path in paths.items()}))
        for locks_held, column, takes in reached:
            locks = [(linked.lock(name, node[0]), line) for name, line in locks_held]
            for first, line in locks:
                gates = frozenset(lock for lock, _ in locks) - {first}
                for second, steps in takes.items():
                    if first != second:
                        way = Edge(node, line, column, steps, gates)
                        keep(edges.setdefault((first, second), []), way, WITNESSES)
    return edges


def _both_orders(circle: list[str], chosen: list[Edge]) -> Finding:
    names = [lock.rpartition(":")[2] for lock in circle]
    story, waits = [], []
    for number, edge in enumerate(chosen):
        who, whom = f"thread {'ABCDEFGH'[number]}", f"thread {'ABCDEFGH'[(number + 1) % len(chosen)]}"
        first, second = names[number], names[(number + 1) % len(names)]
        story.append(Told(who, edge.taken, f"{edge.node[1]} takes {first} ({edge.node[0]})"))
        story += _told(who, edge.steps, f"waits for {second}, which {whom} holds")
        waits.append(Wait(who, f"took {first}", f"release {second}", whom))
    at, other = chosen[0], chosen[1]
    return Finding(
        "PC101",
        at.steps[0].line,
        at.column,
        at.node[1],
        f"locks are taken in both orders across files ({' -> '.join([*names, names[0]])}): here {names[1]} is taken "
        f"with {names[0]} held, the other way at {other.steps[0].path}:{other.steps[0].line}",
        story,
        waits,
        f"take {names[0]} and {names[1]} in one order everywhere, or release the first before the second",
        0.85 if len(circle) == 2 else 0.6,
        " ".join(sorted(circle)),
        at.node[0],
    )


def _blocking(linked: Linked) -> Iterator[Finding]:
    """Coroutines that call a function of another file which blocks."""
    for node, behaviour in linked.functions.items():
        if not behaviour.asynchronous:
            continue
        reported: set[str] = set()
        for call, to in linked.calls.get(node, ()):
            blocks = sorted((len(path), what, path) for what, path in linked.blocks.get(to, {}).items())
            for length, what, path in blocks[:1]:
                if what in reported or call.awaited or all(step.path == node[0] for step in path):
                    continue
                reported.add(what)
                waits = path[-1].text
                steps = (Step(*node, call.line, call.text), *path)
                yield Finding(
                    "PC301",
                    call.line,
                    call.column,
                    node[1],
                    f"{call.text}, which calls {what} ({path[-1].path}:{path[-1].line}), in a coroutine blocks the "
                    f"event loop: it {waits}, and no other task runs until then",
                    _told("the loop", steps, f"calls {what}, which {waits}"),
                    [],
                    f"use a counterpart for asyncio, or `await asyncio.to_thread({call.text.removesuffix('()')}, ...)`",
                    max(0.1, 0.76 - 0.06 * length),  # the longer the path, the likelier a condition is never met
                    what,
                    node[0],
                )


def _never_run(linked: Linked) -> Iterator[Finding]:
    """Coroutines of other files that are called and not awaited."""
    for node, behaviour in linked.functions.items():
        for call in behaviour.calls:
            to = linked.named_by(call, node[0]) if call.dropped and not call.target.startswith(":") else None
            if to is not None and linked.functions[to].only_awaited:
                called = call.text.removesuffix("()")
                yield Finding(
                    "PC305",
                    call.line,
                    call.column,
                    node[1],
                    f"{call.text} is not awaited: {to[1]} ({to[0]}) is a coroutine and never runs, and what comes "
                    "after does not wait for it",
                    [
                        Told("task A", call.line, f"{node[1]} calls {call.text} without await, and continues"),
                        Told("task A", call.line, f"nothing of {to[1]} is run"),
                    ],
                    [],
                    f"`await {called}(...)`, or keep a task made of it",
                    0.85,
                    to[1],
                    node[0],
                )


def _some_ranks(linked: Linked) -> Iterator[Finding]:
    """Functions of other files with collectives, called on one side of a test of the rank."""
    for node, behaviour in linked.functions.items():
        for call, why in behaviour.one_rank:
            to = linked.target(call, node[0])
            paths = sorted((len(p), n, p) for n, p in linked.collectives.get(to, {}).items()) if to is not None else []
            for length, name, path in paths[:1]:
                steps = (Step(*node, call.line, call.text), *path)
                yield Finding(
                    "PC501",
                    call.line,
                    call.column,
                    node[1],
                    f"{call.text}, which calls {name} ({path[-1].path}:{path[-1].line}), must be called by every rank, "
                    f"but {why}: the ranks that call it wait for the others",
                    [
                        *_told("rank 0", steps, f"calls {name}, and waits for all ranks"),
                        Told("rank 1", call.line, f"takes the other branch, without {name}"),
                    ],
                    [
                        Wait("rank 0", f"called {name}", f"call {name}", "rank 1"),
                        Wait("rank 1", f"skipped {name}", "reach the next collective", "rank 0"),
                    ],
                    f"call {name} on every rank, and let the condition guard only the work of one rank",
                    max(0.1, 0.76 - 0.06 * length),
                    name,
                    node[0],
                )


def _told(who: str, steps: Path, end: str) -> list[Told]:
    """A path through several files as steps of a story."""
    calls = [Told(who, step.line, f"{step.function} calls {step.text} ({step.path})") for step in steps[:-1]]
    return [*calls, Told(who, steps[-1].line, f"{steps[-1].function} {end} ({steps[-1].path})")]
