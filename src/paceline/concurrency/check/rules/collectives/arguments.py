"""Collectives whose ranks do not agree on root, group or shape."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.ranks.branches import of_rank
from paceline.concurrency.check.ranks.collectives import Collective
from paceline.concurrency.check.ranks.items import flattened
from paceline.concurrency.check.ranks.origins import RANK
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, following, keyword, short_name

ROOTED = libraries.words("collectives with a root")


def root_mismatch(facts: Facts) -> Iterator[Witness]:
    """Report rooted collectives with the own rank as root, and branches that differ in root or group."""
    for fn in facts.module.functions:
        for call in fn.calls:
            collective = facts.sequences.collective(call, fn)
            if (
                collective is not None
                and collective.name in ROOTED
                and collective.root
                and not collective.group
                and _own(collective, fn, facts)
            ):
                yield Witness(
                    call,
                    fn,
                    message=f"{text_of(call)} names the calling rank as its root ({collective.root}): "
                    "each rank names another one",
                    other=call,
                )
            if (
                collective is not None
                and collective.name in ROOTED
                and collective.root
                and (why := _outside(collective, fn, facts))
            ):
                yield Witness(
                    call, fn, message=f"{text_of(call)} names {collective.root} as its root, {why}", other=call
                )
            members = _members(call, collective)
            if members is not None and facts.module.varying.why(members, fn) == RANK and not _chosen(members, fn):
                yield Witness(call, fn, "group", where=f"depends on the rank ({ast.unparse(members)})", other=call)
        for test in fn.tests:
            if not isinstance(test, ast.If) or not facts.sequences.conditions(test.test, fn):
                continue
            yes, no = (
                [i for item in facts.sequences.body(b, fn, None).items for i in flattened(item)]
                for b in (test.body, _otherwise(test, fn, facts))
            )
            if [i.name for i in yes] != [i.name for i in no]:
                continue
            for one, two in zip(yes, no, strict=False):
                yield from _other_members(fn, test, one.at, two.at, facts)
                if any("ROOT" in r or "PROC_NULL" in r for r in (one.root, two.root)):
                    continue  # an intercommunicator: the root's own group passes these
                differ = [
                    w
                    for w, a, b in (("root", one.root, two.root), ("group", one.group, two.group))
                    if a != b and _plain(a) and _plain(b)
                ]
                if differ and isinstance(one.at, ast.Call) and isinstance(two.at, ast.Call):
                    yield Witness(
                        two.at,
                        fn,
                        message=f"{text_of(two.at)} has a different {differ[0]} than in the other branch of "
                        f"`if {ast.unparse(test.test)}` (line {one.at.lineno})",
                        other=one.at,
                    )


def _outside(collective: Collective, fn: Function, facts: Facts) -> str:
    """Why the root of a collective of a group is no member of it: the root is a rank of the world."""
    group = keyword(collective.call, "group")
    root = keyword(collective.call, "src", 1) or keyword(collective.call, "dst")
    if group is None or root is None or keyword(collective.call, "group_src") or keyword(collective.call, "group_dst"):
        return ""
    divides = isinstance(root, ast.BinOp) and isinstance(root.op, ast.FloorDiv)
    if divides and of_rank(root.left, fn, facts.module) is not None:  # type: ignore[attr-defined]
        return "the number of a group rather than a rank of the world"
    fixed = isinstance(root, ast.Constant) and type(root.value) is int
    return (
        "a rank of the world, which is in one of several groups only"
        if fixed and _one_of_several(group, fn, facts)
        else ""
    )


def _one_of_several(group: ast.expr, fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether a group was chosen from several that a loop makes of different members."""
    if depth > 4:
        return False
    if isinstance(group, ast.Call):
        callee = facts.module.callee(group, fn)
        if callee is not None:
            return any(
                r.value is not None and _one_of_several(r.value, callee, facts, depth + 1) for r in callee.returns
            )
        members = keyword(group, "ranks", 0) if short_name(group.func) == "new_group" else None
        loop = enclosing(group, ast.For)
        chosen = (
            {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)} if isinstance(loop, ast.For) else set()
        )
        values = (
            [members, *(fn.bound.get(n.id) for n in ast.walk(members) if isinstance(n, ast.Name))] if members else []
        )
        used = {n.id for v in values if v is not None for n in ast.walk(v) if isinstance(n, ast.Name)}
        return bool(chosen & used)
    bindings: list[tuple[ast.expr, Function]] = []
    if isinstance(group, ast.Name):
        bindings = [(v, fn) for t, v in fn.assigns if isinstance(t, ast.Name) and t.id == group.id]
        if not bindings and group.id in fn.parameters:
            bindings = [(a.value, a.caller) for a in facts.module.objects.arguments(fn, group.id)]
        if not bindings:
            top = facts.module.top
            scopes = [f for f in facts.module.functions if group.id in f.globals] + [top]
            bindings = [
                (v, f)
                for f in scopes
                if f is not fn
                for t, v in f.assigns
                if isinstance(t, ast.Name) and t.id == group.id
            ]
    elif isinstance(group, ast.Attribute) and (owner := facts.module.type_of(group.value, fn)) is not None:
        bindings = [pair for cls in owner.ancestry for pair in cls.values.get(group.attr, ())]
    groups = [(v, scope) for v, scope in bindings if not isinstance(v, ast.Constant) and v is not group]
    return bool(groups) and any(_one_of_several(v, scope, facts, depth + 1) for v, scope in groups)


def _otherwise(test: ast.If, fn: Function, facts: Facts) -> list[ast.stmt]:
    """What runs where a test does not hold: its `else`, or what follows it if its body returns."""
    if test.orelse or facts.sequences.body(test.body, fn, None).exit != "return":
        return test.orelse
    return following(test)


def _plain(text: str) -> bool:
    """Whether two such texts can be compared: a name, a number, nothing, or a sum without the rank."""
    if " " in text:
        return _SUM.fullmatch(text) is not None and "rank" not in text
    return not text or text.isdigit() or text.replace(".", "").replace("_", "").isidentifier()


_SUM = re.compile(r"[\w.]+ [-+] [\w.]+")


def _members(call: ast.AST, collective: Collective | None) -> ast.expr | None:
    """The members that a call of `new_group` names, if all ranks have to make it."""
    if not isinstance(call, ast.Call) or collective is None or collective.name != "new_group":
        return None
    return None if keyword(call, "use_local_synchronization") is not None else keyword(call, "ranks", 0)


def _chosen(members: ast.expr, fn: Function) -> bool:
    """Whether the members were found by asking each of all groups for the rank, which a loop over them creates."""
    return any(any(n is members for n in ast.walk(loop)) for loop in fn.loops)


def _other_members(fn: Function, test: ast.If, one: ast.AST, two: ast.AST, facts: Facts) -> Iterator[Witness]:
    """Two branches of a test of the rank that create groups of different members."""
    if isinstance(one, ast.Call) and isinstance(two, ast.Call):
        named = [_members(call, facts.sequences.collective(call, fn)) for call in (one, two)]
        texts = [ast.unparse(members) for members in named if members is not None]
        if len(texts) == 2 and texts[0] != texts[1]:
            where = f"differs from the other branch of `if {ast.unparse(test.test)}` (line {one.lineno})"
            yield Witness(two, fn, "group", where=where, other=one)


def _own(collective: Collective, fn: Function, facts: Facts) -> bool:
    """Whether the root is the own rank, on every rank."""
    root = ast.parse(collective.root, mode="eval").body
    who = of_rank(root, fn, facts.module) if isinstance(root, ast.Name | ast.Call | ast.Attribute) else None
    if who is None or who[2] or (isinstance(root, ast.Name) and root.id in fn.parameters):
        return False
    return enclosing(collective.call, ast.If) is None  # under a condition it may be the call of one rank only


MADE_OF_DATA, MADE_OF_SIZE = (
    ("tensor", "LongTensor", "FloatTensor", "IntTensor", "as_tensor", "array"),
    ("empty", "zeros", "ones"),
)
SENT = ("broadcast", "bcast", "Bcast")


def shape_mismatch(facts: Facts) -> Iterator[Witness]:
    """Report broadcasts of a tensor made from data on one branch and of a fixed size on the other."""
    for fn in facts.module.functions:
        for call in fn.calls:
            collective = facts.sequences.collective(call, fn)
            if collective is not None and collective.name in GATHERS:
                yield from _of_own_length(call, fn, facts)
            if (
                collective is None
                or collective.name not in SENT
                or not call.args
                or not isinstance(call.args[0], ast.Name)
            ):
                continue
            name = call.args[0].id
            for test in fn.tests:
                if (
                    isinstance(test, ast.If)
                    and test.orelse
                    and test.lineno < call.lineno
                    and facts.sequences.conditions(test.test, fn)
                ):
                    one, two = _made(name, test.body), _made(name, test.orelse)
                    of_data = next((v for v in (one, two) if v is not None and _of_list(v)), None)
                    of_size = next((v for v in (one, two) if v is not None and _of_size(v)), None)
                    if of_data is not None and of_size is not None and not _padded(of_data, test):
                        yield Witness(call, fn, of_data=of_data, of_size=of_size)


GATHERS = {"all_gather": 1, "all_gather_into_tensor": 1, "gather": 0}
KEEPS = {"to", "cuda", "cpu", "float", "long", "int", "half", "double", "contiguous", "detach", "clone", "view",
         "squeeze", "unsqueeze", "numpy", "type"}  # fmt: skip
JOINS = libraries.names("functions that make a tensor of parts")
FILLED = {"randn", "rand", "zeros", "ones", "empty", "full", "arange"}


def _of_own_length(call: ast.Call, fn: Function, facts: Facts) -> Iterator[Witness]:
    """A tensor that is gathered from all ranks, with as many rows as this rank has samples."""
    place = GATHERS.get(short_name(call.func), 1)
    value = call.args[place] if len(call.args) > place and facts.module.canonical(call.func) in _OF_TORCH else None
    why = _length(value, fn, facts) if value is not None else ""
    if why and value is not None:
        yield Witness(call, fn, "of-own-length", value=value, why=why)


_OF_TORCH = ("torch.distributed.all_gather", "torch.distributed.all_gather_into_tensor", "torch.distributed.gather")


def _length(node: ast.expr, fn: Function, facts: Facts, depth: int = 0) -> str:
    """Why the number of rows of a tensor differs from rank to rank; empty when it is not known to."""
    lengths = facts.sequences.lengths
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPS:
        node = node.func.value if not node.args or not dotted(node.func).startswith("torch") else node.args[0]
    while isinstance(node, ast.Attribute) and node.attr in ("data", "grad"):
        node = node.value
    if depth > DEPTH:
        return ""
    if isinstance(node, ast.Call):
        name = short_name(node.func)
        if name in ("Parameter", *KEEPS) and node.args:
            return _length(node.args[0], fn, facts, depth + 1)
        if name in FILLED and node.args:
            return lengths.number(node.args[0], fn)
        if name in JOINS and node.args:
            return lengths.why(node.args[0], fn) or _of_parts(node.args[0], fn, facts, depth)
        callee = facts.module.callee(node, fn)
        returned = [r.value for r in callee.returns if r.value is not None] if callee is not None else []
        return next((w for v in returned if (w := _length(v, callee, facts, depth + 1))), "")  # type: ignore[arg-type]
    if isinstance(node, ast.Subscript):
        return lengths.why(node, fn)
    values = facts.module.given(node, fn)
    return next((w for v, scope in values if (w := _length(v, scope, facts, depth + 1))), "")


def _of_parts(node: ast.expr, fn: Function, facts: Facts, depth: int) -> str:
    """Why the parts of a list that are joined have other numbers of rows on each rank."""
    filled = (c.args[0] for c in fn.calls if c.args and dotted(c.func) == f"{dotted(node)}.append")
    return next((w for part in filled if (w := _length(part, fn, facts, depth + 1))), "")


DEPTH = 6


def _made(name: str, body: list[ast.stmt]) -> ast.Call | None:
    """The call that creates the tensor of this name in a body."""
    call = None
    for statement in body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and statement.targets[0].id == name
        ):
            value = statement.value
            while (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Attribute)
                and isinstance(value.func.value, ast.Call)
            ):
                value = value.func.value  # .view(-1), .to(device)
            call = value if isinstance(value, ast.Call) else None
    return call


def _of_list(call: ast.Call) -> bool:
    return short_name(call.func) in MADE_OF_DATA and bool(call.args) and isinstance(call.args[0], ast.Name)


def _of_size(call: ast.Call) -> bool:
    return short_name(call.func) in MADE_OF_SIZE


def _padded(call: ast.Call, test: ast.If) -> bool:
    """Whether the list is padded to a fixed size: `x += [0] * (n - len(x))`."""
    name = call.args[0].id  # type: ignore[attr-defined]
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Call):
            padding = node.right
            if short_name(padding.func) == "len" and ast.unparse(padding.args[0]) == name:
                return True
    return False
