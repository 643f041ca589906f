"""Which tests run which lines: one run of the chosen tests under a tracer, kept for all mutants."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from inside.line_tracer import HIT, MORE, NUMBER
from mutations import Mutant
from trying import run_tests


@dataclass
class Map:
    seconds: dict[str, float]  # of the tests that pass without a mutant
    unfit: list[str]  # those that do not
    lines: dict[str, dict[str, list[str]]]  # file: line: tests
    tree: Path

    def tests(self, mutant: Mutant) -> list[str]:
        """Those that may notice it, the fastest first, and last those of which it is not known."""
        if mutant.inside:
            first, last = mutant.lines
            sure, unsure = self._of_lines(mutant.file, range(first, last + 1)), self._of_lines(mutant.file, [MORE])
        else:  # run once, when it is imported: by then no test has begun
            sure, unsure = self._of_files([mutant.file]), set[str]()
            sure = sure or self._of_files(self.importers.get(mutant.file, ()))
        return sorted(sure | unsure, key=lambda test: (test not in sure, self.seconds[test], test))

    def _of_lines(self, file: str, lines: Iterable[int]) -> set[str]:
        known = self.lines.get(file, {})
        return {test for line in lines for test in known.get(str(line), ()) if test in self.seconds}

    def _of_files(self, files: Iterable[str]) -> set[str]:
        return {test for file in files for test in self._of_lines(file, map(int, self.lines.get(file, ())))}

    @cached_property
    def importers(self) -> dict[str, list[str]]:
        """Of each file, those that import from it."""
        found: dict[str, list[str]] = {}
        for path in (self.tree / "src").rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    target = f"src/{node.module.replace('.', '/')}"
                    for file in (f"{target}.py", f"{target}/__init__.py"):
                        found.setdefault(file, []).append(str(path.relative_to(self.tree)))
        return found


def make_map(file: Path, tree: Path, arguments: Sequence[str], leave: Sequence[str] = ()) -> Map:
    """That of the file where there is one."""
    if not file.exists():
        made = _traced(file.with_suffix(".trace"), tree, arguments, leave)
        file.write_text(json.dumps({"arguments": list(arguments), **made}))
    kept = json.loads(file.read_text())
    if kept.pop("arguments") != list(arguments):
        raise SystemExit(f"{file} was made of another selection of tests; give another folder")
    return Map(**kept, tree=tree)


def _traced(place: Path, tree: Path, arguments: Sequence[str], leave: Sequence[str]) -> dict[str, Any]:
    place.mkdir(exist_ok=True)
    files = sorted((tree / "src").rglob("*.py"))
    (place / "files").write_text("\n".join(map(str, files)))
    (place / "current").write_bytes(NUMBER.pack(0))
    (place / "hits").write_bytes(b"")
    ran = run_tests(tree, arguments, {"leave": list(leave)}, None, place)
    if not ran.tests or any(name.startswith("collecting") for name in ran.tests):
        raise SystemExit(f"the tests do not run without a mutant:\n{ran.said[-4000:]}")
    seconds = {name: time for name, (time, outcome) in ran.tests.items() if outcome == "passed"}
    unsure = [name for name, (_, outcome) in ran.tests.items() if outcome in ("failed", "timeout")]
    if unsure:  # the tracer may be to blame
        again = run_tests(tree, arguments, {"only": dict.fromkeys(unsure, 600)}, None)
        seconds |= {name: time for name, (time, outcome) in again.tests.items() if outcome == "passed"}
    names = {number: name for name, number in ran.numbers.items()}
    lines: dict[str, dict[str, list[str]]] = {}
    for test, number, line in set(HIT.iter_unpack((place / "hits").read_bytes())):
        in_file = lines.setdefault(str(files[number].relative_to(tree)), {})
        in_file.setdefault(str(line), []).append(names[test])
    (place / "hits").unlink()
    return {"seconds": seconds, "unfit": [name for name in unsure if name not in seconds], "lines": lines}
