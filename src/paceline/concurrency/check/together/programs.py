"""Which files are read together: those that import each other, where they are few enough."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from paceline.concurrency.check.flow.components import strongly_connected
from paceline.concurrency.check.syntax.project_modules import ProjectModules

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
    groups = (tuple(sorted(group)) for group in strongly_connected({at: sorted(to) for at, to in linked.items()}))
    lines = {path: texts[path].count("\n") + 1 for path in linked}
    return sorted(group for group in groups if len(group) > 1 and sum(lines[path] for path in group) <= LARGEST)
