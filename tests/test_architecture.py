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
    ("errors", {"errors"}, {"torch", "numpy"}),
    ("narrative", set(), {"torch", "numpy"}),
    ("core.rules", {"core", "errors", "narrative"}, PURE_NEVER),
    ("core", {"core", "errors", "narrative"}, PURE_NEVER | {"torch", "numpy"}),
    ("plans", {"plans", "core", "errors"}, {"torch"}),
    ("jobs", {"jobs", "errors"}, set()),
    ("kernels", {"kernels", "errors", "jobs.modules"}, {"multiprocessing", "socket", "torch.distributed"}),
    ("data", {"data", "core", "errors", "jobs", "plans"}, {"multiprocessing"}),
    (
        "parameters",
        {"parameters", "gradients", "core", "jobs", "errors"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    (
        "gradients",
        {"gradients", "parameters", "core", "data", "jobs", "errors", "kernels"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    (
        "stages",
        {"stages", "gradients", "parameters", "core", "data", "jobs", "errors"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    ("links.ring", set(), {"torch", "numpy"}),
    ("links", {"links", "errors"}, set()),
    (
        "engines",
        {
            "engines", "links", "core", "gradients", "parameters", "stages", "data", "jobs", "plans", "runs",
            "narrative", "errors",
        },
        set(),
    ),
    ("runs.live_status", {"runs", "errors"}, PURE_NEVER | {"torch"}),
    ("runs.time_accounting", {"runs", "errors"}, {"torch"}),
    ("runs.trace", {"errors", "links.ring"}, {"torch"}),
    ("runs", {"runs", "errors", "jobs"}, set()),
    ("report", {"report", "runs", "errors"}, {"torch", "cloudpickle", "pickle", "urllib", "http"}),
    ("backend", {"backend", "core", "links", "errors"}, {"numpy", "multiprocessing"}),
    ("explain", {"explain", "core", "engines.virtual", "plans", "runs", "narrative", "errors"}, {"torch"}),
    ("api.gloo_shim", {"backend"}, set()),
    (
        "api",
        {
            "api", "engines", "links", "core", "gradients", "parameters", "jobs", "plans", "runs", "report", "errors",
        },
        set(),
    ),
    ("adapters", {"api", "plans", "errors"}, set()),
    ("check", {"check", "narrative", "errors"}, {"torch", "numpy", "importlib.util", "runpy", "pkgutil"}),
    ("testing", {"testing", "api", "engines", "core", "jobs", "plans", "runs"}, set()),
]  # fmt: skip
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
