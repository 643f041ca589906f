"""Collectives that some ranks do not call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from typing import TypeGuard

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import RANK_DECORATORS
from paceline.concurrency.check.ranks.branches import MAKES_FILES
from paceline.concurrency.check.ranks.items import Item, flattened
from paceline.concurrency.check.ranks.origins import DATA, FILES, HOST, RANK
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import enclosing, is_constant, last_line, short_name, walk_here
from paceline.concurrency.check.values.sources import parts


def collective_on_some_ranks(facts: Facts) -> Iterator[Witness]:
    """Report branches on the rank with different collectives, and collectives in functions for one rank."""
    for fn in facts.module.functions:
        if fn.decorated(*RANK_DECORATORS) or _for_one_rank(fn, facts):
            how = f"{fn.qualname} runs on one rank only (line {fn.line})"
            yield from (_on_some(fn, item, how, fn.line, 0.85) for item in facts.sequences.operations(fn)[:1])
        # What a test leaves instead is PC502.
        differences = (d for d in facts.sequences.differences(fn) if not d.exit and d.items)
        for difference in islice(differences, 3):
            why, line = difference.condition.why, difference.test.lineno
            how = f"`if {ast.unparse(difference.test.test)}` at line {line} depends on {why}"
            sure = 0.6 if why == DATA else 0.7 if difference.condition.local else 0.85
            yield _on_some(difference.fn, difference.items[0], how, line, sure)
        for operand, item, why in facts.sequences.choices(fn):
            yield _on_some(fn, item, f"`{ast.unparse(operand)}` decides on {why}", operand.lineno, 0.6)
        for loop, item, why in facts.sequences.turns(fn):
            how = f"the loop at line {loop.lineno} runs as often as {why} says"
            yield _on_some(fn, item, how, loop.lineno, 0.65)


def _for_one_rank(fn: Function, facts: Facts) -> bool:
    """Whether a decorator of the file calls the function under a test of the rank alone."""
    for decorator in getattr(fn.node, "decorator_list", ()):
        function = facts.module.function_named(decorator, facts.module.top)
        parameter = next(iter(function.parameters), "") if function is not None else ""
        for inner in function.nested.values() if function is not None else ():
            calls = [c for c in inner.calls if isinstance(c.func, ast.Name) and c.func.id == parameter]
            tests = [enclosing(c, ast.If) for c in calls]
            if calls and all(isinstance(t, ast.If) and facts.sequences.conditions(t.test, inner) for t in tests):
                return True
    return False


def _on_some(fn: Function, item: Item, why: str, line: int, sure: float) -> Witness:
    by = text_of(item.at) if isinstance(item.at, ast.Call) else item.name
    within = "" if by.endswith(item.name + "()") else f", which calls {item.name},"
    return Witness(
        item.at,
        fn,
        confidence=sure,
        by=by,
        within=within,
        why=why,
        line=line,
        item_line=getattr(item.at, "lineno", line),
        item=item,
    )


# Exceptions of the program or its surroundings, which every rank sees alike; any other may be raised on one rank alone.
THE_SAME = libraries.names("exceptions that every rank sees alike")


def left_before_collective(facts: Facts) -> Iterator[Witness]:
    """Report returns, raises and handlers that let one rank skip a collective."""
    for fn in facts.module.functions:
        for difference in (d for d in facts.sequences.differences(fn) if d.exit and d.missed):
            test, condition, dies = difference.test, difference.condition, difference.exit == "raise"
            # A check of shapes or lengths fails on every rank alike, or shows that one has passed other arguments.
            if not (dies and _compares_forms(test.test)):
                why = f"`if {ast.unparse(test.test)}` depends on {condition.why} and makes one rank {difference.exit}"
                sure = 0.5 if dies else 0.7 if condition.local else 0.8
                yield _left_before(fn, test, difference.missed[0], why, sure)
        yield from _caught(fn, facts)
        yield from _raised(fn, facts)
        yield from _without_loss(fn, facts)
        yield from _raised_in_call(fn, facts)


def _raised_in_call(fn: Function, facts: Facts) -> Iterator[Witness]:
    """A function that raises on the rank whose own part is not as it should be, called before a collective."""
    flat = facts.sequences.operations(fn)
    for call in fn.calls if flat else ():
        callee = facts.module.callee(call, fn)
        missed = next((i for i in flat if getattr(i.at, "lineno", 0) > call.lineno), None)
        if callee is None or callee is fn or missed is None or enclosing(call, ast.If, ast.Try) is not None:
            continue
        for test in callee.tests:
            statement = test.body[-1]
            if not isinstance(statement, ast.Raise) or _compares_forms(test.test):
                continue
            conditions = facts.sequences.conditions(test.test, callee)
            # Of several conditions one may make the ranks agree again.
            is_local = len(conditions) == 1 and conditions[0].local and conditions[0].why in (RANK, HOST, FILES)
            if is_local and not _is_assertion(statement) and enclosing(test, ast.Try) is None:
                raises = f"makes one rank raise in {callee.qualname}(), which {fn.qualname} calls (line {call.lineno})"
                why = f"`if {ast.unparse(test.test)}` depends on {conditions[0].why} and {raises}"
                yield _left_before(callee, statement, missed, why, 0.5)


def _compares_forms(test: ast.expr) -> bool:
    """Whether a test compares only lengths, shapes or types of values with each other, as checks of arguments do."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    compared = [[part.left, *part.comparators] for part in parts if isinstance(part, ast.Compare)]
    return len(compared) == len(parts) and all(_is_form(each) for sides in compared for each in sides)


def _is_form(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return short_name(value.func) in ("len", "size", "numel", "dim")
    return isinstance(value, ast.Attribute) and value.attr in ("shape", "dtype", "ndim", "device")


def _without_loss(fn: Function, facts: Facts) -> Iterator[Witness]:
    """A step of a Lightning module that returns no loss on one rank: it skips `backward()`, which averages."""
    if fn.name != "training_step" or fn.cls is None or not fn.cls.is_a("lightning.LightningModule"):
        return
    for test in fn.tests:
        statement = test.body[-1]
        none = isinstance(statement, ast.Return) and (statement.value is None or is_constant(statement.value, None))
        conditions = facts.sequences.conditions(test.test, fn) if none and isinstance(test, ast.If) else []
        if conditions:
            why = f"`if {ast.unparse(test.test)}` depends on {conditions[0].why}, and one rank returns no loss"
            yield _left_before(fn, statement, Item("backward", fn.returns[-1]), why, 0.6)


def _raised(fn: Function, facts: Facts) -> Iterator[Witness]:
    """A raise or return, under a further test, inside a branch that only some ranks take."""
    sequences = facts.sequences
    if not sequences.whole(fn).items:
        return
    for test in fn.tests:
        conditions = sequences.conditions(test.test, fn) if isinstance(test, ast.If) else []
        if not conditions or conditions[0].local or conditions[0].group:
            continue
        assert isinstance(test, ast.If)
        for body, other in ((test.body, test.orelse), (test.orelse, test.body)):
            # Where both sides leave, no rank comes to what follows.
            if other and sequences.body(other, fn, None).exit:
                continue
            missed = sequences.missed(test, fn, conditions[0])
            if not missed and conditions[0].key.endswith(" == 0"):  # one rank alone; of a set of ranks all raise alike
                missed = sequences.in_further_turns(test, fn, conditions[0])
            for node in sorted(walk_here(*body), key=lambda n: getattr(n, "lineno", 0)) if missed else ():
                if not _leaves(node) or enclosing(node, ast.If) is test:
                    continue
                if not _is_caught(node, test) and not _is_assertion(node):
                    why = f"`if {ast.unparse(test.test)}` (line {test.lineno}) lets one rank {_LEAVES[type(node)]}"
                    yield _left_before(fn, node, missed[0], why, 0.5)
                    return


def _exits(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and _leaves(node)


def _leaves(node: ast.AST) -> TypeGuard[ast.Raise | ast.Return | ast.Expr]:
    """Whether this is a `raise`, a `return` or `sys.exit()`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return short_name(node.value.func) in ("exit", "_exit")
    return isinstance(node, ast.Raise | ast.Return)


_LEAVES = {ast.Raise: "raise", ast.Return: "return", ast.Expr: "exit"}


def _is_assertion(node: ast.Raise | ast.Return | ast.Expr) -> bool:
    """Whether only a mistake in the program can raise this, which every rank makes."""
    if not isinstance(node, ast.Raise):
        return False
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return raised is None or short_name(raised) in ("AssertionError", "NotImplementedError", "TypeError")


def _is_caught(node: ast.AST, test: ast.If) -> bool:
    around = enclosing(node, ast.Try)
    return isinstance(around, ast.Try) and around.lineno > test.lineno and bool(around.handlers)


def _caught(fn: Function, facts: Facts) -> Iterator[Witness]:
    """Handlers of an exception that one rank alone may see, and that then skip a collective."""
    usual = facts.sequences.operations(fn)
    if not usual and not facts.sequences.own(fn):
        return
    for node in ast.walk(fn.node):
        if not isinstance(node, ast.Try) or not node.handlers or not _broad(node.handlers[0]):
            continue
        if _refused_by_all(node, fn, facts):
            continue
        final = node.handlers[0].body[-1]
        alone = [i for item in facts.sequences.body(node.handlers[0].body, fn, None).items for i in flattened(item)]
        rest = [i.name for i in usual if i.at not in [other.at for other in alone]]
        calls = (c for c in walk_here(*node.body) if isinstance(c, ast.Call))
        only = all(facts.sequences.collective(c, fn) is not None for c in calls)  # fails on every rank, or on none
        # A handler that calls what would have come anyway lets this rank take part, only from elsewhere.
        if alone and alone[0].name not in rest and isinstance(alone[0].at, ast.Call) and not only:
            yield Witness(alone[0].at, fn, "in-handler", tried=node, name=alone[0].name)
        if not alone and (skipped := _fallen_out_of(node, fn, facts)) is not None:
            how = f"an exception that only one rank sees (line {node.lineno}) takes it out of the `try`"
            yield _left_before(fn, node.handlers[0].body[0], skipped, how, 0.6)
            continue
        if not isinstance(final, ast.Return | ast.Continue | ast.Break) and not _exits(final):
            continue
        unusual = facts.sequences.body(fn.body, fn, (f"except {node.lineno}", True))
        reached = [i for item in unusual.items for i in flattened(item)]
        missed = [i for i in usual if getattr(i.at, "lineno", 0) > last_line(node) and i not in reached]
        if missed:
            how = "exit" if _exits(final) else type(final).__name__.lower()
            yield _left_before(fn, final, missed[0], f"an exception that only one rank sees makes it {how}", 0.65)


def _refused_by_all(tried: ast.Try, fn: Function, facts: Facts) -> bool:
    """Whether what is caught is raised by functions of the file, each time under a test that all ranks decide alike.

    An exception in a variable was caught before: one rank has sent it to the others, if they all decide alike.
    """
    names = _caught_by(tried.handlers[0])
    callees = (facts.module.callee(c, fn) for c in fn.calls if enclosing(c, ast.Try) is tried)
    raised = [
        (enclosing(n, ast.If), callee)
        for callee in callees
        if callee is not None
        for n in walk_here(*callee.body)
        if isinstance(n, ast.Raise) and n.exc is not None
        if isinstance(n.exc, ast.Name) or (isinstance(n.exc, ast.Call) and short_name(n.exc.func) in names)
    ]
    return bool(raised) and all(isinstance(t, ast.If) and not facts.sequences.conditions(t.test, c) for t, c in raised)


def _fallen_out_of(tried: ast.Try, fn: Function, facts: Facts) -> Item | None:
    """The collective in a `try` that a rank misses whose exception is swallowed; it was raised before, on one rank."""
    handler = tried.handlers[0]
    inside = [i for item in facts.sequences.body(tried.body, fn, None).items for i in flattened(item)]
    handler_text = ast.unparse(handler)
    memory = "out of memory" in handler_text or "OutOfMemory" in handler_text
    goes_on = any(isinstance(n, ast.Continue | ast.Break | ast.Return) for n in walk_here(handler))
    # A handler that raises ends this rank, and with it the job; one for a lack of memory passes on what is left.
    if not inside or (isinstance(handler.body[-1], ast.Raise) and not (memory and goes_on)):
        return None
    first = getattr(inside[0].at, "lineno", 0)
    before = (c for c in fn.calls if tried.lineno < c.lineno < first and enclosing(c, ast.Try) is tried)
    leads = (c for c in before if (b := enclosing(c, ast.If)) is None or b.lineno < tried.lineno or _reaches(b, first))
    alone = memory or any(_fails_alone(call, fn, facts) for call in leads)
    return inside[0] if alone or _skips_data(tried, inside[0], fn, facts) else None


def _skips_data(tried: ast.Try, item: Item, fn: Function, facts: Facts) -> bool:
    """Whether a handler passes by data that cannot be used, in a `try` around a step with collectives of its own."""
    step = item.at if isinstance(item.at, ast.Call) else None
    callee = facts.module.callee(step, fn) if step is not None else None
    names = _caught_by(tried.handlers[0])
    loop = enclosing(tried, ast.For, ast.AsyncFor)
    if step is None or callee is None or not isinstance(loop, ast.For | ast.AsyncFor):
        return False
    arguments = {n.id for argument in step.args for n in ast.walk(argument) if isinstance(n, ast.Name)}
    of_turn = arguments & {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    broad = not names or names & {"Exception", "RuntimeError", "BaseException"}
    return bool(of_turn) and (not broad or any(facts.module.varying.why(a, fn) == DATA for a in step.args))


def _reaches(branch: ast.AST, line: int) -> bool:
    """Whether what is inside an `if` is followed by this line; not so where that is in its other branch."""
    return isinstance(branch, ast.If) and not (branch.orelse and line <= last_line(branch))


def _fails_alone(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call can fail on one rank alone: it reads a file, writes it there, or is a function that raises."""
    callee = facts.module.callee(call, fn)
    test = enclosing(call, ast.If)
    if callee is None and isinstance(test, ast.If) and MAKES_FILES.search(short_name(call.func)):
        return bool(facts.sequences.conditions(test.test, fn))  # the disk is full for the rank that writes
    if callee is None:
        return short_name(call.func) in READS or facts.module.canonical(call.func) == "open"
    raised = (n for n in walk_here(*callee.body) if isinstance(n, ast.Raise))
    return any(n.exc is not None and not _is_assertion(n) for n in raised)


READS = {"load", "next", "read_csv", "read_parquet", "read_json", "read_text", "read_bytes", "loadtxt", "imread"}


def _broad(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches exceptions that may be raised on one rank alone."""
    return handler.type is None or not _caught_by(handler) <= THE_SAME


def _caught_by(handler: ast.ExceptHandler) -> set[str]:
    """The exceptions that a handler names."""
    return {short_name(kind) for kind in parts(handler.type)} if handler.type is not None else set()


def _left_before(fn: Function, at: ast.stmt, item: Item, why: str, sure: float) -> Witness:
    line = getattr(item.at, "lineno", at.lineno)
    by = text_of(item.at) if isinstance(item.at, ast.Call) else item.name
    turn = " in the next turn of the loop" if fn.line <= line < at.lineno else ""
    return Witness(at, fn, confidence=sure, why=why, by=by, line=line, turn=turn, item=item)
