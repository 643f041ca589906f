"""Who may import whom. The rules are those of docs/internals/design.md; a broken one is shown with the line and its
nearest legal home.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "paceline"
PACKAGE, OURS = "paceline", "paceline."

# The first prefix that fits a module decides: what it may import of paceline, and which modules of others it must not.
PURE_NEVER = {
    "time",
    "random",
    "os",
    "io",
    "socket",
    "logging",
    "subprocess",
    "multiprocessing",
    "threading",
    "asyncio",
    "torch.distributed",
    "torch.multiprocessing",
    "numpy.random",
}
NO_TORCH = {"torch", "numpy"}
ONE_PROCESS = {"multiprocessing", "socket", "torch.distributed"}
NO_OBJECTS = {"torch", "numpy", "pickle", "json"}
RULES: list[tuple[str, str, set[str]]] = [
    ("errors", "errors", NO_TORCH),
    ("instruction_sets", "errors", NO_TORCH),
    ("moved", "", NO_TORCH),
    ("narrative", "", NO_TORCH),
    ("text_table", "names", PURE_NEVER | NO_TORCH),
    ("version", "", NO_TORCH),
    ("user_cache", "", NO_TORCH),
    ("names", "", PURE_NEVER | NO_TORCH),
    ("algorithms.rules", "algorithms errors narrative", PURE_NEVER),
    ("algorithms", "algorithms errors narrative", PURE_NEVER | NO_TORCH),
    ("plans", "plans algorithms errors text_table", {"torch"}),
    ("kernels", "kernels errors instruction_sets training.jobs.modules names user_cache", ONE_PROCESS),
    ("training.jobs", "training.jobs names errors text_table", set()),
    ("training.shards", "training.shards errors", {"torch", "multiprocessing"}),
    (
        "training.preparation",
        "training.preparation training.shards training.jobs.idx errors",
        {"torch", "multiprocessing"},
    ),
    ("training.data", "training.data training.shards algorithms errors training.jobs plans", {"multiprocessing"}),
    ("training.parameters", "training.parameters training.gradients algorithms training.jobs errors", ONE_PROCESS),
    (
        "training.gradients",
        "training.gradients training.parameters algorithms training.data training.jobs errors kernels user_cache",
        ONE_PROCESS,
    ),
    (
        "training.stages",
        "training.stages training.gradients training.parameters algorithms training.data training.jobs errors",
        ONE_PROCESS,
    ),
    (
        "training.splits",
        "training.splits training.stages training.gradients training.parameters algorithms training.data training.jobs "
        "runtime.links errors",
        ONE_PROCESS,
    ),
    (
        "training.operators",
        "training.operators training.gradients training.parameters algorithms training.data training.jobs errors",
        ONE_PROCESS,
    ),
    ("runtime.links.ring_buffer", "", NO_TORCH),
    ("runtime.links.tcp.frame", "errors", PURE_NEVER | NO_OBJECTS),
    (
        "runtime.links.tcp.handshake",
        "runtime.links.tcp.frame errors",
        PURE_NEVER | NO_OBJECTS,
    ),
    (
        "runtime.links.tcp",
        "runtime.links errors",
        {"pickle", "cloudpickle", "marshal", "json", "multiprocessing", "asyncio"},
    ),
    ("runtime.links", "runtime.links errors", set()),
    ("runtime.engines.explorer", "algorithms plans narrative", {"torch"}),
    (
        "runtime.engines",
        "runtime.engines runtime.links runtime.runs algorithms training plans kernels.exchange kernels.serve "
        "kernels.machine kernels.one_pass narrative text_table names version errors instruction_sets",
        set(),
    ),
    (
        "runtime.doctor",
        "runtime.doctor runtime.links.tcp kernels.build algorithms.cluster.launchers version errors instruction_sets",
        NO_TORCH,
    ),
    ("runtime.runs.progress", "runtime.runs errors", PURE_NEVER | {"torch"}),
    ("runtime.runs.verdict", "runtime.runs", PURE_NEVER | {"torch"}),
    ("runtime.runs.time_accounting", "runtime.runs errors", {"torch"}),
    ("runtime.runs.trace", "runtime.runs.schema runtime.links.ring_buffer errors", {"torch"}),
    ("runtime.runs", "runtime.runs errors instruction_sets training.jobs names text_table version", set()),
    (
        "runtime.report",
        "runtime.report runtime.runs training.shards names errors",
        {"torch", "cloudpickle", "pickle", "urllib", "http"},
    ),
    ("runtime.backend", "runtime.backend algorithms runtime.links errors", {"numpy", "multiprocessing"}),
    (
        "planning.tuner",
        "planning.tuner algorithms training runtime.engines.workers.process "
        "runtime.engines.workers.process_main errors kernels runtime.links.memory runtime.links.tcp runtime.report "
        "runtime.runs text_table",
        {"torch.distributed", "ray"},
    ),
    (
        "planning.explain",
        "planning.explain algorithms runtime.engines.explorer runtime.engines.virtual plans runtime.runs narrative "
        "errors",
        {"torch"},
    ),
    (
        "planning.planner",
        "planning.planner algorithms plans training.jobs training.data training.gradients training.parameters "
        "training.stages.memory_estimate runtime.runs runtime.engines.virtual errors text_table user_cache",
        {"multiprocessing", "socket", "subprocess", "threading", "torch.distributed"},
    ),
    (
        "compression",
        "compression training.data errors training.jobs kernels names runtime.report",
        {"multiprocessing", "torch.distributed"},
    ),
    (
        "concurrency.check",
        "concurrency.check narrative errors user_cache",
        NO_TORCH | {"importlib.util", "runpy", "pkgutil"},
    ),
    (
        "concurrency.watcher",
        "concurrency.watcher concurrency.check narrative runtime.runs.live errors",
        NO_TORCH,
    ),
    ("concurrency.explore.ranks", "concurrency.explore errors", {"numpy"}),
    ("concurrency.explore.strategies", "concurrency.explore", PURE_NEVER - {"random"} | NO_TORCH),
    ("concurrency.explore.alarms", "concurrency.explore concurrency.check", NO_TORCH),
    ("concurrency.explore.suspicion", "concurrency.explore concurrency.check", NO_TORCH),
    ("concurrency.explore.formats", "concurrency.explore concurrency.check", NO_TORCH),
    ("concurrency.explore", "concurrency.explore narrative errors", NO_TORCH),
    (
        "interfaces.callbacks",
        "interfaces.callbacks runtime.report runtime.runs errors",
        {"multiprocessing", "torch.distributed"},
    ),
    ("interfaces.emit", "interfaces.emit plans errors", NO_TORCH),
    ("interfaces.api.comparing.gloo_shim", "interfaces.api.comparing.gloo_shim runtime.backend", set()),
    (
        "interfaces.api",
        "interfaces.api interfaces.callbacks algorithms plans kernels.measure.picture training runtime planning "
        "compression concurrency.watcher.processes.proc names text_table user_cache errors",
        set(),
    ),
    ("interfaces.adapters", "interfaces.api plans errors", set()),
    (
        "interfaces.testing",
        "interfaces.testing interfaces.api runtime.engines algorithms training.jobs plans runtime.runs planning.tuner",
        set(),
    ),
]
HOMES = "algorithms (pure), training (tensors), runtime (processes and clocks), interfaces (the command line)"


#: From the lowest to the highest: a wing imports those before it.
WINGS = (
    "algorithms",
    "plans",
    "kernels",
    "training",
    "runtime",
    "planning",
    "compression",
    "concurrency",
    "interfaces",
)
#: What stands beside the wings, and may be imported by all of them.
SMALL = ("errors", "instruction_sets", "moved", "names", "narrative", "text_table", "user_cache", "version")
#: A wing, and what it may import of one that is above it.
UPWARD = {
    ("kernels", "training.jobs.modules"): "layers that PyTorch lacks, and for which there are kernels",
    ("training", "runtime.links"): "the protocol by which the parts of a layer are exchanged, not a transport",
}
#: Modules without a rule of their own.
DOORS = ("", "__main__", *WINGS)


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


@pytest.fixture(autouse=True, scope="module")
def _trees_end_with_these_tests() -> Iterator[None]:
    """Or every later collection of garbage in this process would look at two million nodes, for two seconds."""
    yield
    _imports.cache_clear()
    _trees.cache_clear()


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
    found = []
    for node, typing_only in _statements(tree.body):
        for module in _targets(node):
            if module != PACKAGE:  # which every import of a part has imported before
                name = module.removeprefix(OURS)
                found.append(Import(node.lineno, name, name != module, typing_only))
    return found


def _statements(body: Sequence[ast.stmt], typing_only: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement, within others too, and whether only the type checker reads it. Expressions are not visited."""
    for node in body:
        yield node, typing_only
        test = getattr(node, "test", None)
        checked = getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"
        yield from _statements(getattr(node, "body", ()), typing_only or checked)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _statements(part.body, typing_only)
        for name in ("orelse", "finalbody"):
            yield from _statements(getattr(node, name, ()), typing_only)


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


def _faults(prefix: str, allowed: str, never: set[str]) -> Iterator[str]:
    """Yield what breaks a rule."""
    modules = [name for name in FILES if _rule(name) == prefix]
    if not modules:
        yield f"RULES has a row for {prefix}, which no module fits"
    for name in modules:
        for each in _imports(_trees()[name]):
            if each.ours:
                if not any(each.module == part or each.module.startswith(part + ".") for part in allowed.split()):
                    yield f"{name}:{each.line} imports {each.module}; {prefix} may import {allowed}"
            elif not each.typing_only and any(
                each.module == part or each.module.startswith(part + ".") for part in never
            ):
                yield f"{name}:{each.line} imports {each.module}, which {prefix} must not; nearest home: {HOMES}"


def test_wings_import_in_one_direction() -> None:
    faults = []
    for name, tree in _trees().items():
        wing = name.split(".")[0]
        below = WINGS[: WINGS.index(wing) + 1] if wing in WINGS else ()
        for each in _imports(tree):
            other = each.module.split(".")[0]
            if not each.ours or not below or other in (*below, *SMALL):
                continue
            if not any(wing == mine and each.module.startswith(theirs) for mine, theirs in UPWARD):
                faults.append(f"{name}:{each.line} imports {each.module}; the order of the wings is {WINGS}")
    assert not faults, "\n".join(faults)


def test_the_tree_has_no_room_beside_the_wings() -> None:
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == {*WINGS, *SMALL, "__init__", "__main__"}


def test_every_module_but_the_command_line_has_a_rule() -> None:
    others = (name for name in FILES if name not in DOORS and not name.startswith("interfaces.cli"))
    free = [name for name in others if _rule(name) is None]
    assert not free, f"{free} have no rule in RULES"


def test_no_import_cycles() -> None:
    """Neither at import, nor through imports inside functions, nor through those for the type checker."""
    graph = {name: {each.module for each in _imports(tree) if each.ours} - {name} for name, tree in _trees().items()}
    TopologicalSorter(graph).prepare()  # it raises CycleError, which names the modules of a cycle


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
        if not name.startswith("plans.methods") and "method" in FILES[name].read_text()
        for line in _questions(tree, methods)
    ]
    assert len(asking) <= MOST_QUESTIONS, asking
    for name, line in asking:
        lines = FILES[name].read_text().splitlines()
        assert "#" in lines[line - 1] or lines[line - 2].strip().startswith("#"), f"{name}:{line} has no comment"


def test_the_count_of_questions_sees_every_kind() -> None:
    tree = ast.parse(
        "from paceline.plans.methods.all_reduce import Alone\n"
        "a = isinstance(plan.method, Alone | int)\n"
        "b = {Alone: 1}\n"
        "c = type(plan.method).__name__\n"
        "match plan.method:\n    case Alone():\n        pass\n"
        "d = isinstance(plan.method.rule, int), Alone()\n"
    )
    assert sorted(_questions(tree, {"Alone"})) == [2, 3, 4, 6]


def test_only_the_roster_ray_imports_ray() -> None:
    users = {name for name, tree in _trees().items() for each in _imports(tree) if each.module.split(".")[0] == "ray"}
    assert users == {"runtime.engines.ray_actor", "runtime.engines.cluster.ray_session"}


def test_imports_in_functions_and_for_the_type_checker_are_seen() -> None:
    tree = ast.parse(
        "from typing import TYPE_CHECKING\nfrom paceline.algorithms import agenda\n"
        "if TYPE_CHECKING:\n    from paceline.runtime.runs import run, trace\n"
        "def late():\n    from paceline.plans.plan import Plan\n"
    )
    assert {each.module for each in _imports(tree) if each.ours} == {
        "algorithms.agenda",
        "runtime.runs.run",
        "runtime.runs.trace",
        "plans.plan",
    }


def test_functions_are_short() -> None:
    long = {
        f"{name}.{node.name}"
        for name, tree in _trees().items()
        for node, _ in _statements(tree.body)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    }
    assert not long, "functions above 60 lines"


def test_tests_mirror_the_tree() -> None:
    tests = Path(__file__).parent
    rooms = {str(each.parent.relative_to(SOURCE)) for each in SOURCE.glob("*/*/__init__.py")}
    folders = {str(each.parent.relative_to(tests)) for each in tests.glob("*/*/__init__.py")} - {"kernels/played"}
    assert folders <= rooms, f"tests/ has folders that src/paceline lacks: {sorted(folders - rooms)}"


def test_every_module_says_what_it_is() -> None:
    silent = [name for name, tree in _trees().items() if name != "__main__" and not ast.get_docstring(tree)]
    assert not silent, silent
