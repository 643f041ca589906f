"""Locks that wait for each other, or for their own holder: in both orders, taken again, needed by a callback."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from paceline.concurrency.check.flow.components import keep, shortest_circles, together
from paceline.concurrency.check.flow.effects import Effect, ends_first, runs_now, text_of
from paceline.concurrency.check.flow.walk import Held
from paceline.concurrency.check.libraries.catalogue import CALLBACK_WORDS
from paceline.concurrency.check.reporting.findings import Step
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, call_steps, is_single, same_object
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, is_within, receiver_of, short_name
from paceline.concurrency.check.threads.lock_order import WITNESSES, Edge, edges, of_instances
from paceline.narrative import Wait


def lock_order(facts: Facts) -> Iterator[Witness]:
    """Report cycles in the graph of locks that are taken while another is held."""
    ways: dict[tuple[str, str], list[Edge]] = {}
    reported: set[tuple[str, int]] = set()
    for edge in edges(facts):
        first, second = edge.first.resource, edge.second.resource
        if first.id == second.id:
            # A lock around both makes the two orders exclude each other.
            likely = 0.0 if edge.gates else of_instances(edge, facts.module)
            if likely and (first.id, edge.steps[0][1].lineno) not in reported:
                reported.add((first.id, edge.steps[0][1].lineno))
                yield _swapped(edge, likely)
        # Of locks in a container it is not known whether the two orders are of the same ones.
        elif not first.one_of_several and not second.one_of_several:
            keep(ways.setdefault((first.id, second.id), []), edge, WITNESSES)
    following: dict[str, list[str]] = {}
    for one, other in ways:
        following.setdefault(one, []).append(other)
    for circle in shortest_circles(following):
        chosen = together([ways[pair] for pair in pairwise([*circle, circle[0]])])
        if chosen is not None:
            yield _report_lock_order(chosen, ways)


def _report_lock_order(circle: list[Edge], ways: dict[tuple[str, str], list[Edge]]) -> Witness:
    """The finding; its story begins with the rarer order, which is the likelier mistake."""
    ends = [(edge.first.resource, edge.second.resource) for edge in circle]
    rarest = min(range(len(circle)), key=lambda i: (len(ways[ends[i][0].id, ends[i][1].id]), i))
    circle = circle[rarest:] + circle[:rarest]
    story, waits = [], []
    threads = [f"thread {letter}" for letter in "ABCDEFGH"[: len(circle)]]
    for edge, who, whom in zip(circle, threads, [*threads[1:], threads[0]], strict=True):
        first, second = edge.first.resource.id, edge.second.resource.id
        story += [Step(who, site.lineno, f"runs {ast.unparse(site)}") for _, site in edge.bound]
        story.append(Step(who, edge.taken, f"{edge.fn.qualname} takes {first}"))
        story += call_steps(who, edge.steps, f"waits for {second}, which {whom} holds")
        waits.append(Wait(who, f"took {first} at line {edge.taken}", f"release {second}", whom))
    at, names = circle[0], [edge.first.resource.id for edge in circle]
    sure = all(end.resource.sure for edge in circle for end in (edge.first, edge.second))
    by = "" if len(at.steps) == 1 else f" by {text_of(at.steps[0][1])}"
    return Witness(
        at.steps[0][1],
        at.fn,
        story=story,
        confidence=0.9 if sure and len(circle) == 2 else 0.6,
        waits=waits,
        order=" -> ".join([*names, names[0]]),
        how=f"{at.second.resource.id} is taken{by}",
        names=names,
        elsewhere=", ".join(f"line {(edge.bound or edge.steps)[0][1].lineno}" for edge in circle[1:]),
        edge=at,
        locks=" ".join(sorted(set(names))),
    )


def _swapped(edge: Edge, likely: float) -> Witness:
    """The finding for two instances of one class, or two elements of one container."""
    one, two = (ast.unparse(end.node) for end in (edge.first, edge.second))
    runs = [Step("thread A", site.lineno, f"runs {ast.unparse(site)}") for _, site in edge.bound]
    at, lock = edge.steps[0][1], edge.first.resource.id
    return Witness(at, edge.fn, "swapped", confidence=likely, one=one, two=two, lock=lock, edge=edge, runs=runs)


#: By whether it is a semaphore.
_WAITS_FOR_ITSELF = (
    "it is not an RLock, so the thread waits for itself",
    "once as many threads or tasks hold a permit as there are, all of them wait for another one",
)


def lock_taken_again(facts: Facts) -> Iterator[Witness]:
    """Report takes of a held lock on the same object, directly or through calls."""
    for fn in facts.module.functions:
        reported: set[tuple[str, int]] = set()
        yield from _between_items(fn, facts)
        for effect, locks_held in facts.events(fn):
            for first in locks_held:
                lock = first.resource
                alone = lock.non_reentrant or lock.kind.endswith("Semaphore")
                # An RLock may be taken again by its holder, and what is one of several may be another one.
                if not alone or not lock.sure or lock.one_of_several:
                    continue
                steps: tuple[tuple[Function, ast.expr], ...] | None = None
                if effect.kind == "take" and effect.resource is not None and effect.resource.id == lock.id:
                    node = effect.node.func.value if isinstance(effect.node, ast.Call) else effect.node  # type: ignore[attr-defined]
                    # Locks of two objects of a class have one id, so the objects have to be written alike.
                    if dotted(node) == first.receiver and effect.line != first.line:
                        steps = ((fn, effect.node),)
                elif effect.callee is not None and (ends_first if lock.kind == "AsyncSemaphore" else runs_now)(effect):
                    take = facts.takes(effect.callee).get(lock.id)
                    # A function on the way that releases the lock first takes it from no one.
                    given_up = take is None or any(lock.id in facts.drops(f) for f, _ in take.steps)
                    if take is not None and take.same and not given_up and _of_one_object(effect, first, fn, facts):
                        steps = ((fn, effect.node), *take.steps)
                if steps is not None and (lock.id, effect.line) not in reported:
                    reported.add((lock.id, effect.line))
                    by = "" if len(steps) == 1 else f" by {text_of(effect.node)}"
                    reason = _WAITS_FOR_ITSELF[lock.kind.endswith("Semaphore")]
                    yield Witness(
                        effect.node, fn, lock=lock, by=by, first=first, reason=reason, steps=steps, where=steps[-1][0]
                    )


def _between_items(fn: Function, facts: Facts) -> Iterator[Witness]:
    """A loop over a generator that holds a lock at its yield, and takes that lock for an item."""
    for loop in fn.loops:
        call = loop.iter if isinstance(loop, ast.For) else None
        maker = facts.module.callee(call, fn) if isinstance(call, ast.Call) else None
        if not isinstance(loop, ast.For) or maker is None or not maker.generator:
            continue
        locks_held = {
            h.resource.id: h for h in facts.walk(maker).at_yield if h.resource.non_reentrant and h.resource.sure
        }
        for effect in facts.walker.effects(fn) if locks_held else ():
            if not is_within(effect.node, loop.body) or effect.callee is None or not runs_now(effect):
                continue
            take = next((t for name, t in facts.takes(effect.callee).items() if name in locks_held), None)
            if take is not None:
                steps, lock_held = ((fn, effect.node), *take.steps), locks_held[take.resource.id]
                yield Witness(effect.node, fn, "between", lock_held=lock_held, maker=maker, loop=loop, steps=steps)
                return


def _of_one_object(effect: Effect, first: Held, fn: Function, facts: Facts) -> bool:
    """Whether a call is about the object whose lock is held: the own one, another one, or a lock of none."""
    own = bool(fn.self_name) and first.receiver.startswith((f"{fn.self_name}.", "cls."))
    stays = same_object(effect, fn) or is_single(first.resource)
    return (stays and (own or "." not in first.receiver)) or _of_the_same(effect, first, fn, facts)


def _of_the_same(effect: Effect, first: Held, fn: Function, facts: Facts) -> bool:
    """Whether a call is a method of the other object whose lock is held: `ledger.balance()` under `ledger.lock`."""
    function = getattr(effect.node, "func", None)
    owner = first.receiver.rpartition(".")[0] if first.resource.non_reentrant else ""
    if not isinstance(function, ast.Attribute) or not owner or owner in (fn.self_name, "cls") or "(" in owner:
        return False
    called = dotted(function.value)
    if called == owner:
        return True
    for block in fn.withs:
        for item in block.items:  # `with ledger.transaction() as tx`, which yields the ledger itself
            context = item.context_expr
            named = item.optional_vars is not None and dotted(item.optional_vars) == called
            callee = facts.module.callee(context, fn) if named and isinstance(context, ast.Call) else None
            yields = [dotted(y.value) for y in callee.yields if y.value is not None] if callee is not None else []
            of_owner = isinstance(context, ast.Call) and dotted(getattr(context.func, "value", context)) == owner
            if callee is not None and of_owner and yields == [callee.self_name]:
                return True
    return False


COMPLETES = ("set_result", "set_exception", "set_running_or_notify_cancel")


def callback_under_lock(facts: Facts) -> Iterator[Witness]:
    """Report calls of unknown callbacks under a lock that a public method takes."""
    for fn in facts.module.functions:
        reported: set[str] = set()
        for effect, locks_held in facts.events(fn):
            of_threads = [h for h in locks_held if h.resource.kind in ("Lock", "RLock")]
            locks = [h for h in of_threads if h.resource.sure and not h.resource.one_of_several]
            if not locks or effect.kind != "call" or not isinstance(effect.node, ast.Call):
                continue
            if effect.callee is None:
                yield from _added(effect, locks, fn, facts)
            what = _callback(effect, fn, facts) or _known_callback(effect, locks, fn, facts)
            first = next((h for h in locks if h.resource.non_reentrant or what == "the callbacks of a future"), None)
            if not what or first is None or first.resource.id in reported:
                continue
            lock = first.resource.id
            back = _way_back(effect, lock, fn, facts)
            if not back:
                continue
            reported.add(lock)
            yield Witness(effect.node, fn, what=what, lock=lock, first=first, back=back)


def _way_back(effect: Effect, lock: str, fn: Function, facts: Facts) -> list[Step]:
    """How a callback gets to the lock: the path of one that is known to take it, or else any public function.

    That some of the callbacks are known makes the call no less open: others may be registered. Empty where the call
    names one function, which does not take the lock.
    """
    callees = (e.callee for e in facts.walker.effects(fn) if e.node is effect.node and e.callee is not None)
    takes = next((t for callee in callees if (t := facts.takes(callee).get(lock)) is not None), None)
    if takes is not None:
        return call_steps("thread A", takes.steps, f"waits for {lock}, which it holds")
    named = effect.callee is not None and facts.module.callee(effect.node, fn) is not None  # type: ignore[arg-type]
    other = next((f for f in facts.module.functions if f is not fn and _enters(f, lock, facts)), None)
    if other is None or named:
        return []
    return [Step("thread A", other.line, f"calls back into {other.qualname}, which waits for {lock}")]


def _added(effect: Effect, locks: list[Held], fn: Function, facts: Facts) -> Iterator[Witness]:
    """A callback of a future that takes a held lock: it runs at once, in this thread, if the future is done already."""
    call = effect.node
    if not isinstance(call, ast.Call) or short_name(call.func) != "add_done_callback" or not call.args:
        return
    callback = facts.module.function_named(call.args[0], fn)
    takes = facts.takes(callback) if callback is not None and not fn.asynchronous else {}
    for lock_held in locks:
        lock = lock_held.resource
        if lock.non_reentrant and lock.id in takes:
            yield Witness(call, fn, "added", lock=lock, lock_held=lock_held, steps=takes[lock.id].steps)


def _known_callback(effect: Effect, locks: list[Held], fn: Function, facts: Facts) -> str:
    """A callback, whatever it is called: a function in a variable that takes one of these locks, the only such one."""
    call = effect.node
    named = getattr(call, "func", call)
    if effect.callee is None or effect.implicit or effect.callee.name == short_name(named) or not runs_now(effect):
        return ""
    takes = facts.takes(effect.callee)
    return "a callback" if any(h.resource.id in takes and facts.is_one_object(h.resource) for h in locks) else ""


def _enters(fn: Function, lock: str, facts: Facts) -> bool:
    """Whether a public function takes the lock."""
    return not fn.name.startswith("_") and any(
        m.kind == "take" and m.resource is not None and m.resource.id == lock for m, _ in facts.events(fn)
    )


def _callback(effect: Effect, fn: Function, facts: Facts) -> str:
    """What a call runs, if it is a callback; else empty."""
    call = effect.node
    assert isinstance(call, ast.Call)
    name = short_name(call.func).lower()
    if name in COMPLETES:
        return "the callbacks of a future"
    receiver = short_name(receiver_of(call) or call).lower()
    is_future = name == "cancel" and (receiver in ("f", "fut") or "future" in receiver)
    # `cancel` runs callbacks only where some were added.
    if is_future and any(a.attr == "add_done_callback" for f in facts.module.functions for a in f.attributes):
        return "the callbacks of a future"
    if name.endswith(CALLBACK_WORDS) and not _is_plain(call.func, fn):
        return "a callback"
    loops = (loop for loop in fn.loops if not isinstance(loop, ast.While) and dotted(loop.target) == dotted(call.func))
    over = " ".join(ast.unparse(loop.iter).lower() for loop in loops) if isinstance(call.func, ast.Name) else ""
    return "callbacks" if any(word.strip("_") in over for word in CALLBACK_WORDS) else ""


def _is_plain(function: ast.expr, fn: Function) -> bool:
    """Whether this names a function of this or another module, rather than one that was passed in."""
    if isinstance(function, ast.Name):
        return not any(function.id in scope.parameters or function.id in scope.bound for scope in fn.scopes())
    on_self = isinstance(function, ast.Attribute) and dotted(function.value) == fn.self_name
    name = short_name(function)
    return not on_self or (fn.cls is not None and (fn.cls.method(name) is not None or name not in fn.cls.values))
