"""Which tests turn out differently on different ranks.

A condition depends *on the rank* when it asks which rank this is (`rank == 0`, `is_main_process`), directly, through a
variable or through an attribute, or for what only some ranks have made; it depends *on local data* when it asks about a
list that this rank has filled for itself. Everything else is assumed to be the same on every rank: the configuration,
the arguments, the number of steps.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.ranks.collectives import collective, written
from paceline.concurrency.check.ranks.origins import DATA, FILES, HOST, OF_MATRIX, RANK, asks_for_ranks, decides
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    binds,
    dotted,
    enclosing,
    is_constant,
    keyword,
    last_line,
    parent,
    short_name,
)
from paceline.concurrency.check.values.module import Module

ALIASES = 3
# The rank within one of several groups, as `get_data_parallel_rank()`; not the number of another rank.
_GROUP_RANK = re.compile(r"get_(?!.*(?:src|next|prev|first|last|world|num))(\w+)_rank")
_ONE_RANK = re.compile(r"(\w+\.)*get_rank\(\) == \d+")
BOOLEAN = ("is_", "on_", "should_", "save_", "master", "main")


class Condition(NamedTuple):
    """A test whose outcome may differ between ranks."""

    key: str  # the same for `rank == 0` and, with the other sign, `rank != 0`
    sign: bool  # the value of the key for which the test holds
    local: bool  # depends on local data rather than on the rank
    group: str  # the group whose rank it tests; empty for the default group
    why: str = RANK  # what it depends on

    @property
    def alone(self) -> bool:
        """Whether it names one rank of the world, without whose group no other rank can continue."""
        return not self.local and not self.group and _ONE_RANK.fullmatch(self.key) is not None


def condition(test: ast.expr, fn: Function, module: Module, depth: int = 0) -> Condition | None:
    """A test without `and` and `or` as a condition; None when it is the same on every rank."""
    if _asks_for_variable(test, fn):
        return None
    rank_condition = _asked(test, fn, module, depth)
    if rank_condition is not None or depth:
        return rank_condition
    if (none_condition := _made_on_some(test, fn, module)) is not None:
        return none_condition
    if _asks_for_made(test, fn, module):
        return Condition(ast.unparse(test), True, True, "", FILES)
    why = module.varying.why(test, fn)
    has_callee = isinstance(test, ast.Call) and module.callee(test, fn) is not None
    value = fn.bound.get(test.id, test) if isinstance(test, ast.Name) else test
    if not why or asks_for_ranks(test) or not (has_callee or decides(value, why)):
        return None
    return Condition(ast.unparse(test), True, True, "", why)


def _asks_for_variable(test: ast.expr, fn: Function) -> bool:
    """Whether a test asks if an environment variable is there at all: the text "0" is true, too."""
    value = test.value if isinstance(test, ast.NamedExpr) else test
    value = fn.bound.get(value.id, value) if isinstance(value, ast.Name) else value
    if isinstance(value, ast.Call):
        return dotted(value.func) in ("os.environ.get", "environ.get", "os.getenv", "getenv")
    return isinstance(value, ast.Subscript) and short_name(value.value) == "environ"


def _made_on_some(test: ast.expr, fn: Function, module: Module) -> Condition | None:
    """A test for what only some ranks have made, the others having None, as a condition on the rank."""
    is_present, compared = True, test.ops[0] if isinstance(test, ast.Compare) else None
    if isinstance(compared, ast.Is | ast.IsNot) and is_constant(test.comparators[0], None):  # type: ignore[attr-defined]
        is_present, test = isinstance(compared, ast.IsNot), test.left  # type: ignore[attr-defined]
    rank_condition = _where_made(test, fn, module, 0) if isinstance(test, ast.Name | ast.Attribute) else None
    if rank_condition is None and isinstance(test, ast.Name) and (failed := _failed_alone(test, fn, module)):
        rank_condition = Condition(f"{test.id} is not None", True, True, "", failed)
    return rank_condition and _turned(rank_condition, is_present)


def _passed(test: ast.expr, fn: Function, module: Module) -> Condition | None:
    """A test as a condition; of a parameter, the one that all callers pass."""
    if not isinstance(test, ast.Name) or test.id not in fn.parameters or test.id in fn.bound:
        return condition(test, fn, module, 1)
    conditions = [condition(a.value, a.caller, module, 1) for a in module.objects.arguments(fn, test.id)]
    return conditions[0] if conditions and all(g is not None and g == conditions[0] for g in conditions) else None


def _failed_alone(node: ast.Name, fn: Function, module: Module) -> str:
    """Why a name is None on one rank: a function returns it where it cannot read what is this rank's own."""
    binding = fn.bound.get(node.id)
    callee = module.callee(binding, fn) if isinstance(binding, ast.Call) else None
    if callee is None or not isinstance(binding, ast.Call):
        return ""
    handlers = (n for n in ast.walk(callee.node) if isinstance(n, ast.ExceptHandler))
    none = any(isinstance(n.body[-1], ast.Return) and is_constant(n.body[-1].value, None) for n in handlers)
    return next((w for a in binding.args if (w := module.varying.why(a, fn)) in (RANK, HOST)), "") if none else ""


def _where_made(node: ast.expr, fn: Function, module: Module, depth: int) -> Condition | None:
    """The condition under which a value is not None: `load() if rank == 0 else None`, or `if rank == 0: x = load()`."""
    if isinstance(node, ast.IfExp):
        rank_condition = _passed(node.test, fn, module)
        absent = [is_constant(side, None) for side in (node.body, node.orelse)]
        return rank_condition and _turned(rank_condition, absent[1]) if any(absent) and not all(absent) else None
    if isinstance(node, ast.Attribute) and depth <= ALIASES:
        owner = module.type_of(node.value, fn)
        stored = [pair for cls in owner.ancestry for pair in cls.values.get(node.attr, ())] if owner is not None else []
        return _where_made(*stored[0], module, depth + 1) if len(stored) == 1 else None
    if not isinstance(node, ast.Name) or depth > ALIASES:
        return None
    values = fn.values_of(node.id)
    if any(isinstance(target, ast.Tuple | ast.List) and binds(target, node.id) for target, _ in fn.assigns):
        return None  # which all ranks may have got since: `x, y = comm.bcast((x, y))`
    if not values and node.id in fn.parameters:
        conditions = [_where_made(a.value, a.caller, module, depth + 1) for a in module.objects.arguments(fn, node.id)]
        return conditions[0] if len({c and c.key for c in conditions}) == 1 else None
    if len(values) == 1:
        return _where_made(values[0], fn, module, depth + 1)
    non_none = [v for v in values if not is_constant(v, None)]
    test = enclosing(non_none[0], ast.If) if len(non_none) == 1 and len(values) == 2 else None
    if not isinstance(test, ast.If) or (rank_condition := condition(test.test, fn, module, 1)) is None:
        return None
    return _turned(rank_condition, non_none[0].lineno <= last_line(test.body))


def otherwise(node: ast.If) -> list[ast.stmt]:
    """What ranks do for which only the rank makes `a and rank == 0` false: not what stands under `elif not a`."""
    test, other = node.test, node.orelse[0] if len(node.orelse) == 1 else None
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And) or not isinstance(other, ast.If):
        return node.orelse
    negated = isinstance(other.test, ast.UnaryOp) and isinstance(other.test.op, ast.Not)
    negation = ast.unparse(other.test.operand if negated else ast.UnaryOp(ast.Not(), other.test))  # type: ignore[attr-defined]
    return other.orelse if any(ast.unparse(value) == negation for value in test.values) else node.orelse


def _turned(rank_condition: Condition, holds: bool) -> Condition:
    return rank_condition if holds else rank_condition._replace(sign=not rank_condition.sign)


def _asks_for_made(test: ast.expr, fn: Function, module: Module) -> bool:
    """Whether a test asks for a file in a branch of which one rank makes files: the others may find it made already."""
    if not isinstance(test, ast.Call) or short_name(test.func) not in _ASKS_FOR_FILES:
        return False
    around = next((t for t in fn.tests if isinstance(t, ast.If) and any(n is test for n in ast.walk(t.test))), None)
    if around is None:
        return False
    leaves = isinstance(around.body[-1], ast.Return) and parent(around) is fn.node
    after = [s for s in fn.body if s.lineno > around.lineno] if leaves else []
    for inner in (n for each in (around, *after) for n in ast.walk(each)):
        if isinstance(inner, ast.If) and inner is not around:
            rank_condition = condition(inner.test, fn, module, 1)
            makes = (c for s in inner.body for c in ast.walk(s) if isinstance(c, ast.Call))
            met = (c for c in fn.calls if around.lineno < c.lineno < inner.lineno and collective(c, fn, module))
            if rank_condition is None or rank_condition.local or any(met):  # all ranks have asked before they meet
                continue
            if any(_makes_files(c, fn, module) for c in makes):
                return True
    return False


def _makes_files(call: ast.Call, fn: Function, module: Module) -> bool:
    """Whether a call makes files, by its name or in the function of this file that it runs."""
    if MAKES_FILES.search(short_name(call.func).lstrip("_")):
        return True
    callee = module.callee(call, fn)
    return callee is not None and any(MAKES_FILES.search(short_name(c.func).lstrip("_")) for c in callee.calls)


_ASKS_FOR_FILES = {"exists", "isfile", "isdir", "is_file", "is_dir"}
MAKES_FILES = re.compile(r"^(open|save|dump|write|mkdir|makedirs|download|copy|move|extract|build|touch|to_|url|fetch)")


def _asked(test: ast.expr, fn: Function, module: Module, depth: int) -> Condition | None:
    """A test of the rank itself, or of a list that this function fills, as a condition."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        rank_condition = condition(test.operand, fn, module, depth)
        return rank_condition and _turned(rank_condition, False)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test, fn, module, depth)
    if isinstance(test, ast.Call) and (nan := _is_nan(test, fn, module)) is not None:
        return nan
    if isinstance(test, ast.Call) and short_name(test.func) in ("len", "any", "all", "bool"):
        return _local(test, test, True, fn)
    who = of_rank(test, fn, module, depth)
    if who is not None:
        text, group, truth = who
        if not truth:  # `if rank:` is `if rank != 0:`
            return Condition(f"{text} == 0", False, False, group)
        return Condition(text, True, False, group)
    return _local(test, test, True, fn)


def _compared(test: ast.Compare, fn: Function, module: Module, depth: int) -> Condition | None:
    """A comparison with the rank as a condition."""
    left, op, right = test.left, test.ops[0], test.comparators[0]
    # `rank is None` and `rank == -1` ask whether there is a group of ranks at all.
    if isinstance(op, ast.Is | ast.IsNot) or _is_number(right, -1):
        return None
    who = of_rank(left, fn, module, depth)
    if who is None and isinstance(op, ast.Eq | ast.NotEq) and (who := of_rank(right, fn, module, depth)) is not None:
        left, right = right, left
    if who is None:
        counts = _is_number(right, 0) or _is_number(right, 1)
        return _local(test, left, isinstance(op, ast.Gt | ast.NotEq | ast.GtE), fn) if counts else None
    text, group, _ = who
    if of_rank(right, fn, module, depth) is not None and not isinstance(right, ast.Constant):
        return None  # compares two ranks, which are not known here
    zero = _is_number(right, 0)
    if isinstance(op, ast.GtE | ast.Lt) and zero:
        return None  # `rank >= 0`: whether there are ranks at all
    if (isinstance(op, ast.Gt) and zero) or (isinstance(op, ast.GtE) and _is_number(right, 1)):
        return Condition(f"{text} == 0", False, False, group)
    if isinstance(op, ast.In | ast.NotIn) and _is_zero_or_none(right):
        return Condition(f"{text} == 0", isinstance(op, ast.In), False, group)
    sign = not isinstance(op, ast.NotEq | ast.NotIn)
    if isinstance(right, ast.Constant) and isinstance(right.value, bool):
        return Condition(text, sign == right.value, False, group)
    return Condition(f"{text} {_OPERATORS.get(type(op), '?')} {ast.unparse(right)}", sign, False, group)


# Operator -> how it is written in the key of a condition; `!=` and `not in` are negations of the same key.
_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "==",
    ast.In: "in",
    ast.NotIn: "in",
    ast.Lt: "<",
    ast.Gt: ">",
    ast.LtE: "<=",
    ast.GtE: ">=",
}


def of_rank(node: ast.expr, fn: Function, module: Module, depth: int = 0) -> tuple[str, str, bool] | None:
    """An expression of the rank: as written, its group, and whether it is a boolean; None when it is no such thing."""
    if isinstance(node, ast.BinOp):
        rank_parts = of_rank(node.left, fn, module, depth)
        return rank_parts and (ast.unparse(node), rank_parts[1], False)
    if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp) and depth:
        parts = [node.left] if isinstance(node, ast.Compare) else getattr(node, "values", None) or [node.operand]  # type: ignore[union-attr]
        if isinstance(node, ast.Compare) and (len(node.ops) > 1 or condition(node, fn, module, depth) is None):
            return None
        rank_parts = next((f for part in parts if (f := of_rank(part, fn, module, depth))), None)
        return rank_parts and (ast.unparse(node), rank_parts[1], True)
    if isinstance(node, ast.Call):
        name = short_name(node.func)
        if name in catalogue.RANK_CALLS:
            group = keyword(node, "group", 0) if name == "get_rank" else None
            return dotted(node.func) + "()", written(group), name.startswith(BOOLEAN)
        if name == "rank" and not node.args and not node.keywords and isinstance(node.func, ast.Attribute):
            return dotted(node.func) + "()", "", False
        if not node.args and not node.keywords and _GROUP_RANK.fullmatch(name):
            return dotted(node.func) + "()", _GROUP_RANK.sub(r"\1", name), False
        if name == "int" and node.args:
            return of_rank(node.args[0], fn, module, depth)
        if name in ("get", "getenv") and node.args and _names_rank(node.args[0]):
            return "rank", "", False
        if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            return of_rank(ast.Attribute(node.args[0], str(node.args[1].value)), fn, module, depth)
        return None
    if isinstance(node, ast.Subscript):
        return ("rank", "", False) if _names_rank(node.slice) and short_name(node.value) == "environ" else None
    if isinstance(node, ast.Name):
        return _name_of_rank(node, fn, module, depth)
    if isinstance(node, ast.Attribute):
        if OF_MATRIX.search(dotted(node)):
            return None
        if node.attr.lower().strip("_") in catalogue.RANK_NAMES:
            return dotted(node), "", node.attr.startswith(BOOLEAN)
        on_self = isinstance(node.value, ast.Name) and node.value.id == fn.self_name and depth < ALIASES
        values = (pair for c in fn.cls.ancestry for pair in c.values.get(node.attr, ())) if fn.cls and on_self else ()
        rank_parts = next((r for value, scope in values if (r := of_rank(value, scope, module, depth + 1))), None)
        return rank_parts and (dotted(node), rank_parts[1], rank_parts[2])
    return None


def _name_of_rank(node: ast.Name, fn: Function, module: Module, depth: int) -> tuple[str, str, bool] | None:
    """A name that is bound to the rank, or is one of the usual names of it."""
    for scope in fn.scopes():
        value = scope.bound.get(node.id)
        if value is not None and depth < ALIASES:
            rank_parts = of_rank(value, scope, module, depth + 1)
            if rank_parts is not None:
                return (node.id if rank_parts[2] else rank_parts[0]), rank_parts[1], rank_parts[2]
            return None
        if node.id in scope.parameters:
            break
    if node.id.lower().strip("_") in catalogue.RANK_NAMES:
        return node.id, "", node.id.startswith(BOOLEAN)
    return None


def _names_rank(node: ast.expr) -> bool:
    """Whether this is the name of an environment variable with the rank."""
    return isinstance(node, ast.Constant) and node.value in catalogue.RANK_VARIABLES


def _is_number(node: ast.expr, number: int) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return bool(node.operand.value == -number)
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == number


def _is_zero_or_none(node: ast.expr) -> bool:
    """`[-1, 0]`: the first rank, or no ranks at all."""
    elements = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else []
    return any(_is_number(e, 0) for e in elements) and all(_is_number(e, 0) or _is_number(e, -1) for e in elements)


def _is_nan(node: ast.expr, fn: Function, module: Module) -> Condition | None:
    """`torch.isnan(loss)` of a value that was not reduced over the ranks before, and so differs between them."""
    at: ast.AST = node
    while isinstance(at, ast.Call) and isinstance(at.func, ast.Attribute) and at.func.attr in ("any", "all", "item"):
        at = at.func.value
    if not isinstance(at, ast.Call) or short_name(at.func) not in ("isnan", "isinf", "isfinite"):
        return None
    name = dotted(at.args[0]) if at.args else dotted(getattr(at.func, "value", at.func))
    for call in fn.calls:
        if call.lineno < node.lineno and any(dotted(a) == name for a in call.args) and collective(call, fn, module):
            return None
    return Condition(f"{short_name(at.func)}({name})", True, True, "", DATA) if name else None


def _local(test: ast.expr, node: ast.expr, sign: bool, fn: Function) -> Condition | None:
    """A test of a list that this function fills itself, inside a condition."""
    while isinstance(node, ast.Call) and short_name(node.func) in ("len", "any", "all", "bool") and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Attribute) and _collects(node, fn):
        return Condition(f"len({dotted(node)}) > 0", sign, True, "", DATA)
    if not isinstance(node, ast.Name):
        return None
    start = fn.bound.get(node.id)
    empty = (isinstance(start, ast.List) and not start.elts) or (isinstance(start, ast.Dict) and not start.keys)
    if not empty:
        return None
    for call in fn.calls:
        fills = dotted(call.func) in (f"{node.id}.append", f"{node.id}.extend", f"{node.id}.add")
        if fills and enclosing(call, ast.For) and enclosing(call, ast.If):
            return Condition(f"len({node.id}) > 0", sign, True, "", DATA)
    return None


def _collects(node: ast.Attribute, fn: Function) -> bool:
    """Whether an attribute is a list of results that another method fills, batch by batch, on this rank alone."""
    if fn.cls is None or dotted(node.value) != fn.self_name or not _RESULTS.search(node.attr):
        return False
    fills = (f".{node.attr}.append", f".{node.attr}.extend", f".{node.attr}.update")
    return any(dotted(call.func).endswith(fills) for m in fn.cls.methods.values() if m is not fn for call in m.calls)


_RESULTS = re.compile(
    r"output|pred|process|pending|queue|task|future|error|request|result|loss|metric|sample|score|label|target|logit|embed|feature|record|batch|detect"
)


# How many ranks take a branch, and the process groups that are made of exactly these.
# `if rank <= 1: init_process_group(rank=rank, world_size=2)` makes a group of the ranks that take the branch: no other
# rank is waited for, neither there nor in the collectives that follow in the branch.

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq,
    ast.NotIn: ast.In,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}


def makes_own_group(call: ast.Call, fn: Function, module: Module) -> bool:
    """Whether a call makes the default group of as many ranks as take the branch that it is in."""
    if module.canonical(call.func) != "torch.distributed.init_process_group":
        return False
    size = written(keyword(call, "world_size", 3))
    return any(size == few if holds else size.endswith(f" - {few}") for few, holds in _sizes(call, fn, module))


def _sizes(node: ast.AST, fn: Function, module: Module) -> Iterator[tuple[str, bool]]:
    """For how many ranks each test of the rank around a node holds, and whether the node is where it does."""
    at, around = node, parent(node)
    while around is not None and at is not fn.node:
        test = around.test if isinstance(around, ast.If) and at is not around.test else None
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and of_rank(test.left, fn, module) is not None:
            op, right = type(test.ops[0]), test.comparators[0]
            holds = at in around.body  # type: ignore[attr-defined]
            if few := _counted(_OPPOSITE.get(op, op), right):
                yield few, holds != (op in _OPPOSITE)
        at, around = around, parent(around)


def _counted(op: type[ast.cmpop], right: ast.expr) -> str:
    """The number of ranks for which a comparison of the rank holds, as it may be written; empty if unknown."""
    if op is ast.Eq:
        return "1"
    if op is ast.In:
        return str(len(right.elts)) if isinstance(right, ast.List | ast.Tuple | ast.Set) else ""
    if op is ast.LtE:
        number = right.value if isinstance(right, ast.Constant) else None
        return str(number + 1) if isinstance(number, int) else f"{ast.unparse(right)} + 1"
    return ast.unparse(right) if op is ast.Lt else ""
