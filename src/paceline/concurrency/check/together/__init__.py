"""Small projects, read as one program: files that import each other become one syntax tree, which every rule reads.

    files ─► programs: closed under imports ─► one tree each, imports replaced by what they name ─► every rule
                                                                                                        │
    findings of each file  ◄─────────────────── places and names looked up again ───────────────────────┘

A program is read as if it were one file: locks, types, threads and callers are followed through it by the same
analysis, and nothing of it is linked afterwards. Files of larger projects are read one by one and linked by `across`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.syntax.declarations import Function

# The files of a project by the names under which they import each other.


class ProjectModules:
    """Finds the file that a name of a module means."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._by_ending: dict[str, list[str]] = {}
        for path in sorted(paths):
            parts = _parts(path)
            self._by_ending.setdefault(parts[-1] if parts else "", []).append(path)

    def named(self, name: str, importer: str) -> str | None:
        """The file of a module as an import statement names it, with a dot for each level of a relative name."""
        level = len(name) - len(name.lstrip("."))
        words = [word for word in name.split(".") if word]
        if not level:
            return self.nearest(words, importer) if words else None
        words = [*importer.removesuffix(".py").split("/")[:-level], *words]
        candidates = self._by_ending.get(words[-1], ()) if words else ()
        return next((path for path in candidates if _parts(path) == words), None)

    def nearest(self, words: list[str], importer: str, relative: bool = False) -> str | None:
        """The file nearest to the importing file among those whose path ends with these words.

        A module without a package is found only below the folder that the importing file lies in, unless the name is
        a relative one.
        """
        paths = []
        for path in self._by_ending.get(words[-1], ()):
            parts = _parts(path)
            root = "/".join(parts[: -len(words)])
            if parts[-len(words) :] == words and (
                relative or len(words) > 1 or not root or importer.startswith(root + "/")
            ):
                paths.append(path)
        return max(paths, key=lambda p: (_common(p, importer), p), default=None)


@cache
def _parts(path: str) -> list[str]:
    """`src/pool/__init__.py` as the names of its packages."""
    parts = path.removesuffix(".py").split("/")
    return parts[:-1] if parts[-1] == "__init__" else parts


def _common(one: str, other: str) -> int:
    count = 0
    for a, b in zip(one.split("/"), other.split("/"), strict=False):
        if a != b:
            break
        count += 1
    return count


LARGEST = 8_000  # lines of a program that is read as one tree

_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(.*))", re.M)


def imports(text: str) -> Iterator[str]:
    """The names of modules that a text may import; of `from a import b`, both `a` and `a.b`."""
    for match in _IMPORT.finditer(text):
        origin, names, plain = match.groups()
        if origin is None:
            yield from (part.split()[0] for part in plain.split(",") if part.split())
            continue
        yield origin
        for part in names.strip("()").split(","):
            if part.split():
                yield f"{origin}{'' if origin.endswith('.') else '.'}{part.split()[0]}"


def programs(texts: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The groups of two files or more that import each other, closed under imports and of at most LARGEST lines."""
    modules = ProjectModules(texts)
    linked: dict[str, set[str]] = {}
    for path in sorted(texts):
        for name in imports(texts[path]):
            other = modules.named(name, path)
            if other is not None and other != path:
                linked.setdefault(path, set()).add(other)
                linked.setdefault(other, set()).add(path)
    lines = {path: texts[path].count("\n") + 1 for path in linked}
    return sorted(group for group in _connected(linked) if sum(lines[path] for path in group) <= LARGEST)


def _connected(linked: dict[str, set[str]]) -> Iterator[tuple[str, ...]]:
    """The groups of files between which imports lead, in whichever direction."""
    while linked:
        todo, group = [next(iter(linked))], set[str]()
        while todo:
            group.add(at := todo.pop())
            todo += linked.pop(at, ())
        yield tuple(sorted(group))


# Places and names of a merged tree, and those of its files.

T = TypeVar("T")
STRIDE = 1_000_000  # more lines than a file has
_MARK = re.compile(r"ˑ\d+ˑ")
_LINE = re.compile(r"\b(at |from )?(line )?(?<!\d)([1-9]\d{6,7})(?!\d)")


def marked(name: str, number: int) -> str:
    """A name of the file of this number that an earlier file has too. A leading underscore stays in front."""
    bare = name.lstrip("_")
    return f"{name[: len(name) - len(bare)]}ˑ{number}ˑ{bare}"


def file_number(line: int) -> int:
    """The number of the file that a line of a tree is of; 0 where the tree is one file."""
    return line // STRIDE


def same_file(line: int, other: int) -> bool:
    """Whether two lines of a tree are of one file."""
    return file_number(line) == file_number(other)


def of_own_file(candidates: Iterable[T], line: int, line_of: Callable[[T], int]) -> list[T]:
    """The candidates of the file of a line; all of them where it has none.

    What a file says by itself it says in a larger program, too: another file with the same name makes it no less clear.
    """
    everywhere = list(candidates)
    return [each for each in everywhere if same_file(line_of(each), line)] or everywhere


def place(line: int, paths: Sequence[str]) -> tuple[str, int]:
    """The file and the line of it that a line of the merged tree is."""
    number, line = divmod(line, STRIDE)
    return paths[max(1, number) - 1], max(1, line)


def divided(findings: Iterable[Finding], paths: Sequence[str]) -> dict[str, list[Finding]]:
    """The findings of a merged tree by file, as about that file."""
    by_path: dict[str, list[Finding]] = {path: [] for path in paths}
    for finding in findings:
        path, finding.line = place(finding.line, paths)
        for name in ("function", "message", "remedy", "about", "subject"):
            setattr(finding, name, _plain(getattr(finding, name), paths, path))
        finding.story = [_step(step, paths, path) for step in finding.story]
        finding.waits = [type(w)(*(_plain(part, paths, path) for part in w)) for w in finding.waits]
        by_path[path].append(finding)
    return by_path


def _step(step: Step, paths: Sequence[str], home: str) -> Step:
    path, line = place(step.line, paths)
    what = _plain(step.what, paths, path)
    return Step(step.who, line, what if path == home else f"{what} ({path})")


def _plain(text: str, paths: Sequence[str], home: str) -> str:
    """A text without marks, and with the file of every line that is of another one."""

    def told(match: re.Match[str]) -> str:
        path, line = place(int(match[3]), paths)
        before = match[1] or ""
        return f"{before}{match[2] or ''}{line}" if path == home else f"{before}{path}:{line}"

    return _LINE.sub(told, _MARK.sub("", text))


Node = tuple[int, int]  # a function; of the top level of the tree, the file as well


class Meeting:
    """Which parts of a merged tree run in one program: several programs of a folder may share the files that they
    import.

    `train_alone.py` and `train_on_all.py` beside each other import the same data set. Where one starts a process group
    or wraps its model, the other does not. Two places of different files are of one program if a function calls both,
    or passes them to what it calls; the top level of each file counts by itself.

    The functions of a tree by what calls them.
    """

    def __init__(
        self, functions: list[Function], top: Function, function_named: Callable[[ast.expr, Function], Function | None]
    ) -> None:
        self._functions, self._top, self._named = functions, top, function_named
        self._callers: dict[Node, set[Node]] | None = None
        self._above: dict[Node, set[Node]] = {}

    def of_one_program(self, places: Iterable[tuple[Function, int]], fn: Function, line: int) -> bool:
        """Whether one of these places, each a function and a line in it, is of a program of another place."""
        all_places = list(places)
        if any(same_file(other, line) for _, other in all_places):
            return True
        above = self._all_above(self._node(fn, line)) if all_places else set()
        return any(not above.isdisjoint(self._all_above(self._node(*place))) for place in all_places)

    def _node(self, fn: Function, line: int) -> Node:
        return id(fn), file_number(line) if fn is self._top else 0

    def _all_above(self, node: Node) -> set[Node]:
        """A function and all that lead to it."""
        if node not in self._above:
            if self._callers is None:
                self._callers = self._read()
            visited, todo = {node}, [node]
            while todo:
                new = self._callers.get(todo.pop(), set()) - visited
                visited |= new
                todo += new
            self._above[node] = visited
        return self._above[node]

    def _read(self) -> dict[Node, set[Node]]:
        """Function -> those that call it, pass it on, make an object of its class, or contain it."""
        callers: dict[Node, set[Node]] = {}
        for fn in self._functions:
            constructor = fn.cls.method("__init__") if fn.cls is not None else None
            for around in (fn.outer, constructor):  # a method runs where an object is made
                if around is not None and around is not fn and around is not self._top:
                    callers.setdefault(self._node(fn, 0), set()).add(self._node(around, 0))
            for call in fn.calls:
                site = self._node(fn, call.lineno)
                for part in (call.func, *call.args, *(k.value for k in call.keywords)):
                    callee = self._named(part, fn) if isinstance(part, ast.Name | ast.Attribute | ast.Lambda) else None
                    if callee is not None:
                        callers.setdefault(self._node(callee, 0), set()).add(site)
        return callers
