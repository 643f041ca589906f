"""What a child process has a copy of, or takes with it when it dies."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.rule import Witness, blocks_that_make
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import (
    calls_in,
    dotted,
    is_within,
    keyword,
    last_line,
    method_of,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.accesses import GROWS, SHRINKS, kind_of
from paceline.concurrency.check.threads.roots import Root
from paceline.concurrency.check.threads.shared_state import is_container
from paceline.concurrency.check.values.bindings import start_arguments
from paceline.concurrency.check.values.calls import type_name

#: Methods of a pool that have its processes run a function, and what makes such pools.
TASKS = libraries.names("methods of pools that run a task")
POOLS = libraries.names("pools of processes")
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
        for call in fn.calls:
            runs = _run_in_child(call, fn, facts)
            if facts.module.constructed_kind(call, fn) == "Process":
                yield from _given_to_children(call, fn, runs, facts)
            if runs is not None:
                yield from _assigned(runs, call, fn, facts)
                yield from _assigned_late(runs, call, fn)
                yield from _in_task(call, fn, facts)
                if runs.cls is not None and _is_target(call, fn):
                    yield from _kept(runs.cls, runs, facts)
    for root in facts.roots:
        if root.kind == "process" and root.several:
            yield from _one_offset(root, facts)
    for cls in facts.module.classes.values():
        if "run" in cls.methods and cls.is_a("multiprocessing.Process", "multiprocessing.context.Process"):
            yield from _kept(cls, cls.methods["run"], facts)


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


def _is_target(call: ast.Call, fn: Function) -> bool:
    """Whether a process runs a method of the object that starts it."""
    target = keyword(call, "target", 1) if short_name(call.func) == "Process" else None
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == fn.self_name


def _assigned_late(runs: Function, task: ast.Call, fn: Function) -> Iterator[Witness]:
    """A global that is assigned after the processes of a pool were forked, which read it."""
    pool = task.func.value if isinstance(task.func, ast.Attribute) else None
    binding = fn.bound.get(pool.id) if isinstance(pool, ast.Name) else None
    read = {n.id for n in runs.names if isinstance(n.ctx, ast.Load)} - {n.id for n in runs.stores} - {*runs.parameters}
    for store in fn.stores if isinstance(binding, ast.Call) else ():
        if store.id in fn.globals and store.id in read and binding.lineno < store.lineno <= task.lineno:  # type: ignore[union-attr]
            yield Witness(store, fn, "late", construction=binding, runs=runs)
            return


def _in_task(task: ast.Call, fn: Function, facts: Facts) -> Iterator[Witness]:
    """A lock or queue of multiprocessing among the arguments of a task: only a new process can be given one."""
    if short_name(task.func) not in TASKS:
        return
    runs = facts.module.objects.functions(task.args[0], fn)
    if runs and all(isinstance(each.node, ast.Lambda) or each.outer not in (None, facts.module.top) for each in runs):
        yield Witness(task.args[0], fn, "unpicklable", run=ast.unparse(task.args[0]), task=task)
        return
    arguments = [*task.args[1:], *(k.value for k in task.keywords)]
    arguments += [fn.bound[a.id] for a in arguments if isinstance(a, ast.Name) and a.id in fn.bound]
    for name in (n for value in arguments for n in ast.walk(value) if isinstance(n, ast.Name)):
        binding = fn.bound.get(name.id)
        origin = facts.module.canonical(binding.func) if isinstance(binding, ast.Call) else ""
        if origin.startswith("multiprocessing.") and origin.rpartition(".")[2] in OF_PROCESSES:
            yield Witness(name, fn, "in-task", origin=origin)
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


def _run_in_child(call: ast.Call, fn: Function, facts: Facts) -> Function | None:
    """The function that a call has a child process run: a `Process`, or a task of a pool of processes."""
    module = facts.module
    if module.constructed_kind(call, fn) == "Process":
        target = keyword(call, "target", 1)
        return module.function_named(target, fn) if target is not None else None
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in TASKS or not call.args:
        return None
    pools = (module.canonical(made.func) for made, _ in module.objects.made(call.func.value, fn))
    return module.function_named(call.args[0], fn) if any(pool in POOLS for pool in pools) else None


def _assigned(runs: Function, start: ast.Call, fn: Function, facts: Facts) -> Iterator[Witness]:
    """The globals that a child process assigns, and that the function which starts it reads afterwards."""
    local_names = {n.id for n in fn.stores} - fn.globals if fn is not facts.module.top else set()
    after = [n for n in fn.names if isinstance(n.ctx, ast.Load) and n.lineno > start.lineno and n.id not in local_names]
    for store in (n for n in runs.stores if n.id in runs.globals):
        read = next((n for n in after if n.id == store.id), None)
        if read is not None:
            yield Witness(store, runs, "assigned", caller=fn, read=read)
            return


def _given_to_children(call: ast.Call, fn: Function, runs: Function | None, facts: Facts) -> Iterator[Witness]:
    """What one process is given as its arguments."""
    names = [p for p in runs.parameters if runs.cls is None or p != runs.self_name] if runs is not None else []
    for position, value in enumerate(start_arguments(call, fn)):
        resource = facts.module.resource(value, fn)
        if resource is not None and resource.sure and resource.kind in OF_THREADS:
            yield _report(value, fn, resource.id, OF_THREADS[resource.kind])
            return
        binding = fn.bound.get(value.id) if isinstance(value, ast.Name) else None
        fills = runs is not None and position < len(names) and _fills(runs, names[position])
        if isinstance(value, ast.Name) and is_container(binding) and fills and _used_after(value, fn):
            yield Witness(value, fn, "filled", runs=runs)
            return


def _kept(cls: Class, runs: Function, facts: Facts) -> Iterator[Witness]:
    """Events and queues of threads in an object of which a process runs a method, and that other methods use."""
    for name in cls.values:
        resource = facts.module.attribute(cls, name)
        if resource is None or not resource.sure or resource.kind not in OF_THREADS:
            continue
        users = [fn for fn in cls.methods.values() if any(_is(n, name, fn) for n in fn.attributes)]
        maker = next((fn for value, fn in cls.values[name] if fn.cls is cls and fn.name == "__init__"), None)
        outside = [fn for fn in users if fn.name != "__init__" and fn is not runs and not facts.reached.get(id(fn))]
        if maker is not None and runs in users and outside:
            at = next(n for n in maker.attributes if _is(n, name, maker))
            yield _report(at, maker, resource.id, OF_THREADS[resource.kind])


def _is(node: ast.Attribute, name: str, fn: Function) -> bool:
    return node.attr == name and isinstance(node.value, ast.Name) and node.value.id == fn.self_name


def _fills(fn: Function, name: str) -> bool:
    """Whether a function changes what a parameter holds."""
    uses = [n for n in fn.names if n.id == name]
    return all(isinstance(n.ctx, ast.Load) for n in uses) and any(kind_of(n) in ("grow", "update") for n in uses)


def _used_after(value: ast.Name, fn: Function) -> bool:
    """Whether the function that starts the process reads the container later on."""
    return any(n.id == value.id and n.lineno > value.lineno and isinstance(n.ctx, ast.Load) for n in fn.names)


def _report(at: ast.expr, fn: Function, what: str, kind: str) -> Witness:
    instead = "multiprocessing." + kind.rpartition(".")[2]
    return Witness(at, fn, what=what, kind=kind, name=short_name(at) or what, instead=instead)


LOOKS = ("is_alive", "exitcode", "sentinel", "sentinels")


def wait_for_the_dead(facts: Facts) -> Iterator[Witness]:
    """Report waits for what a child process must send, in functions that never check the child."""
    shared: dict[str, ast.Call] = {}
    for fn in facts.module.functions:
        for call in (c for c in fn.calls if facts.module.constructed_kind(c, fn) == "Process"):
            if not _may_fail(call, fn, facts):
                continue
            resources = (facts.module.resource(value, fn) for value in start_arguments(call, fn))
            shared |= {r.id: call for r in resources if r is not None and r.kind in ("ProcessEvent", "ProcessQueue")}
    for fn in facts.module.functions if shared else ():
        in_child = any(tag.startswith("process:") for tag in facts.reached.get(id(fn), ()))
        if in_child or any(a.attr in LOOKS for a in fn.attributes):
            continue
        waits = [e for e in facts.walker.effects(fn) if e.kind == "wait" and not e.timeout and e.resource is not None]
        waits = [e for e in waits if e.resource.id in shared and dotted(e.node).endswith(("get()", "wait()"))]  # type: ignore[union-attr]
        for effect in {e.resource.id: e for e in reversed(waits)}.values():  # type: ignore[union-attr]
            name = effect.resource.id  # type: ignore[union-attr]
            yield Witness(effect.node, fn, started=shared[name], what=effect.waits_for, resource=name)


def _may_fail(start: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a child may end before its time by what it does: it raises or exits, or runs code that is not known."""
    child = _run_in_child(start, fn, facts)
    if child is None:
        return True
    for each in facts.reached_from(child):
        ends = any(facts.module.canonical(c.func) in EXITS or dotted(c.func) in each.parameters for c in each.calls)
        if ends or any(isinstance(n, ast.Raise) for n in ast.walk(each.node)):
            return True
    return False


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
