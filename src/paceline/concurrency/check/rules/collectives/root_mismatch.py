"""A collective whose ranks do not agree on its root or group."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.ranks.branches import of_rank
from paceline.concurrency.check.ranks.collectives import Collective
from paceline.concurrency.check.ranks.items import flattened
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing, following
from paceline.concurrency.check.varying.reasons import RANK

ROOTED = (
    "broadcast",
    "bcast",
    "broadcast_object_list",
    "scatter",
    "gather",
    "reduce",
    "scatter_object_list",
    "gather_object",
)


def find(facts: Facts) -> Iterator[Witness]:
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
