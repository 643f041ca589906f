"""What a child process has a copy of, or takes with it when it dies."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator

from paceline.concurrency.check.flow.effects import runs_now
from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.rules.rule import Witness, blocks_that_make
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import (
    calls_in,
    dotted,
    enclosing,
    is_within,
    keyword,
    last_line,
    method_of,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.accesses import GROWS, SHRINKS, kind_of
from paceline.concurrency.check.threads.children import Child, children
from paceline.concurrency.check.threads.roots import PROCESSES, Root
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, accesses_of_class
from paceline.concurrency.check.values.bindings import start_arguments
from paceline.concurrency.check.values.calls import method_name, type_name
from paceline.concurrency.check.values.evaluation import Value

OF_PROCESSES = (
    *("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Barrier"),
    *("Queue", "JoinableQueue", "SimpleQueue", "Value", "Array"),
)
PROXIES = ("multiprocessing.DictProxy", "multiprocessing.ListProxy")
OF_THREADS = {"Event": "threading.Event", "Queue": "queue.Queue", "SimpleQueue": "queue.SimpleQueue"}


def copied_to_child(facts: Facts) -> Iterator[Witness]:
    """Report events, queues and containers of one process that are given to a child."""
    for fn in facts.module.functions:
        yield from _inside_proxy(fn, facts)
    begun = list(children(facts))
    for child in begun:
        yield from _of_threads(child, facts)
        if child.in_pool:
            yield from _assigned_late(child)
            yield from _in_task(child, facts)
    yield from _changed_copies(begun, facts)
    for cls in facts.module.classes.values():
        if "run" in cls.methods and cls.is_a(*PROCESSES):
            yield from _in_object(cls, facts.reached_from(cls.methods["run"]), facts)
    for root in facts.roots:
        if root.kind == "process" and root.several:
            yield from _one_offset(root, facts)


def _of_threads(child: Child, facts: Facts) -> Iterator[Witness]:
    """Events and queues of threads that a child is given, or that are in an object that it is given."""
    inside = _reached([child], facts)
    for value in child.given:
        resource = facts.module.resource(value, child.fn)
        if resource is not None and resource.sure and resource.kind in OF_THREADS:
            yield _report(value, child.fn, resource.id, OF_THREADS[resource.kind])
            return
    for cls in _given([child], facts):
        yield from _in_object(cls, inside, facts)


def _in_object(cls: Class, inside: set[Function], facts: Facts) -> Iterator[Witness]:
    """Events and queues of threads in an object of which a child has a copy."""
    for name in cls.values:
        resource = facts.module.attribute(cls, name)
        maker = next((fn for value, fn in cls.values[name] if fn.cls is cls and fn.name == "__init__"), None)
        if resource is None or not resource.sure or resource.kind not in OF_THREADS or maker is None or maker in inside:
            continue
        users = {a.fn for a in accesses_of_class(cls, facts).get(name, ())}
        outside = [fn for fn in users - inside if not facts.reached.get(id(fn))]
        if users & inside and outside:
            at = next(n for n in maker.attributes if dotted(n) == f"{maker.self_name}.{name}")
            yield _report(at, maker, resource.id, OF_THREADS[resource.kind])


def _changed_copies(begun: list[Child], facts: Facts) -> Iterator[Witness]:
    """State of the parent that only children change, each its own copy, and that the parent reads afterwards."""
    inside = _reached(begun, facts)
    others = [fn for fn in facts.module.functions if fn not in inside]
    # What the parent calls, too, changes the state of the parent.
    inside -= {fn for other in others for fn in facts.reached_from(other)} - {child.runs for child in begun}
    given = _given(begun, facts)
    changes: dict[Hashable, tuple[ast.Name | ast.Attribute, Function]] = {}
    for fn in (fn for fn in facts.module.functions if fn in inside):
        for node in _nodes(fn):
            for thing in _things(node, fn, given, facts) if kind_of(node) in ("write", "grow", "update") else ():
                if not (isinstance(thing, Value) and thing.fn in inside):  # which the child itself has made
                    changes.setdefault(thing, (node, fn))
    starts = {id(child.fn): child.call.lineno for child in reversed(begun)}
    reads: dict[Hashable, tuple[ast.Name | ast.Attribute, Function]] = {}
    for fn in others if changes else ():
        for node in _nodes(fn):
            for thing in _things(node, fn, given, facts):
                kinds = ("write", "grow", "update")[isinstance(node, ast.Name) :]  # to bind a name changes nothing
                # Where the parent changes it as well, what it reads need not be meant to come from the child.
                if kind_of(node) in kinds and fn.name not in BEGINNINGS:
                    changes.pop(thing, None)
                elif isinstance(node.ctx, ast.Load) and id(fn) in starts and node.lineno > starts[id(fn)]:
                    reads.setdefault(thing, (node, fn))
    for thing, (node, fn) in changes.items():
        if thing in reads:
            read, caller = reads[thing]
            yield Witness(node, fn, "assigned", what=dotted(node), caller=caller, read=read)


def _nodes(fn: Function) -> list[ast.Name | ast.Attribute]:
    """The variables and attributes that a function names."""
    return [*fn.names, *fn.attributes]


def _reached(begun: list[Child], facts: Facts) -> set[Function]:
    """What these children run."""
    return {fn for child in begun if child.runs is not None for fn in facts.reached_from(child.runs)}


def _given(begun: list[Child], facts: Facts) -> dict[Class, None]:
    """The classes of the objects that these children get copies of: in their arguments, or those of a subclass."""
    given = [cls for child in begun for value in child.given for cls in facts.module.objects.classes(value, child.fn)]
    runs = (child.runs for child in begun if child.runs is not None and child.runs.name == "run")
    return dict.fromkeys([*given, *(fn.cls for fn in runs if fn.cls is not None)])


def _things(node: ast.Name | ast.Attribute, fn: Function, given: Iterable[Class], facts: Facts) -> Iterator[Hashable]:
    """What an expression names of the state that processes have copies of: containers, attributes and globals."""
    index, top = facts.module.objects.index, facts.module.top
    yield from (value for value in facts.module.objects.of(node, fn) if value.kind == "container")
    if isinstance(node, ast.Name):
        if index.scope(node.id, fn) is top and isinstance(top.bound.get(node.id), ast.Constant):
            yield node.id
        return
    owner = facts.module.type_of(node.value, fn) if node.attr in index.members else None
    values = owner.values.get(node.attr, ()) if owner is not None and owner in given else ()
    if values and all(isinstance(value, ast.Constant) for value, _ in values):
        yield owner, node.attr


def _one_offset(root: Root, facts: Facts) -> Iterator[Witness]:
    """A file that was opened before the processes were forked, in which each of them seeks."""
    tag = f"process:{root.function.qualname}"
    inside = {fn for fn in facts.module.functions if tag in facts.reached.get(id(fn), ())}
    for fn in facts.module.functions if inside else ():
        for call in fn.calls if fn in inside else ():
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "seek" or facts.held_at(call, fn):
                continue
            for opens, maker in facts.module.objects.made(call.func.value, fn):
                opened = facts.module.canonical(opens.func) in OPENS and facts.made_outside(maker, inside)
                if opened and (maker.name != "__init__" or _is_handed(maker.cls, root, facts)):
                    yield Witness(call, fn, "offset", opens=opens, root=root)
                    return


def _is_handed(cls: Class | None, root: Root, facts: Facts) -> bool:
    """Whether a child is given an object of a class: as an argument, as that whose method it runs, or in such a one."""
    classes = facts.module.objects.classes
    for start, fn in ((c, f) for c, f in facts.module.calls if c.lineno == root.line):
        target = keyword(start, "target", 1)
        given = [*start_arguments(start, fn), *([target.value] if isinstance(target, ast.Attribute) else [])]
        for each in (c for value in given for c in classes(value, fn)):
            if each is cls or any(cls in classes(*pair) for pairs in each.values.values() for pair in pairs):
                return True
    return False


#: What opens a file whose position the processes share that a fork copies it to.
OPENS = ("open", "io.open", "os.fdopen", "tempfile.TemporaryFile", "tempfile.NamedTemporaryFile")


def _assigned_late(child: Child) -> Iterator[Witness]:
    """A global that is assigned after the processes of a pool were forked, which read it."""
    runs, task, fn = child.runs, child.call, child.fn
    if runs is None:
        return
    pool = task.func.value if isinstance(task.func, ast.Attribute) else None
    binding = fn.bound.get(pool.id) if isinstance(pool, ast.Name) else None
    read = {n.id for n in runs.names if isinstance(n.ctx, ast.Load)} - {n.id for n in runs.stores} - {*runs.parameters}
    for store in fn.stores if isinstance(binding, ast.Call) else ():
        if store.id in fn.globals and store.id in read and binding.lineno < store.lineno <= task.lineno:  # type: ignore[union-attr]
            yield Witness(store, fn, "late", construction=binding, runs=runs)
            return


def _in_task(child: Child, facts: Facts) -> Iterator[Witness]:
    """A lock or queue of multiprocessing in the arguments of a task, or in its object: a running process gets none."""
    task, fn, module = child.call, child.fn, facts.module
    runs = module.objects.functions(task.args[0], fn)
    if runs and all(isinstance(each.node, ast.Lambda) or each.outer not in (None, module.top) for each in runs):
        yield Witness(task.args[0], fn, "unpicklable", run=ast.unparse(task.args[0]), task=task)
        return
    given = [fn.bound.get(value.id, value) if isinstance(value, ast.Name) else value for value in child.given]
    parts = [(n, n, fn) for value in (*child.given, *given) for n in ast.walk(value) if isinstance(n, ast.Name)]
    for cls in (cls for value in child.given for cls in module.objects.classes(value, fn)):
        # A class that says what of it is pickled may leave its locks out.
        kept = [pair for values in cls.values.values() for pair in values] if "__getstate__" not in cls.methods else []
        parts += [(task.args[0], value, scope) for value, scope in kept]  # type: ignore[misc]
    for at, part, scope in parts:
        made = (method_name(c.func, maker, module) for c, maker in module.objects.made(part, scope))
        for origin in made:
            if origin.startswith("multiprocessing.") and origin.removeprefix("multiprocessing.") in OF_PROCESSES:
                yield Witness(at, fn, "in-task", what=ast.unparse(at if part is at else part), origin=origin)
                return


def _inside_proxy(fn: Function, facts: Facts) -> Iterator[Witness]:
    """A change of what a proxy of a manager holds: `shared[key].append(x)` changes a copy."""
    for item in fn.subscripts:
        up = parent(item)
        called = isinstance(up, ast.Attribute) and up.attr in GROWS | SHRINKS and isinstance(parent(up), ast.Call)
        stored = isinstance(up, ast.Subscript) and up.value is item and not isinstance(up.ctx, ast.Load)
        if (called or stored) and type_name(item.value, fn, facts.module) in PROXIES:
            yield Witness(item, fn, "proxy")
            return


def _report(at: ast.expr, fn: Function, what: str, kind: str) -> Witness:
    instead = "multiprocessing." + kind.rpartition(".")[2]
    return Witness(at, fn, what=what, kind=kind, name=short_name(at) or what, instead=instead)


LOOKS = ("is_alive", "exitcode", "sentinel", "sentinels")


def wait_for_the_dead(facts: Facts) -> Iterator[Witness]:
    """Report waits for what a child process must send, in functions that never check the child."""
    yield from _killed(facts)
    shared: dict[str, ast.Call] = {}
    runs = {id(child.call): child.runs for child in children(facts)}
    for call, fn in facts.module.calls:
        if facts.module.constructed_kind(call, fn) == "Process" and _may_fail(runs.get(id(call)), facts):
            resources = (facts.module.resource(value, fn) for value in start_arguments(call, fn))
            shared |= {r.id: call for r in resources if r is not None and r.kind in ("ProcessEvent", "ProcessQueue")}
    for fn in facts.module.functions if shared else ():
        in_child = any(tag.startswith("process:") for tag in facts.reached.get(id(fn), ()))
        # A function that looks after the child does not wait for a dead one for ever.
        if in_child or any(a.attr in LOOKS for a in fn.attributes):
            continue
        waits = [e for e in facts.walker.effects(fn) if e.kind == "wait" and not e.timeout and e.resource is not None]
        waits = [e for e in waits if e.resource.id in shared and dotted(e.node).endswith(("get()", "wait()"))]  # type: ignore[union-attr]
        for effect in {e.resource.id: e for e in reversed(waits)}.values():  # type: ignore[union-attr]
            name = effect.resource.id  # type: ignore[union-attr]
            yield Witness(effect.node, fn, started=shared[name], what=effect.waits_for, resource=name)


def _may_fail(child: Function | None, facts: Facts) -> bool:
    """Whether a child may end before its time by what it does: it raises or exits, or runs code that is not known."""
    for each in facts.reached_from(child) if child is not None else ():
        ends = any(facts.module.canonical(c.func) in EXITS or dotted(c.func) in each.parameters for c in each.calls)
        if ends or any(isinstance(n, ast.Raise) for n in ast.walk(each.node)):
            return True
    return child is None


def _killed(facts: Facts) -> Iterator[Witness]:
    """Locks and queues that a child may be using when it is ended by force, and that are waited for afterwards."""
    ends = [use for use in facts.uses(KILLS, ("Process",)) if _at_any_time(use.call, use.fn)]
    for child in children(facts) if ends else ():
        if child.runs is None:
            continue
        own = facts.reached_from(child.runs)
        needs = {lock: take.steps[-1][1] for lock, take in facts.takes(child.runs).items() if take.resource.sure}
        needs |= {use.of: use.call for use in facts.uses(PUTS, ("ProcessQueue",)) if use.fn in own}
        for use in ends:
            wait = next((pair for pair in _waits_after(use.call, use.fn, facts) if pair[0] in needs), None)
            if wait is not None:
                yield Witness(use.call, use.fn, "killed", resource=wait[0], wait=wait[1], needs=needs[wait[0]])
                return


def _at_any_time(kill: ast.Call, fn: Function) -> bool:
    """Whether a process is ended by force without being asked and waited for, or found to be stuck, before."""
    asked = any(short_name(c.func) == "join" and c.lineno < kill.lineno for c in fn.calls)
    return not asked and enclosing(kill, ast.If, ast.ExceptHandler) is None


def _waits_after(kill: ast.Call, fn: Function, facts: Facts) -> Iterator[tuple[str, ast.expr]]:
    """The locks and queues for which a function waits after a call, and its callers after theirs."""
    for at, line in [(fn, kill.lineno), *((f, event.effect.line) for f, event in facts.callers.get(id(fn), ()))]:
        for effect in (effect for effect, _ in facts.events(at) if effect.line > line):
            name = effect.resource.id if effect.resource is not None else ""
            if effect.kind == "take" or (effect.kind == "wait" and not effect.timeout):
                yield name, effect.node
            if effect.callee is not None and runs_now(effect):
                yield from ((lock, effect.node) for lock in facts.takes(effect.callee))


KILLS = ("terminate", "kill")
EXITS = ("sys.exit", "exit", "quit", "os._exit", "os.abort", "os.kill")
LATER = ("apply_async", "map_async", "starmap_async", "imap", "imap_unordered")
GETS = ("get", "wait")


def pool_gone(facts: Facts) -> Iterator[Witness]:
    """Report results of a pool that are got after its block, in which nothing waits for them."""
    for fn in facts.module.functions:
        for block, pool in blocks_that_make("Pool", fn, facts):
            names = _results(block, pool, fn)
            inside = [c for c in fn.calls if is_within(c, block)]
            waited = any(dotted(c.func) == f"{pool}.join" or short_name(c.func) in GETS for c in inside)
            get = next((c for c in fn.calls if _gets(c, names, fn) and c.lineno > last_line(block)), None)
            if get is not None and not waited:
                yield Witness(get, fn, block=block, end=last_line(block))


def _results(block: ast.With | ast.AsyncWith, pool: str, fn: Function) -> set[str]:
    """The names that hold a result, or several, of tasks that the block gives to its pool."""
    later = {f"{pool}.{method}" for method in LATER}
    stored = [(target, value) for target, value in fn.assigns if is_within(target, block)]
    adds = (c for c in fn.calls if method_of(c) in ("append", "add") and c.args and is_within(c, block))
    stored += [(c.func.value, c.args[0]) for c in adds]  # type: ignore[attr-defined]
    return {dotted(t) for t, value in stored if any(dotted(c.func) in later for c in calls_in([value]))} - {""}


def _gets(call: ast.Call, names: set[str], fn: Function) -> bool:
    """Whether a call waits for one of the results, without a timeout."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in GETS or call.args or call.keywords:
        return False
    owner = call.func.value
    over = fn.looped.get(owner.id) if isinstance(owner, ast.Name) else None
    return dotted(owner) in names or (over is not None and dotted(over) in names)
