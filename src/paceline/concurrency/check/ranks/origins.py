"""Where a value begins to differ from rank to rank, in words, and where it becomes the same again."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cached_property

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.libraries.catalogue import WRAPPERS
from paceline.concurrency.check.syntax.declarations import Class, Declarations, Function
from paceline.concurrency.check.syntax.tree import (
    around,
    dotted,
    enclosing,
    is_constant,
    is_within,
    keyword,
    parent,
    short_name,
)

# Why values differ from rank to rank, in words, and which tests of such a value turn out differently.

RANK, DATA, CLOCK, HOST = "the rank", "the data of this rank", "the clock of this rank", "the machine of this rank"
CHANCE = "a random number of this rank"
FILES = "a file that one rank makes meanwhile"
SIGNAL = "a signal, which each rank gets at another time"
#: The rank of a matrix: `config.lora.rank`.
OF_MATRIX = re.compile(r"lora|low_?rank|svd|matrix|adapter", re.I)


def asks_for_ranks(test: ast.expr) -> bool:
    """Whether a test asks whether there are ranks at all, as `rank >= 0` and `rank is None` do."""
    if not isinstance(test, ast.Compare):
        return False
    named = short_name(test.left).lower().strip("_") in catalogue.RANK_NAMES
    numbers = [ast.unparse(c) for c in test.comparators]
    return "-1" in numbers or (named and "0" in numbers and not isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Gt))


def asks_for_several(test: ast.expr) -> bool | None:
    """Whether a test holds wherever there are several ranks: `dist.is_initialized()`; None where it asks otherwise."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = asks_for_several(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return True if all(asks_for_several(value) for value in test.values) else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and ast.unparse(test.comparators[0]) == "1":
        counted = test.left.func if isinstance(test.left, ast.Call) else test.left
        more = isinstance(test.ops[0], ast.Gt | ast.NotEq)
        counts_ranks = _SIZES.search(short_name(counted)) is not None
        return more if counts_ranks and (more or isinstance(test.ops[0], ast.Eq | ast.LtE)) else None
    asks = isinstance(test, ast.Call) and short_name(test.func) in _SEVERAL and "cuda" not in ast.unparse(test.func)
    return True if asks and not test.args else None  # type: ignore[attr-defined]


_SEVERAL = {"is_initialized", "is_distributed", "is_dist_avail_and_initialized", "is_available", "is_dist_initialized"}


def asks_for_one(test: ast.expr) -> bool:
    """Whether a test asks for a job of a single rank, between whose ranks nothing can differ: `comm.size == 1`."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq | ast.LtE):
        return False
    counted = test.left.func if isinstance(test.left, ast.Call) else test.left
    return _SIZES.search(short_name(counted)) is not None and ast.unparse(test.comparators[0]) == "1"


_SIZES = re.compile(r"size$|^num_processes$|^n?procs$|^n_?ranks$", re.I)


def decides(test: ast.expr, why: str) -> bool:
    """Whether a test of such a value can turn out differently: a batch is compared or counted, not asked for a mode."""
    if why != DATA:
        return True
    if isinstance(test, ast.Compare):
        asks = any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(test))
        return not asks and not any(isinstance(op, ast.In | ast.NotIn) for op in test.ops)
    counted = {"len", "any", "all", "item", "isnan", "isinf", "isfinite", "numel", "sum"}
    return any(isinstance(n, ast.Call) and short_name(n.func) in counted for n in ast.walk(test))


def shown(node: ast.expr) -> str:
    """What is iterated over, as it is written, without what only shows the progress: `tqdm(batches, total=9)`."""
    while isinstance(node, ast.Call) and node.args and _SHOWS.search(short_name(node.func)):
        node = node.args[0]
    return ast.unparse(node)


_SHOWS = re.compile(r"tqdm|progress|^track$|^iter$|^list$|^tuple$", re.I)


_LIBRARIES = re.compile(
    r"(numpy\.)?random\.(random|randint|randrange|choices?|uniform|rand|shuffle|sample)"
    r"|torch\.(rand|randn|randint|randperm|bernoulli|multinomial)"
)
_UNSEEDED = re.compile(r"uuid\.uuid[14]|secrets\.\w+|os\.urandom")
_DRAWS = libraries.names("methods that draw random numbers")
_GENERATORS = {"random.Random", "numpy.random.default_rng", "numpy.random.RandomState"}
#: What seeds one library alone; any other function whose name has `seed` is taken to seed all.
_SEEDS = libraries.table("functions that seed one library")


class Chances:
    """The random numbers of one file: which of them each rank draws for itself.

    Ranks draw the same numbers from generators with the same seed. A generator of its own (`default_rng()`) counts by
    its own seed, the generator of a library by what the file seeds it with.
    """

    def __init__(
        self,
        module: Declarations,
        why: Callable[[ast.expr, Function], str],
        type_of: Callable[[ast.expr, Function], Class | None],
    ) -> None:
        self._module, self._why, self._type_of = module, why, type_of

    def differs(self, call: ast.Call, canonical: str, fn: Function) -> bool | None:
        """Whether each rank draws a number of its own here; None when nothing is drawn."""
        if _UNSEEDED.fullmatch(canonical):
            return True
        if _LIBRARIES.fullmatch(canonical):
            argument = keyword(call, "generator")
            if argument is not None:  # which begins with the same seed on all ranks
                return self._seeded_apart(dotted(argument))
            return not self._seeded & {canonical.partition(".")[0], "all"}
        if short_name(call.func) not in _DRAWS or not isinstance(call.func, ast.Attribute):
            return None
        origin = self._made(call.func.value, fn)
        if origin is None:
            return None
        generator, scope = origin
        seed = generator.args[0] if generator.args else keyword(generator, "seed")
        return seed is None or is_constant(seed, None) or bool(self._why(seed, scope))

    def _made(self, node: ast.expr, fn: Function) -> tuple[ast.Call, Function] | None:
        """The call that makes a generator: this one, that of a name, or that of an attribute of the object."""
        bindings: list[tuple[ast.expr, Function]] = [(node, fn)]
        if isinstance(node, ast.Name):
            bindings = [(scope.bound[node.id], scope) for scope in fn.scopes() if node.id in scope.bound][:1]
        elif isinstance(node, ast.Attribute) and (owner := self._type_of(node.value, fn)) is not None:
            bindings = [pair for cls in owner.ancestry for pair in cls.values.get(node.attr, ())]
        return next(
            (
                (value, scope)
                for value, scope in bindings
                if isinstance(value, ast.Call) and self._module.canonical(value.func) in _GENERATORS
            ),
            None,
        )

    def _seeded_apart(self, generator: str) -> bool:
        """Whether a generator of torch gets a seed that differs from rank to rank."""
        return any(
            call.args and self._why(call.args[0], fn)
            for fn in self._module.functions
            for call in fn.calls
            if short_name(call.func) == "manual_seed" and dotted(call.func).startswith(generator)
        )

    @cached_property
    def _seeded(self) -> set[str]:
        """The libraries whose generator the file seeds with one number on all ranks, which then draw the same."""
        return {
            _SEEDS.get(self._module.canonical(call.func), "all")
            for fn in self._module.functions
            for call in fn.calls
            if "seed" in short_name(call.func).lower() and not any(self._why(given, fn) for given in call.args)
            if not (short_name(call.func) == "manual_seed" and self._module.canonical(call.func) not in _SEEDS)
        }


# What a loop does to a value from one turn to the next.


def changed_in_turn(node: ast.Name, target: ast.expr) -> bool:
    """Whether a loop asks for a name before each turn, which this assignment of the turn before has changed."""
    loop = enclosing(node, ast.While)
    in_test = isinstance(loop, ast.While) and loop.test.lineno <= node.lineno < loop.body[0].lineno
    return in_test and is_within(target, loop.body)  # type: ignore[union-attr]


def trained_on(node: ast.Name, loop: ast.AST) -> str:
    """Why an element of a loop differs: gradients are computed from each, and this one is taken apart or handed on."""
    inner = (n for n in ast.walk(loop) if isinstance(n, ast.Call) and short_name(n.func) == "backward")
    trains = any(enclosing(call, ast.For, ast.While) is loop for call in inner)
    used = isinstance(parent(node), ast.Attribute | ast.Subscript | ast.Call)
    over = loop.iter if isinstance(loop, ast.For) else None
    counted = isinstance(over, ast.Call) and short_name(over.func) == "range"
    return DATA if trains and used and over is not None and not counted else ""


# Which files each machine of a cluster has for itself, so that its ranks may find others than those of the rest.

ASKS_FOR_FILES = {"exists", "isfile", "isdir", "is_file", "is_dir", "glob", "listdir", "iterdir"}
#: Folders of disks that are not shared between machines.
OWN_DISKS = ("/tmp", "/var/tmp", "/dev/shm", "/scratch", "/local", "/mnt/local", "/mnt/nvme", "/raid")
PATH_DEPTH = 6  # names and calls through which a path is followed


def asks_own_disk(call: ast.Call, fn: Function) -> bool:
    """Whether a call asks for a file that each machine has for itself: `os.path.exists("/tmp/last.pt")`."""
    if short_name(call.func) not in ASKS_FOR_FILES:
        return False
    path = call.args[0] if call.args else call.func.value if isinstance(call.func, ast.Attribute) else call
    for _ in range(PATH_DEPTH):
        scope = next((s for s in fn.scopes() if isinstance(path, ast.Name) and path.id in s.bound), None)
        if scope is not None and isinstance(path, ast.Name):
            path = scope.bound[path.id]
        elif isinstance(path, ast.Call) and path.args and short_name(path.func) in ("join", "Path", "str"):
            path = path.args[0]
        elif isinstance(path, ast.BinOp):
            path = path.left
        elif isinstance(path, ast.JoinedStr) and path.values:
            path = path.values[0]
        else:
            break
    text = path.value if isinstance(path, ast.Constant) else ""
    temporary = isinstance(path, ast.Call) and short_name(path.func) in ("gettempdir", "mkdtemp")
    return temporary or (isinstance(text, str) and text.startswith(OWN_DISKS))


ADDS = ("append", "add", "appendleft", "extend", "put", "push")
CALLERS = 3  # calls through which the place is followed to its callers
Sites = dict[int, list[tuple[ast.Call, Function]]]


class Counts:
    """How many elements a list has that a program fills: as many as it comes by the place where one is added.

    The length of `self.losses` is the same on every rank if each adds one loss per step, though the losses differ. It
    differs where an element is added under a test, or in a loop, that turns out differently.

    The lengths of the lists that one file fills.
    """

    def __init__(
        self,
        why: Callable[[ast.expr, Function], str],
        type_of: Callable[[ast.expr, Function], Class | None],
        sites: Callable[[], Sites],
    ) -> None:
        self._why, self._type_of, self._sites = why, type_of, sites

    def why(self, node: ast.expr, fn: Function) -> str | None:
        """Why the length of a list differs from rank to rank; None where nothing in the file adds to it."""
        owner = self._type_of(node.value, fn) if isinstance(node, ast.Attribute) else None
        places: list[tuple[ast.Call, Function]] = []
        if isinstance(node, ast.Name):
            scopes = [scope for scope in fn.scopes() if node.id in scope.bound][:1]
            places = [(c, s) for s in scopes for c in s.calls if dotted(c.func) in _methods(node.id)]
        elif isinstance(node, ast.Attribute) and owner is not None:
            methods = [m for cls in owner.ancestry for m in cls.methods.values()]
            places = [
                (c, m) for m in methods for c in m.calls if dotted(c.func) in _methods(f"{m.self_name}.{node.attr}")
            ]
        if not places:
            return None
        return next((w for call, scope in places if (w := self._how_often(call, scope, 0))), "")

    def _how_often(self, at: ast.AST, fn: Function, depth: int) -> str:
        """Why a place of the program is reached more often on one rank than on another."""
        for test in around(at, ast.If, ast.While):
            if (why := self._decides(test.test, fn)) and not asks_for_ranks(test.test):  # type: ignore[attr-defined]
                return why
        loop = enclosing(at, ast.For, ast.AsyncFor, ast.While)
        for test in fn.tests:
            leaves = isinstance(test.body[-1], ast.Continue | ast.Return) and test.lineno < getattr(at, "lineno", 0)
            beside = enclosing(test, ast.For, ast.AsyncFor, ast.While) is loop and parent(test) is not at
            if leaves and beside and isinstance(test, ast.If) and (why := self._decides(test.test, fn)):
                return why
        sites = self._sites().get(id(fn), ()) if depth < CALLERS else ()
        return next((w for call, caller in sites if (w := self._how_often(call, caller, depth + 1))), "")

    def _decides(self, test: ast.expr, fn: Function) -> str:
        why = self._why(test, fn)
        inner = test.operand if isinstance(test, ast.UnaryOp) else test
        return why if why and (isinstance(inner, ast.Name) or decides(test, why)) else ""


def _methods(name: str) -> tuple[str, ...]:
    return tuple(f"{name}.{method}" for method in ADDS)


# What collectives have made the same on every rank: gradients, and the arguments of functions that reduce them.

# A call of such a name gives every rank the same value, and makes its arguments the same on every rank.
SPREADS = re.compile(r"all_?reduce|broadcast|bcast|all_?gather|reduce_(?!sc)|gather_for_metrics|synchroni|agree|sync_")
#: Objects whose `reduce` and `gather` do the same.
OF_ALL = ("accelerator", "fabric", "strategy")


def spreads(call: ast.Call) -> bool:
    """Whether a call gives every rank the same value, by its name."""
    name = short_name(call.func)
    if SPREADS.search(name):
        return True
    owner = short_name(call.func.value).strip("_") if isinstance(call.func, ast.Attribute) else ""
    return name in ("reduce", "gather") and owner in OF_ALL


class Reduced:
    """Where the gradients of a file are those of all ranks."""

    def __init__(self, module: Declarations, callee: Callable[[ast.Call, Function], Function | None]) -> None:
        self._module, self._callee = module, callee

    def before(self, node: ast.expr, fn: Function, depth: int = 0) -> bool:
        """Whether gradients have been averaged over the ranks before this line, by a wrapper or by hand."""
        if self._wrapped or not self._computes:
            return True
        if any(call.lineno < node.lineno and self.reduces(call, fn) for call in fn.calls):
            return True
        sites = self.sites.get(id(fn), ()) if depth < CALLERS else ()
        return bool(sites) and all(self.before(site, caller, depth + 1) for site, caller in sites)

    def reduces(self, call: ast.Call, fn: Function, depth: int = 0) -> bool:
        """Whether a call runs a collective that gives every rank the same, itself or in a function of the file."""
        if spreads(call):
            return True
        callee = self._callee(call, fn) if depth < CALLERS else None
        return callee is not None and any(self.reduces(inner, callee, depth + 1) for inner in callee.calls)

    @cached_property
    def _wrapped(self) -> bool:
        """Whether `backward()` averages the gradients: the file wraps a model, or a library does."""
        averaging = ("accelerate", "lightning", "deepspeed", "horovod", "transformers")
        return any(origin.startswith(averaging) for origin in self._module.imports.values()) or any(
            short_name(call.func) in WRAPPERS for fn in self._module.functions for call in fn.calls
        )

    @cached_property
    def _computes(self) -> bool:
        """Whether the file computes gradients and averages them itself."""
        calls = [call for fn in self._module.functions for call in fn.calls]
        return any(short_name(c.func) == "backward" for c in calls) and any(spreads(c) for c in calls)

    @cached_property
    def sites(self) -> dict[int, list[tuple[ast.Call, Function]]]:
        """Function -> the calls that run it, each with its caller."""
        call_sites: dict[int, list[tuple[ast.Call, Function]]] = {}
        for fn in self._module.functions:
            for call in fn.calls:
                if (callee := self._callee(call, fn)) is not None:
                    call_sites.setdefault(id(callee), []).append((call, fn))
        return call_sites
