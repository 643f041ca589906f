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
from paceline.concurrency.check.syntax.tree import (
    dotted,
    enclosing,
    following,
    keyword,
    names_of,
    reads,
    receiver_of,
    short_name,
)

ROOTED = libraries.words("collectives with a root")


def root_mismatch(facts: Facts) -> Iterator[Witness]:
    """Report rooted collectives with the own rank as root, and branches that differ in root or group."""
    for fn in facts.module.functions:
        for call in fn.calls:
            collective = facts.sequences.collective(call, fn)
            if collective is not None and collective.name in ROOTED and collective.root:
                names, root = f"{text_of(call)} names", collective.root
                if not collective.group and _own(collective, fn, facts):
                    message = f"{names} the calling rank as its root ({root}): each rank names another one"
                    yield Witness(call, fn, message=message, other=call)
                if why := _outside(collective, fn, facts):
                    yield Witness(call, fn, message=f"{names} {root} as its root, {why}", other=call)
            members = _members(call, collective)
            if members is not None and facts.module.varying.why(members, fn) == RANK and not _chosen(members, fn):
                yield Witness(call, fn, "group", where=f"depends on the rank ({ast.unparse(members)})", other=call)
        for test in fn.tests:
            if isinstance(test, ast.If) and facts.sequences.conditions(test.test, fn):
                yield from _between_branches(test, fn, facts)


def _between_branches(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """The same collectives on both sides of a test of the rank, with other roots or groups."""
    yes, no = (
        [i for item in facts.sequences.body(b, fn, None).items for i in flattened(item)]
        for b in (test.body, _otherwise(test, fn, facts))
    )
    # Different collectives on the two sides are reported by PC501, whatever their arguments.
    for one, two in zip(yes, no, strict=True) if [i.name for i in yes] == [i.name for i in no] else ():
        if not isinstance(one.at, ast.Call) or not isinstance(two.at, ast.Call):
            continue
        branch = f"the other branch of `if {ast.unparse(test.test)}` (line {one.at.lineno})"
        named = [_members(call, facts.sequences.collective(call, fn)) for call in (one.at, two.at)]
        texts = [ast.unparse(members) for members in named if members is not None]
        if len(texts) == 2 and texts[0] != texts[1]:
            yield Witness(two.at, fn, "group", where=f"differs from {branch}", other=one.at)
        if any("ROOT" in r or "PROC_NULL" in r for r in (one.root, two.root)):
            continue  # an intercommunicator: the root's own group passes these
        sides = (("root", one.root, two.root), ("group", one.group, two.group))
        differ = next((what for what, a, b in sides if a != b and _plain(a) and _plain(b)), "")
        if differ:
            message = f"{text_of(two.at)} has a different {differ} than in {branch}"
            yield Witness(two.at, fn, message=message, other=one.at)


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
            return any(r.value and _one_of_several(r.value, callee, facts, depth + 1) for r in callee.returns)
        members = keyword(group, "ranks", 0) if short_name(group.func) == "new_group" else None
        loop = enclosing(group, ast.For)
        chosen = {n.id for n in names_of(loop.target)} if loop is not None else set()
        values = [members, *(fn.bound.get(n.id) for n in names_of(members))] if members else []
        return any(value is not None and reads(value, name) for value in values for name in chosen)
    bindings = [(v, fn) for v in fn.values_of(group.id)] if isinstance(group, ast.Name) else []
    bindings = bindings or facts.module.given(group, fn)
    if not bindings and isinstance(group, ast.Name):
        others = (f for f in facts.module.functions if group.id in f.globals and f is not fn)
        bindings = [(v, f) for f in others for v in f.values_of(group.id)]
    groups = [(v, scope) for v, scope in bindings if not isinstance(v, ast.Constant) and v is not group]
    return any(_one_of_several(v, scope, facts, depth + 1) for v, scope in groups)


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


def _own(collective: Collective, fn: Function, facts: Facts) -> bool:
    """Whether the root is the own rank, on every rank."""
    root = ast.parse(collective.root, mode="eval").body
    who = of_rank(root, fn, facts.module) if isinstance(root, ast.Name | ast.Call | ast.Attribute) else None
    # A parameter that is called `rank` may be the root that all callers agree on.
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
    for call, fn in facts.module.calls:
        collective = facts.sequences.collective(call, fn)
        if collective is not None and collective.name in GATHERS:
            yield from _of_own_length(call, fn, facts)
        sent = call.args[0] if collective is not None and collective.name in SENT and call.args else None
        for test in fn.tests if isinstance(sent, ast.Name) else ():
            branches = isinstance(test, ast.If) and test.orelse and test.lineno < call.lineno
            if not branches or not facts.sequences.conditions(test.test, fn):
                continue
            made = [m for body in (test.body, test.orelse) if (m := _made(sent.id, body))]  # type: ignore[union-attr]
            of_data = next((m for m in made if _of_list(m)), None)
            of_size = next((m for m in made if short_name(m.func) in MADE_OF_SIZE), None)
            if of_data is not None and of_size is not None and not _padded(of_data, test):
                yield Witness(call, fn, of_data=of_data, of_size=of_size)


GATHERS = {"all_gather": 1, "all_gather_into_tensor": 1, "gather": 0}
KEEPS = libraries.names("methods that keep the elements of a tensor")
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
    for value in (s.value for s in body if isinstance(s, ast.Assign) and dotted(s.targets[0]) == name):
        call = value if isinstance(value, ast.Call) else None
        while call is not None and isinstance(inner := receiver_of(call), ast.Call):
            call = inner  # .view(-1), .to(device)
    return call


def _of_list(call: ast.Call) -> bool:
    return short_name(call.func) in MADE_OF_DATA and bool(call.args) and isinstance(call.args[0], ast.Name)


def _padded(call: ast.Call, test: ast.If | ast.While) -> bool:
    """Whether the list is padded to a fixed size: `x += [0] * (n - len(x))`."""
    name = call.args[0].id  # type: ignore[attr-defined]
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Call):
            padding = node.right
            if short_name(padding.func) == "len" and ast.unparse(padding.args[0]) == name:
                return True
    return False
