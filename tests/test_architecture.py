"""Who may import whom. The rules are docs/design.md's; a broken one is shown with the line and its nearest legal
home.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "paceline"
OURS = "paceline."

# The first prefix that fits a module decides. "allowed" are parts of paceline; "never" are outside modules.
PURE_NEVER = {
    "time", "random", "os", "io", "socket", "logging", "subprocess", "multiprocessing", "threading", "asyncio",
    "torch.distributed", "torch.multiprocessing", "numpy.random",
}  # fmt: skip
RULES: list[tuple[str, set[str], set[str]]] = [
    ("failure", set(), {"torch", "numpy"}),
    ("errors", {"failure"}, {"torch", "numpy"}),
    ("story", set(), {"torch", "numpy"}),
    ("trace", {"errors"}, {"torch"}),
    ("plain", set(), {"torch", "numpy"}),
    ("run", {"errors", "plain", "tally", "trace", "job"}, set()),
    ("core.rules", {"core", "errors", "story"}, PURE_NEVER),
    ("core", {"core", "errors", "story"}, PURE_NEVER | {"torch", "numpy"}),
    ("recipe", set(), {"torch"}),
    ("pipelines", {"core", "errors", "recipe"}, {"torch"}),
    ("plan", {"core", "errors", "pipelines", "recipe"}, {"torch"}),
    ("job", {"errors", "jobs"}, set()),
    ("jobs", {"errors", "job", "modules"}, set()),
    ("modules", set(), set()),
    ("kernels", {"kernels", "errors", "modules"}, {"multiprocessing", "socket", "torch.distributed"}),
    ("data", {"core", "errors", "job", "plan", "data"}, {"multiprocessing"}),
    (
        "compute",
        {"compute", "core", "data", "job", "errors", "kernels"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    (
        "engines",
        {"engines", "core", "compute", "data", "job", "plan", "trace", "run", "story", "errors", "failure"},
        set(),
    ),
    ("tally", {"trace"}, {"torch"}),
    ("board", {"tally", "trace"}, PURE_NEVER | {"torch"}),
    (
        "report",
        {"report", "tally", "trace", "run", "plain", "errors"},
        {"torch", "cloudpickle", "pickle", "urllib", "http"},
    ),
    ("backend", {"backend", "core", "engines.transports", "errors"}, {"numpy", "multiprocessing"}),
    ("training", {"engines", "job", "plan", "run", "errors"}, set()),
    (
        "own_loop",
        {"core", "compute", "engines.local", "engines.transports", "job", "plan", "run", "trace", "errors"},
        set(),
    ),
    ("adapters", {"own_loop", "plan", "errors"}, set()),
    (
        "drawing",
        {"core", "engines.virtual", "plan", "timetable", "timetable_page", "trace", "story", "errors"},
        {"torch"},
    ),
    ("timetable_page", {"core", "timetable"}, {"torch"}),
    ("timetable", {"core", "plan", "trace", "errors"}, {"torch"}),
    ("proving", {"core", "engines.virtual", "plan", "story", "errors"}, {"torch"}),
    ("stand_in", {"backend"}, set()),
    ("scripts", {"stand_in", "errors"}, {"torch.distributed"}),
    ("overhead", {"tally", "trace"}, {"torch"}),
    ("comparison", {"errors", "overhead", "training", "job", "plan", "run", "report"}, set()),
    ("check", {"check", "story", "errors"}, {"torch", "numpy", "importlib.util", "runpy", "pkgutil"}),
    ("testing", {"testing", "training", "engines", "core", "job", "plan", "run", "trace"}, set()),
]
HOMES = (
    "core (pure algorithms), compute (gradients), engines (processes and clocks), cli (nothing but the command line)"
)


def _imports(file: Path) -> list[tuple[int, str, bool]]:
    """(line, module, only for the type checker)"""
    tree = ast.parse(file.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for statement in branch.body
        for node in ast.walk(statement)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, id(node) in typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.lineno, node.module, id(node) in typing_only))
    return found


def _module(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_imports_stay_in_their_room(file: Path) -> None:
    name = _module(file)
    rule = next((r for r in RULES if name == r[0] or name.startswith(r[0] + ".")), None)
    if rule is None:
        assert name == "" or name.split(".")[0] in ("cli", "__main__"), f"{name} has no rule in RULES"
        return
    prefix, allowed, never = rule
    faults = []
    for line, module, typing_only in _imports(file):
        if module.startswith(OURS):
            target = module[len(OURS) :]
            if not any(target == part or target.startswith(part + ".") for part in allowed):
                faults.append(f"{file}:{line} imports {module}; {prefix} may import {sorted(allowed)}")
        elif not typing_only and any(module == part or module.startswith(part + ".") for part in never):
            faults.append(f"{file}:{line} imports {module}, which {prefix} must not; nearest home: {HOMES}")
    assert not faults, "\n".join(faults)


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {}
    names = {_module(file) for file in FILES}
    for file in FILES:
        name = _module(file)
        tree = ast.parse(file.read_text())
        top = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        modules = {n.module for n in top if isinstance(n, ast.ImportFrom) and n.module}
        targets = {m[len(OURS) :] for m in modules if m.startswith(OURS)}
        graph[name] = {t for t in targets if t in names and t != name}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, [*path, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])


def test_files_are_short() -> None:
    """Past 400 lines a file needs a reason written at its top."""
    long = {_module(f): n for f in FILES if (n := len(f.read_text().splitlines())) > 400}
    assert not long, long


def test_every_module_says_what_it_is() -> None:
    silent = [_module(f) for f in FILES if f.name != "__main__.py" and not ast.get_docstring(ast.parse(f.read_text()))]
    assert not silent, silent
