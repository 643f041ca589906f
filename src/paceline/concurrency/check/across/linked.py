"""The functions of all files, linked by what they call, and what each does through its callees.

A name is resolved through imports, re-exports and base classes. What a function takes and what blocks in it is joined
into its callers until nothing changes: no limit of depth, and the same result in any order of files and functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from paceline.concurrency.check.across.interface import Behaviour, Call, Interface
from paceline.concurrency.check.syntax.project_modules import ProjectModules

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
