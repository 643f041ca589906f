"""Values that differ from rank to rank, followed through assignments, calls and reductions.

A value differs where it is computed from the rank (`dataset[rank::world]`), from a batch of data (`loss.item()`), from
the clock, a random number, the name of the host or a signal, which ranks get at different times. It is the same
everywhere once a collective has spread it: the result of `all_reduce` or `broadcast`, and the tensor that was reduced
in place. Everything else is assumed to be the same on every rank: the configuration, the arguments, the number of
steps, a folder that all ranks share.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cached_property

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.ranks.origins import (
    CHANCE,
    CLOCK,
    DATA,
    HOST,
    OF_MATRIX,
    RANK,
    SIGNAL,
    Chances,
    Counts,
    Reduced,
    asks_for_one,
    asks_for_ranks,
    asks_own_disk,
    changed_in_turn,
    decides,
    shown,
    spreads,
    trained_on,
)
from paceline.concurrency.check.syntax.declarations import Class, Declarations, Function
from paceline.concurrency.check.syntax.tree import (
    binds,
    dotted,
    enclosing,
    is_constant,
    keyword,
    last_line,
    names_of,
    parent,
    reads,
    short_name,
)
from paceline.concurrency.check.values.objects import Objects

DEPTH = 24  # assignments and calls through which a value is followed

# Functions whose result differs if an argument does; through other calls only data are followed.
_PASSES_ON = libraries.names("functions whose result differs if an argument does")
# Functions of the elements of a comprehension; of any other it is their number that counts.
_AGGREGATES = {"sum", "min", "max", "any", "all", "mean"}
_SAME = {"isinstance", "hasattr", "callable", "type", "issubclass", "device", "get_world_size", "Get_size", "id"}
_SAME_ATTRIBUTES = libraries.names("attributes that are the same on all ranks")
_CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "time.process_time", "datetime.datetime.now")
_HOSTS = ("socket.gethostname", "platform.node", "os.getpid", "os.uname", "psutil.virtual_memory", "shutil.disk_usage")
#: Collectives from which each rank gets something else in their first argument.
_DEALS_OUT = ("all_to_all", "all_to_all_single", "reduce_scatter", "reduce_scatter_tensor", "scatter")
_READS = {"load", "loadtxt", "fromfile", "memmap", "read_csv", "read_parquet", "imread", "open"}
#: What gives each rank something of its own: an environment its next state, a message what another rank has sent.
_GIVES_OWN = {"step", "reset", "recv", "sample"}
_GIVERS = re.compile(r"(^|_)(envs?|environment|simulator|comm|comm_world|buffer|replay)$", re.IGNORECASE)
_LOADERS = re.compile(r"(data|train|val|valid|test|eval)?_?(loader|dataloader|batches|iterator)s?(_iter)?$")
_LOSSES = re.compile(r"(^|_)loss(es)?$")
_MODELS = re.compile(r"model$|^net$|criterion$|loss_fn$|^loss_func$")
_BATCHES = {"batch", "minibatch", "mini_batch", "batch_data", "data_batch"}


class Varying:
    """Which expressions of a file differ from rank to rank."""

    def __init__(
        self,
        module: Declarations,
        objects: Objects,
        callee: Callable[[ast.Call, Function], Function | None],
        type_of: Callable[[ast.expr, Function], Class | None],
    ) -> None:
        self.module, self.objects, self._callee, self._type_of = module, objects, callee, type_of
        self._chances = Chances(module, self.why, type_of)
        self._reduced = Reduced(module, callee)
        self._counts = Counts(self.why, type_of, lambda: self._reduced.sites)
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

    def reduces(self, call: ast.Call, fn: Function) -> bool:
        """Whether a call runs a collective that gives every rank the same."""
        return self._reduced.reduces(call, fn)

    def _why(self, node: ast.expr, fn: Function, depth: int) -> str:
        if isinstance(node, ast.Name):
            return self._of_name(node, fn, depth)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, fn, depth)
        if isinstance(node, ast.Call):
            return self._of_call(node, fn, depth)
        if isinstance(node, ast.Subscript) and short_name(node.value) == "shape":
            return self._rows(node.value, fn, depth)
        if isinstance(node, ast.Subscript) and getattr(node.slice, "value", None) in catalogue.RANK_VARIABLES:
            return RANK
        if isinstance(node, ast.Lambda | ast.Await):
            return self.why(node.value, fn, depth) if isinstance(node, ast.Await) else ""
        if isinstance(node, ast.IfExp) and shown(node.body) == shown(node.orelse):
            return self.why(node.body, fn, depth)
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return ""
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            parts = [p for g in node.generators for p in (g.iter, *g.ifs)]
            return next((w for p in parts if (w := self.why(p, fn, depth))), "")
        inner = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
        return next((w for child in inner if (w := self.why(child, fn, depth))), "")

    def _returned(self, statement: ast.Return, fn: Function, depth: int) -> str:
        """Why a returned value differs: itself, or because a test that differs decides which constant it is."""
        test = enclosing(statement, ast.If)
        if isinstance(test, ast.If) and statement in test.body and asks_for_one(test.test):
            return ""
        decided = isinstance(statement.value, ast.Constant) and isinstance(test, ast.If)
        return self.why(test.test if decided else statement.value, fn, depth)  # type: ignore[union-attr]

    def _rows(self, shape: ast.expr, fn: Function, depth: int) -> str:
        """Why a tensor has another number of rows on each rank: it was made for as many as this rank got."""
        of = shape.value if isinstance(shape, ast.Attribute) else shape
        call = fn.bound.get(of.id) if isinstance(of, ast.Name) else None
        sized = isinstance(call, ast.Call) and short_name(call.func) in ("new_empty", "new_zeros", "empty", "zeros")
        return self.why(call.args[0], fn, depth) if sized and call.args else ""  # type: ignore[union-attr]

    @cached_property
    def _signalled(self) -> set[str]:
        """What handlers of signals change, or set as an event: `stop` of the file, `Trainer.stop`."""
        handlers = (
            keyword(call, "handler", 1)
            for fn in self.module.functions
            for call in fn.calls
            if self.module.canonical(call.func) == "signal.signal"
        )
        names = {short_name(handler) for handler in handlers if isinstance(handler, ast.Name | ast.Attribute)}
        changes = set()
        for fn in self.module.functions if names else ():
            if fn.name in names:
                events = (c.func.value for c in fn.calls if isinstance(c.func, ast.Attribute) and c.func.attr == "set")
                changed = (*(t for t, _ in fn.assigns), *(a.target for a in fn.augmented), *events)
                changes |= {self._changed_by_signal(target, fn) for target in changed}
        return changes - {""}

    def _changed_by_signal(self, target: ast.expr, fn: Function) -> str:
        """The name of what a handler changes; empty where it is the handler's own."""
        if isinstance(target, ast.Attribute):
            owner = self._type_of(target.value, fn)
            return f"{owner.name}.{target.attr}" if owner is not None else ""
        local = isinstance(target, ast.Name) and any(binds(t, target.id) for t, _ in fn.assigns)
        return target.id if isinstance(target, ast.Name) and (target.id in fn.globals or not local) else ""

    def _of_attribute(self, node: ast.Attribute, fn: Function, depth: int) -> str:
        if node.attr in _SAME_ATTRIBUTES:
            return ""
        if node.attr.lower().strip("_") in catalogue.RANK_NAMES and not OF_MATRIX.search(dotted(node)):
            return RANK
        if node.attr == "grad":
            return "" if self._reduced.before(node, fn) else DATA
        owner = self._type_of(node.value, fn)
        if owner is not None and any(f"{cls.name}.{node.attr}" in self._signalled for cls in owner.ancestry):
            return SIGNAL
        if owner is None:
            stored = self._stored.get(dotted(node), ())
            reasons = {self.why(value, scope, depth) for value, scope in stored}
            return reasons.pop() if len(reasons) == 1 else self.why(node.value, fn, depth)
        getter = owner.method(node.attr) if node.attr in owner.properties else None
        if getter is not None:
            return next((w for r in getter.returns if (w := self._returned(r, getter, depth))), "")
        values = [v for cls in owner.ancestry for v in cls.values.get(node.attr, ())]
        bindings = [pair for pair in values or self._fields(owner, node.attr) if not is_constant(pair[0], None)]
        reasons = {self.why(value, scope, depth) for value, scope in bindings}
        name, scope = values[0] if values else (None, fn)
        outside = isinstance(name, ast.Name) and not self.objects.arguments(scope, name.id)
        return (reasons.pop() if len(reasons) == 1 and not outside else "") or self._counted(node.attr, owner, depth)

    @cached_property
    def _stored(self) -> dict[str, list[tuple[ast.expr, Function]]]:
        """`args.main` -> what functions of the file assign to it; `args` counts as the same object everywhere."""
        assignments: dict[str, list[tuple[ast.expr, Function]]] = {}
        for fn in self.module.functions:
            for target, value in fn.assigns:
                if isinstance(target, ast.Attribute):
                    assignments.setdefault(dotted(target), []).append((value, fn))
        return assignments

    def _fields(self, cls: Class, field: str) -> list[tuple[ast.expr, Function]]:
        """What the calls of a data class pass for a field."""
        if field not in cls.annotations or cls.method("__init__") is not None:
            return []
        place = list(cls.annotations).index(field)
        calls = ((call, fn) for call, fn in self.module.calls if short_name(call.func) == cls.name)
        return [(value, fn) for call, fn in calls if (value := keyword(call, field, place)) is not None]

    def _counted(self, attribute: str, owner: Class, depth: int) -> str:
        """Why a counter differs: it counts what differs, or under a test that does, as an early stop's patience."""
        methods = [m for cls in owner.ancestry for m in cls.methods.values()]
        for method in methods:
            for change in method.augmented:
                if isinstance(change.target, ast.Attribute) and change.target.attr == attribute:
                    test = enclosing(change, ast.If)
                    counted = not any(isinstance(n, ast.Call) and short_name(n.func) == "len" for n in ast.walk(change))
                    why = self.why(change.value, method, depth) if counted else ""
                    if why or isinstance(test, ast.If):
                        return why or self.why(test.test, method, depth)  # type: ignore[union-attr]
            filled = f".{attribute}.append"
            added = (c.args[0] for c in method.calls if c.args and dotted(c.func).endswith(filled))
            if (why := next((w for a in added if (w := self.why(a, method, depth))), "")) in (DATA, CLOCK):
                return why
        return ""

    def _of_call(self, node: ast.Call, fn: Function, depth: int) -> str:
        name, canonical = short_name(node.func), self._called(node.func, fn)
        if name in _SAME or name in _SAME_ATTRIBUTES or spreads(node):
            return ""
        if name in catalogue.RANK_CALLS or (name == "rank" and not node.args and isinstance(node.func, ast.Attribute)):
            return RANK
        if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            return RANK if str(node.args[1].value).strip("_") in catalogue.RANK_NAMES else ""
        if name in ("get", "getenv") and node.args and isinstance(node.args[0], ast.Constant):
            return RANK if node.args[0].value in catalogue.RANK_VARIABLES else ""
        if canonical in _CLOCKS:
            return CLOCK
        if canonical in _HOSTS or asks_own_disk(node, fn):
            return HOST
        if (drawn := self._chances.differs(node, canonical, fn)) is not None:
            return CHANCE if drawn else ""
        if name.startswith("clip_grad_norm"):
            return "" if self._reduced.before(node, fn) else DATA
        if name == "len" and len(node.args) == 1 and (counted := self._counts.why(node.args[0], fn)) is not None:
            return counted
        if name in _GIVES_OWN and isinstance(node.func, ast.Attribute) and _GIVERS.search(short_name(node.func.value)):
            return DATA
        callee = self._callee(node, fn)
        if callee is not None and callee.name != "__init__":
            return next((w for r in callee.returns if (w := self._returned(r, callee, depth))), "")
        if name == "item" and isinstance(node.func, ast.Attribute) and self._computed(node.func.value, fn):
            return DATA
        reasons = [self.why(value, fn, depth) for value in (*node.args, *(k.value for k in node.keywords))]
        if name in _AGGREGATES and node.args and isinstance(node.args[0], ast.GeneratorExp | ast.ListComp):
            reasons.append(self.why(node.args[0].elt, fn, depth))
        reason = self.why(node.func.value, fn, depth) if isinstance(node.func, ast.Attribute) else ""
        if (name in _READS or _MODELS.search(name)) and any(reasons):
            return DATA  # from a file of this rank, or computed from what it has
        return next((w for w in reasons if w and (w == DATA or name in _PASSES_ON)), reason)

    def _called(self, function: ast.expr, fn: Function) -> str:
        """The canonical name of a function, also where an attribute or a local name stands for it."""
        binding: ast.expr | None = None
        if isinstance(function, ast.Name):
            binding = fn.bound.get(function.id)
        elif isinstance(function, ast.Attribute) and (owner := self._type_of(function.value, fn)) is not None:
            values = [value for cls in owner.ancestry for value, _ in cls.values.get(function.attr, ())]
            binding = values[0] if len(values) == 1 else None
        return self.module.canonical(binding if isinstance(binding, ast.Name | ast.Attribute) else function)

    def _computed(self, node: ast.expr, fn: Function) -> bool:
        """Whether a tensor is a loss or what a model returned, and was not reduced over the ranks since."""
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and bool(_MODELS.search(node.func.id))
        if not isinstance(node, ast.Name) or self._spread(node, fn.line, fn):
            return False
        value = fn.bound.get(node.id)
        spread = isinstance(value, ast.Call) and (spreads(value) or self.reduces(value, fn))
        return bool(_LOSSES.search(node.id)) and not spread

    def _of_name(self, node: ast.Name, fn: Function, depth: int) -> str:
        """A name: by its last assignment before this line, unless a collective has spread it since."""
        if node.id in _SAME_ATTRIBUTES and not self._made_here(node.id, fn):
            return ""
        if node.id in self._signalled and not any(binds(t, node.id) for t, _ in fn.assigns):
            return SIGNAL
        for scope in fn.scopes():
            assigned = [(t, v) for t, v in scope.assigns if binds(t, node.id)]
            if assigned:
                before = [(t, v) for t, v in assigned if t.lineno < node.lineno or scope is not fn]
                turned = [v for t, v in assigned if changed_in_turn(node, t)]
                if why := next((w for v in turned if (w := self.why(v, scope, depth))), ""):
                    return why
                if not before and node.id in scope.parameters and (why := self._of_parameter(node, scope, depth)):
                    return why
                target, value = max(before or assigned, key=lambda pair: pair[0].lineno)
                if scope is fn and self._spread(node, target.lineno, fn):
                    return ""
                if scope is fn and self._dealt_out(node, target.lineno, fn):
                    return DATA
                added = [a for a in scope.augmented if binds(a.target, node.id) and a.lineno > target.lineno]
                if isinstance(value, ast.List) and not value.elts:
                    filled = (c for c in scope.calls if c.args and dotted(c.func) == f"{node.id}.append")
                    if (why := next((w for c in filled if (w := self.why(c.args[0], scope, depth))), "")) == DATA:
                        return why
                values = (a.value for a in added if a.lineno < node.lineno)
                return (
                    self.why(value, scope, depth)
                    or next((w for v in values if (w := self.why(v, scope, depth))), "")
                    or self._decided(node, [(target, value), *((a.target, a.value) for a in added)], scope, depth)
                )
            for loop in scope.loops:
                if not isinstance(loop, ast.While) and any(n.id == node.id for n in names_of(loop.target)):
                    return self._of_loop(node, loop, scope, depth)
            if node.id in scope.parameters:
                spread = scope is fn and self._spread(node, fn.line, fn)
                return "" if spread else self._of_parameter(node, scope, depth)
        return RANK if node.id in ("rank", "local_rank", "global_rank") else ""

    def _made_here(self, name: str, fn: Function) -> bool:
        """Whether a function of this file returns what a name is given in another one."""
        binding = fn.bound.get(name)
        return isinstance(binding, ast.Call) and self._callee(binding, fn) is not None

    def _decided(self, node: ast.Name, assignments: list[tuple[ast.expr, ast.expr]], fn: Function, depth: int) -> str:
        """Why a name differs that is changed under a test that differs, and read after it."""
        for target, value in assignments:
            test = enclosing(target, ast.If)
            last = last_line(test) if isinstance(test, ast.If) else 0
            wraps = any(isinstance(n, ast.Call) for n in ast.walk(value)) and reads(value, node.id)
            around = isinstance(test, ast.If) and test.lineno <= node.lineno <= last
            counts = isinstance(parent(target), ast.AugAssign)
            if counts and (why := self._passed_by(target, fn, depth)):
                return why
            around = around and not (counts and enclosing(test or target, ast.For, ast.While) is not None)
            if not isinstance(test, ast.If) or wraps or (around and not reads(test.test, node.id)):
                continue
            why = "" if asks_for_ranks(test.test) or asks_for_one(test.test) else self.why(test.test, fn, depth)
            if why and decides(test.test, why) and not self._both(node.id, test, why):
                return why
        return ""

    def _passed_by(self, counted: ast.expr, fn: Function, depth: int) -> str:
        """Why a counter of the turns of a loop differs: on some ranks a test starts the next turn early."""
        loop = enclosing(counted, ast.For, ast.While)
        for test in fn.tests if loop is not None else ():
            goes_on = isinstance(test.body[-1], ast.Continue) and loop.lineno < test.lineno < counted.lineno  # type: ignore[union-attr]
            if goes_on and (why := self.why(test.test, fn, depth)) and decides(test.test, why):
                return why
        return ""

    @staticmethod
    def _both(name: str, test: ast.If, why: str) -> bool:
        """Whether either side of a test of the rank sets a name: each rank to what is its own part of the same."""
        sides = ([n for s in body for n in ast.walk(s)] for body in (test.body, test.orelse))
        return why == RANK and all(any(isinstance(n, ast.Name) and n.id == name for n in side) for side in sides)

    def _of_parameter(self, node: ast.Name, fn: Function, depth: int) -> str:
        arguments = self.objects.arguments(fn, node.id)
        if arguments:
            return next((w for a in arguments if (w := self.why(a.value, a.caller, depth))), "")
        if node.id.lower().strip("_") in catalogue.RANK_NAMES:
            return RANK
        return DATA if node.id in _BATCHES and not self._spread(node, fn.line, fn) else ""

    def _of_loop(
        self, node: ast.Name, loop: ast.For | ast.AsyncFor | ast.comprehension, fn: Function, depth: int
    ) -> str:
        """The variable of a loop: a batch of a loader, or an element of what differs; not the number of the turn."""
        over, target = loop.iter, loop.target
        if isinstance(over, ast.Call) and short_name(over.func) in ("enumerate", "tqdm", "islice") and over.args:
            numbered = short_name(over.func) == "enumerate" and isinstance(target, ast.Tuple)
            if numbered and isinstance(target.elts[0], ast.Name) and target.elts[0].id == node.id:  # type: ignore[attr-defined]
                return ""
            over = over.args[0]
        return DATA if _LOADERS.fullmatch(short_name(over)) else self.why(over, fn, depth) or trained_on(node, loop)

    def _spread(self, node: ast.Name, since: int, fn: Function) -> bool:
        """Whether a collective takes this name as an argument between two lines."""
        return any(
            since <= call.lineno <= node.lineno
            and spreads(call)
            and any(isinstance(n, ast.Name) and n.id == node.id for a in call.args for n in ast.walk(a))
            for call in fn.calls
        )

    def _dealt_out(self, node: ast.Name, since: int, fn: Function) -> bool:
        """Whether each rank gets something else in this name from a collective between two lines."""
        return any(
            since <= call.lineno < node.lineno
            and short_name(call.func) in _DEALS_OUT
            and call.args
            and isinstance(call.args[0], ast.Name)
            and call.args[0].id == node.id
            for call in fn.calls
        )
