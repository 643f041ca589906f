"""Findings across files: what one file says to the others, how their functions are linked, and the rules on it.

    file ─► interface: what its functions take, wait for and call ─┐
    file ─► interface ─────────────────────────────────────────────┼─► linked functions, summaries to a fixed point
    file ─► interface ─────────────────────────────────────────────┘                 │
                                                       lock order, blocking calls ─► findings across files

An interface is small and belongs to the content of its file, so that it is kept in the cache beside the findings; no
syntax tree outlives its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from paceline.concurrency.check.flow.components import keep, shortest_circles, together
from paceline.concurrency.check.interface import Behaviour, Call, Interface
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.reporting.findings import Step as Told
from paceline.concurrency.check.together import ProjectModules
from paceline.narrative import Wait

# The functions of all files, linked by what they call, and what each does through its callees.
# A name is resolved through imports, re-exports and base classes. What a function takes and what blocks in it is joined
# into its callers until nothing changes: no limit of depth, and the same result in any order of files and functions.

REEXPORTS = 6  # imports through which a name is followed
Node = tuple[str, str]  # path and qualified name of a function


class Step(NamedTuple):
    """A call, or what is done at its end, in one of several files."""

    path: str
    function: str
    line: int
    text: str


Path = tuple[Step, ...]


class Linked:
    """All files of a project."""

    def __init__(self, interfaces: Mapping[str, Interface]) -> None:
        self.files = dict(sorted(interfaces.items()))
        self.functions: dict[Node, Behaviour] = {
            (path, b.name): b for path, interface in self.files.items() for b in interface.behaviours
        }
        #: Name and importing file -> the function, for names that were looked up.
        self._named: dict[tuple[str, str], Node | None] = {}
        self._modules = ProjectModules(self.files)

    # -- names

    def target(self, call: Call, path: str) -> Node | None:
        """The function that a call runs before it returns; None when it is not in these files."""
        node = self.named_by(call, path)
        return node if node is not None and self.functions[node].asynchronous == call.awaited else None

    def named_by(self, call: Call, path: str) -> Node | None:
        """The function that a call names; None when it is not in these files."""
        if call.target.startswith(":"):
            node: Node | None = (path, call.target[1:])
        else:
            if (call.target, path) not in self._named:
                self._named[call.target, path] = self.named(call.target, path)
            node = self._named[call.target, path]
        return node if node in self.functions else None

    def named(self, name: str, path: str, depth: int = 0) -> Node | None:
        """The function with a canonical name, as a file sees it."""
        words = name.strip(".").split(".")
        for length in range(len(words) - 1, 0, -1) if depth < REEXPORTS else ():
            file = self._modules.nearest(words[:length], path, name.startswith("."))
            if file is None:
                continue
            node = self._in_file(file, words[length:], depth)
            if node is not None:
                return node
        return None

    def _in_file(self, file: str, rest: list[str], depth: int) -> Node | None:
        qualified = ".".join(rest)
        for name in (qualified, f"{qualified}.__init__"):
            if (file, name) in self.functions:
                return file, name
        interface = self.files[file]
        for base in interface.bases.get(rest[0], ()) if len(rest) == 2 else ():
            member = f"{base}.{rest[1]}"
            node = self._in_file(file, member.split("."), depth + 1) if "." not in base else None
            if node is None and depth < REEXPORTS:
                node = self.named(member, file, depth + 1)
            if node is not None:
                return node
        origin = interface.imports.get(rest[0])
        return None if origin is None else self.named(".".join([origin, *rest[1:]]), file, depth + 1)

    def lock(self, name: str, path: str) -> str:
        """The identity of a lock among all files: where it is created, if that is seen."""
        interface = self.files[path]
        if name in interface.locks:
            return f"{path}:{name}"
        cls, _, attribute = name.rpartition(".")
        if cls in interface.bases:  # an attribute whose creation is not seen in this file: of a base in another one
            return self._inherited(cls, attribute, path, 0) or f"{path}:{name}"
        words = name.strip(".").split(".")
        for length in range(len(words) - 1, 0, -1):
            file = self._modules.nearest(words[:length], path, name.startswith("."))
            if file is not None and ".".join(words[length:]) in self.files[file].locks:
                return f"{file}:{'.'.join(words[length:])}"
        return f"{path}:{name}"

    def _inherited(self, cls: str, attribute: str, path: str, depth: int) -> str:
        for base in self.files[path].bases.get(cls, ()) if depth < REEXPORTS else ():
            words = base.strip(".").split(".")
            file = path if len(words) == 1 else self._modules.nearest(words[:-1], path, base.startswith("."))
            if file is not None:
                if f"{words[-1]}.{attribute}" in self.files[file].locks:
                    return f"{file}:{words[-1]}.{attribute}"
                lock = self._inherited(words[-1], attribute, file, depth + 1)
                if lock:
                    return lock
        return ""

    # -- summaries

    @cached_property
    def calls(self) -> dict[Node, list[tuple[Call, Node]]]:
        """Function -> its calls of functions of these files."""
        edges = {}
        for node, behaviour in self.functions.items():
            linked = [(call, to) for call in behaviour.calls if (to := self.target(call, node[0])) is not None]
            if linked:
                edges[node] = linked
        return edges

    @cached_property
    def takes(self) -> dict[Node, dict[str, Path]]:
        """Function -> the locks that it waits for, itself or through its callees, each with the shortest path."""
        paths: dict[Node, dict[str, Path]] = {
            node: {self.lock(t.lock, node[0]): (Step(*node, t.line, "takes"),) for t in reversed(behaviour.takes)}
            for node, behaviour in self.functions.items()
            if behaviour.takes
        }
        return self._joined(paths, self.functions)

    @cached_property
    def blocks(self) -> dict[Node, dict[str, Path]]:
        """Function -> the blocking calls of libraries that it leads to; a coroutine answers for its own."""
        sync = {node: b for node, b in self.functions.items() if not b.asynchronous}
        paths: dict[Node, dict[str, Path]] = {
            n: {w: (Step(*n, line, waits),) for w, waits, line in b.blocks} for n, b in sync.items() if b.blocks
        }
        return self._joined(paths, sync)

    @cached_property
    def collectives(self) -> dict[Node, dict[str, Path]]:
        """Function -> the collectives of all ranks that it leads to."""
        paths: dict[Node, dict[str, Path]] = {
            node: {name: (Step(*node, line, name),) for name, line in reversed(b.collectives)}
            for node, b in self.functions.items()
            if b.collectives
        }
        return self._joined(paths, self.functions)

    def _joined(self, paths: dict[Node, dict[str, Path]], among: Iterable[Node]) -> dict[Node, dict[str, Path]]:
        """Join what callees do into their callers until nothing changes."""
        within = set(among)
        callers: dict[Node, list[tuple[Node, Call]]] = {}
        for node, calls in self.calls.items():
            for call, to in calls if node in within else ():
                callers.setdefault(to, []).append((node, call))
        todo = dict.fromkeys(sorted(paths))
        while todo:
            node = next(iter(todo))
            del todo[node]
            for caller, call in callers.get(node, ()):
                mine, changed = paths.setdefault(caller, {}), False
                for what, path in paths[node].items():
                    longer = (Step(*caller, call.line, call.text), *path)
                    if what not in mine or (len(longer), longer) < (len(mine[what]), mine[what]):
                        mine[what] = longer
                        changed = True
                if changed:
                    todo[caller] = None
        return paths


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
