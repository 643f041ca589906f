"""Who may import whom. The rules are those of docs/internals/design.md; a broken one is shown with the line and its
nearest legal home.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "paceline"
PACKAGE, OURS = "paceline", "paceline."

# The first prefix that fits a module decides. "allowed" are parts of paceline; "never" are outside modules.
PURE_NEVER = {
    "time", "random", "os", "io", "socket", "logging", "subprocess", "multiprocessing", "threading", "asyncio",
    "torch.distributed", "torch.multiprocessing", "numpy.random",
}  # fmt: skip
RULES: list[tuple[str, set[str], set[str]]] = [
    ("errors", {"errors"}, {"torch", "numpy"}),
    ("narrative", set(), {"torch", "numpy"}),
    ("text_table", {"names"}, PURE_NEVER | {"torch", "numpy"}),
    ("version", set(), {"torch", "numpy"}),
    ("user_cache", set(), {"torch", "numpy"}),
    ("names", set(), PURE_NEVER | {"torch", "numpy"}),
    ("core.rules", {"core", "errors", "narrative"}, PURE_NEVER),
    ("core", {"core", "errors", "narrative"}, PURE_NEVER | {"torch", "numpy"}),
    ("plans", {"plans", "core", "errors", "text_table"}, {"torch"}),
    ("jobs", {"jobs", "names", "errors", "text_table"}, set()),
    (
        "kernels",
        {"kernels", "errors", "jobs.modules", "names", "user_cache"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    ("shards", {"shards", "errors"}, {"torch", "multiprocessing"}),
    ("preparation", {"preparation", "shards", "jobs.idx", "errors"}, {"torch", "multiprocessing"}),
    ("data", {"data", "shards", "core", "errors", "jobs", "plans"}, {"multiprocessing"}),
    (
        "parameters",
        {"parameters", "gradients", "core", "jobs", "errors"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    (
        "gradients",
        {"gradients", "parameters", "core", "data", "jobs", "errors", "kernels", "user_cache"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    (
        "stages",
        {"stages", "gradients", "parameters", "core", "data", "jobs", "errors"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    (
        "splits",
        {"splits", "stages", "gradients", "parameters", "core", "data", "jobs", "links", "errors"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    (
        "operators",
        {"operators", "gradients", "parameters", "core", "data", "jobs", "errors"},
        {"multiprocessing", "socket", "torch.distributed"},
    ),
    ("links.ring_buffer", set(), {"torch", "numpy"}),
    ("links.tcp.seal", set(), PURE_NEVER | {"torch", "numpy", "pickle", "json"}),
    ("links.tcp.frame", {"links.tcp.seal", "errors"}, PURE_NEVER | {"torch", "numpy", "pickle", "json"}),
    (
        "links.tcp.handshake",
        {"links.tcp.frame", "links.tcp.seal", "errors"},
        PURE_NEVER | {"torch", "numpy", "pickle", "json"},
    ),
    ("links.tcp", {"links", "errors"}, {"pickle", "cloudpickle", "marshal", "json", "multiprocessing", "asyncio"}),
    ("links", {"links", "errors"}, set()),
    ("engines.explorer", {"core", "plans", "narrative"}, {"torch"}),
    (
        "engines",
        {
            "engines", "links", "core", "gradients", "parameters", "stages", "splits", "operators", "data", "jobs",
            "plans", "runs", "kernels.exchange", "kernels.serve", "kernels.served_steps", "kernels.stream", "narrative",
            "text_table", "errors",
        },
        set(),
    ),
    ("runs.live_status", {"runs", "errors"}, PURE_NEVER | {"torch"}),
    *((f"runs.{name}", {"runs"}, PURE_NEVER | {"torch"}) for name in ("verdict", "intervals", "held", "warm_up")),
    ("runs.time_accounting", {"runs", "errors"}, {"torch"}),
    ("runs.trace", {"runs.schema", "links.ring_buffer", "errors"}, {"torch"}),
    ("runs", {"runs", "errors", "jobs", "names", "text_table", "version"}, set()),
    ("report", {"report", "runs", "shards", "names", "errors"}, {"torch", "cloudpickle", "pickle", "urllib", "http"}),
    ("callbacks", {"callbacks", "report", "runs", "errors"}, {"multiprocessing", "torch.distributed"}),
    ("backend", {"backend", "core", "links", "errors"}, {"numpy", "multiprocessing"}),
    ("emit", {"emit", "plans", "errors"}, {"torch", "numpy"}),
    (
        "tuner",
        {
            "tuner", "core", "data", "engines.workers.forkserver", "engines.workers.process",
            "engines.workers.process_main", "errors", "gradients", "jobs", "kernels", "links.memory", "links.tcp",
            "parameters", "report", "runs", "text_table",
        },
        {"torch.distributed", "ray"},
    ),
    (
        "compression",
        {"compression", "data", "errors", "jobs", "kernels", "names", "report"},
        {"multiprocessing", "torch.distributed"},
    ),
    (
        "explain",
        {"explain", "core", "engines.explorer", "engines.virtual", "plans", "runs", "narrative", "errors"},
        {"torch"},
    ),
    (
        "planner",
        {
            "planner", "core", "plans", "jobs", "data", "gradients", "parameters", "stages.memory_estimate", "runs",
            "engines.virtual", "errors", "text_table", "user_cache",
        },
        {"multiprocessing", "socket", "subprocess", "threading", "torch.distributed"},
    ),
    ("api.comparing.gloo_shim", {"backend"}, set()),
    (
        "api",
        {
            "api", "callbacks", "compression", "engines", "links", "core", "gradients", "parameters", "data", "jobs",
            "kernels.measure.picture", "names", "planner", "plans", "runs", "report", "text_table", "tuner", "errors",
        },
        set(),
    ),
    ("adapters", {"api", "plans", "errors"}, set()),
    ("check", {"check", "narrative", "errors", "user_cache"}, {"torch", "numpy", "importlib.util", "runpy", "pkgutil"}),
    ("watcher", {"watcher", "check", "narrative", "runs.live", "runs.events", "errors"}, {"torch", "numpy"}),
    ("testing", {"testing", "api", "engines", "core", "jobs", "plans", "runs", "tuner"}, set()),
]  # fmt: skip
HOMES = (
    "core (pure algorithms), gradients and parameters (tensors), engines (processes and clocks), cli (the command line)"
)


def _module(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_module(file): file for file in sorted(SOURCE.rglob("*.py"))}


@cache
def _trees() -> dict[str, ast.Module]:
    """The modules of paceline, parsed."""
    gc.disable()  # which would look at a million nodes that stay, again and again
    try:
        return {name: ast.parse(file.read_text()) for name, file in FILES.items()}
    finally:
        gc.enable()


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name; a module of paceline without the package's own name."""

    line: int
    module: str
    ours: bool
    typing_only: bool


@cache
def _imports(tree: ast.Module) -> list[Import]:
    """Every import of a file: at its top, inside functions and for the type checker alike."""
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If)
        and getattr(branch.test, "id", getattr(branch.test, "attr", "")) == "TYPE_CHECKING"
        for statement in branch.body
        for node in ast.walk(statement)
    }
    found = []
    for node in ast.walk(tree):
        for module in _targets(node):
            if module != PACKAGE:  # which every import of a part has imported before
                name = module.removeprefix(OURS)
                found.append(Import(node.lineno, name, name != module, id(node) in typing_only))  # type: ignore[attr-defined]
    return found


def _targets(node: ast.AST) -> list[str]:
    """The modules that a statement imports: `from a import b` names a.b where that is a module, else a."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert not node.level, f"line {node.lineno}: imports are written in full"
    assert node.module
    if not f"{node.module}.".startswith(OURS):
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    inner = [f"{node.module}.{alias.name}" for alias in node.names]
    return sorted({name if name.removeprefix(OURS) in FILES else node.module for name in inner})


def _rule(name: str) -> str | None:
    """The first prefix of RULES that fits a module."""
    return next((prefix for prefix, *_ in RULES if name == prefix or name.startswith(prefix + ".")), None)


def test_imports_stay_in_their_room() -> None:
    """All rules in one test, since the modules are parsed once."""
    faults = [fault for rule in RULES for fault in _faults(*rule)]
    assert not faults, "\n".join(faults)


def _faults(prefix: str, allowed: set[str], never: set[str]) -> Iterator[str]:
    """Yield what breaks a rule."""
    modules = [name for name in FILES if _rule(name) == prefix]
    if not modules:
        yield f"RULES has a row for {prefix}, which no module fits"
    for name in modules:
        for each in _imports(_trees()[name]):
            if each.ours:
                if not any(each.module == part or each.module.startswith(part + ".") for part in allowed):
                    yield f"{name}:{each.line} imports {each.module}; {prefix} may import {sorted(allowed)}"
            elif not each.typing_only and any(
                each.module == part or each.module.startswith(part + ".") for part in never
            ):
                yield f"{name}:{each.line} imports {each.module}, which {prefix} must not; nearest home: {HOMES}"


def test_every_module_but_the_command_line_has_a_rule() -> None:
    free = [name for name in FILES if _rule(name) is None and name.split(".")[0] not in ("", "cli", "__main__")]
    assert not free, f"{free} have no rule in RULES"


def test_no_import_cycles() -> None:
    """Neither at import, nor through imports inside functions, nor through those for the type checker."""
    graph = {name: {each.module for each in _imports(tree) if each.ours} - {name} for name, tree in _trees().items()}
    cycles = [" <-> ".join(sorted(each)) for each in _cycles(graph)]
    assert not cycles, cycles


def _cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of modules that can each reach all others of their group."""
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset({b for b in reached[a] if a in reached[b]}) for a in graph if a in reached[a]}
    return [set(group) for group in groups]


def _reachable(graph: dict[str, set[str]], name: str) -> set[str]:
    seen: set[str] = set()
    ahead = [name]
    while ahead:
        for target in graph.get(ahead.pop(), set()) - seen:
            seen.add(target)
            ahead.append(target)
    return seen


#: Questions after the class of a plan's method, outside the folder of methods; each has a comment beside it.
MOST_QUESTIONS = 5


def _method_classes() -> set[str]:
    """The names of the classes of methods, and of what they derive from."""
    classes = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for name, tree in _trees().items()
        if name.startswith("plans.methods")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"Method"}
    while more := {name for name, bases in classes.items() if bases & found} - found:
        found |= more
    return found


def _questions(tree: ast.Module, methods: set[str]) -> Iterator[int]:
    """Yield the lines that ask a method for its class: isinstance, a pattern, a key of a table, its type."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{OURS}plans.methods")
        for alias in node.names
        if alias.name in methods
    }

    def named(node: ast.AST) -> bool:
        return any(isinstance(part, ast.Name) and part.id in imported for part in ast.walk(node))

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            asks = node.func.id in ("isinstance", "issubclass") and named(node.args[1])
            if asks or (node.func.id == "type" and ast.unparse(node.args[0]).split(".")[-1] == "method"):
                yield node.lineno
        elif (isinstance(node, ast.MatchClass) and named(node.cls)) or (
            isinstance(node, ast.Dict) and any(key is not None and named(key) for key in node.keys)
        ):
            yield node.lineno


def test_methods_are_not_asked_for_their_class() -> None:
    """What acts on a plan asks its method's traits, or calls it: so a new method is a file in the folder of methods."""
    methods = _method_classes()
    assert {"AllReduce", "ParameterServer", "Pipeline"} <= methods
    asking = [
        (name, line)
        for name, tree in _trees().items()
        if not name.startswith("plans.methods")
        for line in _questions(tree, methods)
    ]
    assert len(asking) <= MOST_QUESTIONS, asking
    for name, line in asking:
        lines = FILES[name].read_text().splitlines()
        assert "#" in lines[line - 1] or lines[line - 2].strip().startswith("#"), f"{name}:{line} has no comment"


def test_the_count_of_questions_sees_every_kind() -> None:
    tree = ast.parse(
        "from paceline.plans.methods.alone import Alone\n"
        "a = isinstance(plan.method, Alone | int)\n"
        "b = {Alone: 1}\n"
        "c = type(plan.method).__name__\n"
        "match plan.method:\n    case Alone():\n        pass\n"
        "d = isinstance(plan.method.rule, int), Alone()\n"
    )
    assert sorted(_questions(tree, {"Alone"})) == [2, 3, 4, 6]


def test_only_the_roster_ray_imports_ray() -> None:
    users = {name for name, tree in _trees().items() for each in _imports(tree) if each.module.split(".")[0] == "ray"}
    assert users == {"engines.ray_actor", "engines.cluster.ray_session"}


def test_the_cycle_check_sees_lazy_and_typing_imports() -> None:
    tree = ast.parse(
        "from typing import TYPE_CHECKING\nfrom paceline.core import agenda\n"
        "if TYPE_CHECKING:\n    from paceline.runs import run, trace\n"
        "def late():\n    from paceline.plans.plan import Plan\n"
    )
    assert {each.module for each in _imports(tree) if each.ours} == {
        "core.agenda",
        "runs.run",
        "runs.trace",
        "plans.plan",
    }
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert _cycles(graph) == [{"a", "b", "c"}]


def test_functions_are_short() -> None:
    long = {
        f"{name}.{node.name}"
        for name, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    }
    assert not long, "functions above 60 lines"


def test_tests_mirror_the_tree() -> None:
    rooms = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    folders = {folder.name for folder in Path(__file__).parent.iterdir() if (folder / "__init__.py").exists()}
    assert folders <= rooms, f"tests/ has folders that src/paceline lacks: {sorted(folders - rooms)}"


def test_files_are_short() -> None:
    long = {name: n for name, file in FILES.items() if (n := len(file.read_text().splitlines())) > 400}
    assert not long, long


def test_every_module_says_what_it_is() -> None:
    silent = [name for name, tree in _trees().items() if name != "__main__" and not ast.get_docstring(tree)]
    assert not silent, silent
