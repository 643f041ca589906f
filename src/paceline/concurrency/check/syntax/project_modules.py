"""The files of a project by the names under which they import each other."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache


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
