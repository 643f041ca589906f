"""Values that differ from rank to rank, followed through assignments, calls and reductions.

A value differs where it is computed from the rank (`dataset[rank::world]`), from a batch of data (`loss.item()`), from
the clock, or from the name of the host. It is the same everywhere once a collective has spread it: the result of
`all_reduce` or `broadcast`, and the tensor that was reduced in place. Everything else is assumed to be the same on
every rank: the configuration, the arguments, the number of steps, a folder that all ranks share.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cached_property

from paceline.check import catalogue
from paceline.check.declarations import Declarations, Function
from paceline.check.names import enclosing, short_name
from paceline.check.passing import Passing

DEPTH = 12  # assignments and calls through which a value is followed
RANK, DATA, CLOCK, HOST = "the rank", "the data of this rank", "the clock of this rank", "the machine of this rank"
CHANCE = "a random number of this rank"
FILES = "a file that one rank makes meanwhile"

# A call of such a name gives every rank the same value, and makes its arguments the same on every rank.
_SPREADS = re.compile(r"all_?reduce|broadcast|bcast|all_?gather|reduce_(?!sc)|gather_for_metrics|synchroni|agree|sync_")
# Functions whose result differs if an argument does; through other calls only data are followed.
_PASSES_ON = {"len", "list", "tuple", "set", "sorted", "range", "int", "str", "float", "bool", "sum", "min", "max",
              "any", "all", "abs", "enumerate", "zip", "filter", "join", "format", "exists", "isfile", "isdir",
              "listdir", "glob", "getsize", "Path", "array_split", "chunk", "split", "islice", "next", "iter",
              "Subset"}  # fmt: skip
_SAME = {"isinstance", "hasattr", "callable", "type", "issubclass", "device", "get_world_size", "Get_size", "id"}
_SAME_ATTRIBUTES = {"shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "type", "training", "size", "dim",
                    "world_size", "config", "cfg", "args"}  # fmt: skip
_CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "time.process_time", "datetime.datetime.now")
_HOSTS = ("socket.gethostname", "platform.node", "os.getpid", "os.uname", "psutil.virtual_memory", "shutil.disk_usage")
_CHANCES = re.compile(r"(numpy\.)?random\.(random|randint|randrange|choice|uniform|rand|shuffle|sample)")
_LOADERS = re.compile(r"(data|train|val|valid|test|eval)?_?(loader|dataloader|batches|iterator)s?(_iter)?$")
_LOSSES = re.compile(r"(^|_)loss(es)?$")
_MODELS = re.compile(r"model$|^net$|criterion$|loss_fn$|^loss_func$")
_BATCHES = {"batch", "minibatch", "mini_batch", "batch_data", "data_batch"}


class Varying:
    """Which expressions of a file differ from rank to rank."""

    def __init__(
        self, module: Declarations, passing: Passing, callee: Callable[[ast.Call, Function], Function | None]
    ) -> None:
        self.module, self.passing, self._callee = module, passing, callee
        #: Expression -> why it differs, by identity; empty while it is looked up, so that a circle ends.
        self._known: dict[int, str] = {}

    def why(self, node: ast.expr | None, fn: Function, depth: int = 0) -> str:
        """Why this expression may differ from rank to rank; empty when it is the same on every rank."""
        if node is None or isinstance(node, ast.Constant) or depth > DEPTH:
            return ""
        if id(node) not in self._known:
            self._known[id(node)] = ""
            self._known[id(node)] = self._why(node, fn, depth + 1)
        return self._known[id(node)]

    def _why(self, node: ast.expr, fn: Function, depth: int) -> str:
        if isinstance(node, ast.Name):
            return self._of_name(node, fn, depth)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, fn, depth)
        if isinstance(node, ast.Call):
            return self._of_call(node, fn, depth)
        if isinstance(node, ast.Lambda | ast.Await):
            return self.why(node.value, fn, depth) if isinstance(node, ast.Await) else ""
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return ""
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            parts = [p for g in node.generators for p in (g.iter, *g.ifs)]
            return next((w for p in parts if (w := self.why(p, fn, depth))), "")
        inner = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
        return next((w for child in inner if (w := self.why(child, fn, depth))), "")

    def _returned(self, given: ast.Return, fn: Function, depth: int) -> str:
        """Why a returned value differs: itself, or because a test that differs decides which constant it is."""
        test = enclosing(given, ast.If)
        decided = isinstance(given.value, ast.Constant) and isinstance(test, ast.If)
        return self.why(test.test if decided else given.value, fn, depth)  # type: ignore[union-attr]

    def _of_attribute(self, node: ast.Attribute, fn: Function, depth: int) -> str:
        if node.attr in _SAME_ATTRIBUTES:
            return ""
        if node.attr.lower().strip("_") in catalogue.RANK_NAMES:
            return RANK
        if isinstance(node.value, ast.Name) and node.value.id == fn.self_name and fn.cls is not None:
            values = [v for cls in fn.cls.ancestry for v in cls.values.get(node.attr, ())]
            found = {self.why(value, scope, depth) for value, scope in values}
            if len(found) == 1 and not isinstance(values[0][0], ast.Name):
                return next(iter(found)) or self._counted(node.attr, fn, depth)
            return self._counted(node.attr, fn, depth)
        return self.why(node.value, fn, depth)

    def _counted(self, attribute: str, fn: Function, depth: int) -> str:
        """Why a counter differs: it is changed under a test that differs, as the patience of an early stop is."""
        methods = [m for cls in fn.cls.ancestry for m in cls.methods.values()] if fn.cls is not None else []
        for method in methods:
            for change in method.augmented:
                test = enclosing(change, ast.If)
                if isinstance(change.target, ast.Attribute) and change.target.attr == attribute and test is not None:
                    return self.why(test.test, method, depth)  # type: ignore[attr-defined]
        return ""

    def _of_call(self, node: ast.Call, fn: Function, depth: int) -> str:
        name, canonical = short_name(node.func), self.module.canonical(node.func)
        if name in _SAME or name in _SAME_ATTRIBUTES or _SPREADS.search(name):
            return ""
        if name in catalogue.RANK_CALLS:
            return RANK
        if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            return RANK if str(node.args[1].value).strip("_") in catalogue.RANK_NAMES else ""
        if name in ("get", "getenv") and node.args and isinstance(node.args[0], ast.Constant):
            return RANK if node.args[0].value in catalogue.RANK_VARIABLES else ""
        if canonical in _CLOCKS:
            return CLOCK
        if canonical in _HOSTS:
            return HOST
        if _CHANCES.fullmatch(canonical):
            return "" if self._seeded else CHANCE
        callee = self._callee(node, fn)
        if callee is not None and callee.name != "__init__":
            return next((w for r in callee.returns if (w := self._returned(r, callee, depth))), "")
        if name == "item" and isinstance(node.func, ast.Attribute) and self._computed(node.func.value, fn):
            return DATA
        given = [self.why(value, fn, depth) for value in (*node.args, *(k.value for k in node.keywords))]
        if isinstance(node.func, ast.Attribute):
            given.append(self.why(node.func.value, fn, depth))
        return next((w for w in given if w and (w == DATA or name in _PASSES_ON or w == given[-1])), "")

    def _computed(self, node: ast.expr, fn: Function) -> bool:
        """Whether a tensor is a loss or what a model returned, and was not reduced over the ranks since."""
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and bool(_MODELS.search(node.func.id))
        if not isinstance(node, ast.Name) or self._spread(node, fn.line, fn):
            return False
        value = fn.bound.get(node.id)
        return bool(_LOSSES.search(node.id)) and not (
            isinstance(value, ast.Call) and _SPREADS.search(short_name(value.func))
        )

    @cached_property
    def _seeded(self) -> bool:
        """Whether the file seeds a generator, so that all ranks draw the same numbers."""
        return any("seed" in short_name(call.func).lower() for fn in self.module.functions for call in fn.calls)

    def _of_name(self, node: ast.Name, fn: Function, depth: int) -> str:
        """A name: by its last assignment before this line, unless a collective has spread it since."""
        if node.id in _SAME_ATTRIBUTES:
            return ""
        for scope in fn.scopes():
            assigned = [(t, v) for t, v in scope.assigns if _binds(t, node.id)]
            if assigned:
                before = [(t, v) for t, v in assigned if t.lineno < node.lineno or scope is not fn]
                target, value = max(before or assigned, key=lambda pair: pair[0].lineno)
                if scope is fn and self._spread(node, target.lineno, fn):
                    return ""
                added = (a.value for a in scope.augmented if _binds(a.target, node.id) and a.lineno < node.lineno)
                return self.why(value, scope, depth) or next((w for a in added if (w := self.why(a, scope, depth))), "")
            for loop in scope.loops:
                if not isinstance(loop, ast.While) and any(n.id == node.id for n in _names(loop.target)):
                    return self._of_loop(node.id, loop, scope, depth)
            if node.id in scope.parameters:
                return self._of_parameter(node, scope, depth)
        return RANK if node.id in ("rank", "local_rank", "global_rank") else ""

    def _of_parameter(self, node: ast.Name, fn: Function, depth: int) -> str:
        given = self.passing.to(fn, node.id)
        if given:
            return next((w for a in given if (w := self.why(a.value, a.caller, depth))), "")
        if node.id.lower().strip("_") in catalogue.RANK_NAMES:
            return RANK
        return DATA if node.id in _BATCHES and not self._spread(node, fn.line, fn) else ""

    def _of_loop(self, name: str, loop: ast.For | ast.AsyncFor | ast.comprehension, fn: Function, depth: int) -> str:
        """The variable of a loop: a batch of a loader, or an element of what differs; not the number of the turn."""
        over, target = loop.iter, loop.target
        if isinstance(over, ast.Call) and short_name(over.func) in ("enumerate", "tqdm", "islice") and over.args:
            numbered = short_name(over.func) == "enumerate" and isinstance(target, ast.Tuple)
            if numbered and isinstance(target.elts[0], ast.Name) and target.elts[0].id == name:  # type: ignore[attr-defined]
                return ""
            over = over.args[0]
        return DATA if _LOADERS.fullmatch(short_name(over)) else self.why(over, fn, depth)

    def _spread(self, node: ast.Name, since: int, fn: Function) -> bool:
        """Whether a collective takes this name as an argument between two lines."""
        return any(
            since <= call.lineno <= node.lineno
            and _SPREADS.search(short_name(call.func))
            and any(isinstance(n, ast.Name) and n.id == node.id for a in call.args for n in ast.walk(a))
            for call in fn.calls
        )


def _names(target: ast.expr) -> list[ast.Name]:
    return [n for n in ast.walk(target) if isinstance(n, ast.Name)]


def _binds(target: ast.expr, name: str) -> bool:
    if isinstance(target, ast.Name):
        return target.id == name
    return isinstance(target, ast.Tuple | ast.List) and any(_binds(t, name) for t in target.elts)


def decides(test: ast.expr, why: str) -> bool:
    """Whether a test of such a value can turn out differently: a batch is compared or counted, not asked for a mode."""
    if why != DATA:
        return True
    if isinstance(test, ast.Compare):
        asks = any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(test))
        return not asks and not any(isinstance(op, ast.In | ast.NotIn) for op in test.ops)
    counted = {"len", "any", "all", "item", "isnan", "isinf", "isfinite", "numel", "sum"}
    return any(isinstance(n, ast.Call) and short_name(n.func) in counted for n in ast.walk(test))
