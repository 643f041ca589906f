"""Locks in code that runs in the middle of other code, and locks and threads that a forked child does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from paceline.concurrency.check.flow.effects import runs_now
from paceline.concurrency.check.flow.walk import Event
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Class, Function, Resource
from paceline.concurrency.check.syntax.tree import (
    dotted,
    enclosing,
    is_constant,
    keyword,
    last_line,
    short_name,
)
from paceline.concurrency.check.threads.roots import FORKS, Root, in_loop, on_child_side
from paceline.concurrency.check.together import same_file
from paceline.concurrency.check.values.calls import type_name
from paceline.concurrency.check.values.module import name_of_site

#: Functions that start a child and wait for it.
RUNS = tuple(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output"))


_OF_PREEXEC = "use start_new_session=, process_group= or umask= in place of preexec_fn, or a small program"
_OF_FORK = "fork before the first thread is started, or use subprocess or the spawn method"


def lock_in_destructor(facts: Facts) -> Iterator[Witness]:
    """Report locks, queues and executors that destructors and collector callbacks wait for."""
    for root in (r for r in facts.roots if r.kind in INTERRUPTING):
        fn, handler = root.function, INTERRUPTING[root.kind]
        for take in facts.takes(fn).values():
            lock = take.resource
            # No other method of an object runs any more while it is destroyed.
            is_private = fn.name == "__del__" and take.same and not _shared(lock.id, facts)
            other = _elsewhere(lock.id, fn, facts) if lock.sure and lock.non_reentrant and not is_private else None
            if other is not None and not lock.one_of_several:
                (where, node), (by, event), name = take.steps[-1], other, lock.id
                since = next((h.line for h in event.held if h.resource.id == name), event.effect.line)
                yield Witness(
                    node, where, handler=handler, lock=name, since=since, caller=by, event=event, steps=take.steps
                )
        for use in _queues(fn, facts):
            # The same of its own queue.
            if fn.name != "__del__" or _shared(use.of, facts):
                yield Witness(use.call, fn, "queues", handler=handler, resource=use.resource)
        for wait in facts.waits(fn).values():
            what = wait.effect.resource  # when it is shut down, it waits for tasks, one of which may run this
            if what is not None and what.kind in ("Executor", "Pool") and what.sure:
                yield Witness(wait.steps[0][1], fn, "waits", handler=handler, wait=wait, what=what)
                break


def _queues(fn: Function, facts: Facts) -> list[Use]:
    """Uses of a `queue.Queue`, which has a lock inside."""
    return [use for use in facts.uses(("put", "get", "put_nowait", "get_nowait"), ("Queue",)) if use.fn is fn]


def _shared(lock: str, facts: Facts) -> bool:
    """Whether the lock is a global or an attribute of the class itself, rather than of one object."""
    owner, _, attribute = lock.rpartition(".")
    cls = facts.module.classes.get(owner)
    return cls is None or any(fn.cls is not cls for _, fn in cls.values.get(attribute, ()))


def _elsewhere(lock: str, fn: Function, facts: Facts) -> tuple[Function, Event] | None:
    """Another function that holds the lock, preferably where it calls something."""
    witness: tuple[Function, Event] | None = None
    for other in facts.module.functions:
        for event in facts.events(other) if other is not fn else ():
            if any(h.resource.id == lock for h in event.held):
                return other, event
            resource = event.effect.resource
            if event.effect.kind == "take" and resource is not None and resource.id == lock:
                witness = witness or (other, event)
    return witness


ENDS = ("exit", "_exit", "abort", "kill", "terminate")


def signal_handler(facts: Facts) -> Iterator[Witness]:
    """Report locks, queues, prints and logging in functions that handle signals."""
    for root in facts.roots:
        if root.kind != "signal":
            continue
        for take in facts.takes(root.function).values():
            if take.resource.non_reentrant and take.resource.sure:
                where, node = take.steps[-1]
                lock = take.resource.id
                yield Witness(node, where, lock=lock, since=take.resource.line or root.line, take=take)
        for use in (use for use in _queues(root.function, facts) if use.resource.sure):
            yield Witness(use.call, use.fn, "queues", since=use.resource.line or use.line, resource=use.resource)
        # A handler that ends the process does not return into the write that it has interrupted.
        for steps in () if _ends(root.function) else facts.ways_to(root.function, _writes, depth=2):
            yield Witness(steps[-1][1], steps[-1][0], "writes", steps=steps)


def _ends(fn: Function) -> bool:
    """Whether the handler ends the process or raises, so that no interrupted code continues."""
    final = fn.body[-1] if fn.body else None
    if isinstance(final, ast.Raise):
        return True
    return isinstance(final, ast.Expr) and isinstance(final.value, ast.Call) and short_name(final.value.func) in ENDS


def _writes(call: ast.Call, fn: Function) -> bool:
    """Whether a call writes to a buffered stream."""
    name = dotted(call.func)
    logs = short_name(call.func) in LEVELS and name.split(".")[0].lower().strip("_") in ("logging", "log", "logger")
    return logs or name in BUFFERED


LEVELS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")
BUFFERED = ("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.flush", "sys.stderr.flush")


def logs_under_lock(facts: Facts) -> Iterator[Witness]:
    """Report log calls, direct ones and those of callees, under a lock that a handler of the program takes."""
    takes = {take.resource.id: (emit, take) for emit in _handlers(facts) for take in facts.takes(emit).values()}
    takes = {lock: found for lock, found in takes.items() if found[1].resource.non_reentrant and found[1].resource.sure}
    if not takes:
        return
    logs = {id(fn): call for call, fn in facts.module.calls if _is_log_call(call)}
    for fn in facts.module.functions:
        for effect, locks_held in facts.events(fn):
            first = next((h for h in locks_held if h.resource.id in takes), None)
            if first is None or not isinstance(effect.node, ast.Call):
                continue
            via = None if effect.callee is None else logs.get(id(effect.callee))
            if _is_log_call(effect.node) or (via is not None and effect.callee is not takes[first.resource.id][0]):
                emit, take = takes[first.resource.id]
                yield Witness(effect.node, fn, first=first, emit=emit, take=take)
                break


def _handlers(facts: Facts) -> Iterator[Function]:
    """What the handlers of `logging` do with a record."""
    for cls in facts.module.classes.values():
        if _is_handler(cls):
            yield from (cls.methods[name] for name in ("emit", "handle") if name in cls.methods)


def _is_handler(cls: Class) -> bool:
    return any(base.startswith("logging.") and base.endswith("Handler") for c in cls.ancestry for base in c.bases)


def _is_log_call(call: ast.Call) -> bool:
    """Whether this is `logger.info(...)`, `logging.info(...)` or `self.log.info(...)`."""
    name, _, level = dotted(call.func).rpartition(".")
    return level in LEVELS and "log" in name.rpartition(".")[2].lower()


STARTS = ("start", "fork", "forkpty")


def lock_across_fork(facts: Facts) -> Iterator[Witness]:
    """Report locks that are created once, in code that compares process ids."""
    module = facts.module
    # A program with such a hook can make its locks anew in the child.
    if any(a.attr == "register_at_fork" for fn in module.functions for a in fn.attributes):
        return
    yield from _held(facts)
    if any(r.kind in ("process", "fork") for r in facts.roots) and _forks_holding(facts):
        yield from _held_elsewhere(facts)
    yield from _globals(facts)
    for cls in module.classes.values():
        asks = [fn for fn in cls.methods.values() if _asks(fn, facts)]
        if not asks or not any(isinstance(n, ast.Compare) and _has_pid(n) for fn in asks for n in ast.walk(fn.node)):
            continue
        for attribute, values in cls.values.items():
            constructions = [(m, fn) for value, fn in values if (m := module.constructed(value, fn))]
            (kind, call), maker = constructions[0] if len(constructions) == 1 else (("", None), None)
            if kind not in ("Lock", "RLock", "Condition") or call is None or maker is None or _again(maker, cls):
                continue
            lock = f"{cls.name}.{attribute}"
            taker = next((fn for fn in cls.methods.values() if lock in facts.takes(fn)), None)
            if taker is not None and module.canonical(call.func).startswith(("threading.", "_thread.")):
                yield _report_lock_across_fork(call, maker, asks[0], taker, lock, facts)


def _globals(facts: Facts) -> Iterator[Witness]:
    """Global locks that a function takes which compares the process id."""
    top = facts.module.top
    for fn in facts.module.functions:
        if not _asks(fn, facts) or not any(isinstance(n, ast.Compare) and _has_pid(n) for n in ast.walk(fn.node)):
            continue
        for lock, take in facts.takes(fn).items():
            _, made = (facts.module.constructed(top.bound[lock], top) if lock in top.bound else None) or ("", None)
            again = any(lock in other.globals for other in facts.module.functions if other is not top)
            if made is None or again or not take.resource.sure or not same_file(made.lineno, fn.line):
                continue
            if facts.module.canonical(made.func).startswith(("threading.", "_thread.")):
                yield _report_lock_across_fork(made, top, fn, fn, lock, facts)


def _held(facts: Facts) -> Iterator[Witness]:
    """Locks of threads that are held where a child is forked which takes them."""
    for fn in facts.module.functions:
        for effect, locks_held in facts.events(fn):
            call = effect.node
            locks = [h for h in locks_held if h.resource.non_reentrant and not h.resource.one_of_several]
            takes = list(_in_child(call, fn, facts)) if locks and isinstance(call, ast.Call) else []
            for first in (h for h in locks if h.resource.sure):
                needed = next((steps[first.resource.id] for steps in takes if first.resource.id in steps), None)
                if needed is not None and _of_threads(first.resource, facts):
                    yield Witness(call, fn, "forked", first=first, needed_at=needed[-1][1].lineno, needed=needed)


def _held_elsewhere(facts: Facts) -> Iterator[Witness]:
    """A lock that a child takes, and that a thread started before the fork takes again and again."""
    threads = [r for r in facts.roots if r.kind == "thread"]
    lines, reached, calls = {r.line for r in threads}, cache(facts.reached_from), facts.module.calls
    starts = [(c, f) for c, f in calls if short_name(c.func) in STARTS or c.lineno in lines]
    starts_in = cache(lambda callee: [(c, f) for c, f in starts if f in reached(callee)])
    for fn in facts.module.functions if threads else ():
        begun: list[Root] = []
        for call in sorted(fn.calls, key=lambda c: (c.lineno, c.col_offset)):
            callee = facts.module.callee(call, fn)
            inside = [(call, fn)] if callee is None else starts_in(callee)
            witness = next((w for c, f in inside for w in _copied_locked(c, f, begun, facts)), None) if begun else None
            if witness is not None:
                yield witness
                break
            begun += [r for r in threads if any(_begins(r, c, f, facts) for c, f in inside)]


def _begins(root: Root, call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call starts this thread, which others may have made."""
    thread = resource_of(call, ("start",), fn, facts)
    submitted = call.lineno == root.line and facts.module.constructed_kind(call, fn) is None
    return submitted if thread is None else thread.line == root.line


def _copied_locked(call: ast.Call, fn: Function, begun: list[Root], facts: Facts) -> Iterator[Witness]:
    """The locks of which a call gives a child copies that it takes, while one of these threads may hold them."""
    for takes in _in_child(call, fn, facts) if short_name(call.func) in STARTS else ():
        for name, steps in takes.items():
            for thread, take in ((r.function, facts.takes(r.function).get(name)) for r in begun):
                lock = take.resource if take is not None else None
                if take is None or lock is None or not lock.sure or not lock.non_reentrant:
                    continue
                if _of_threads(lock, facts) and ("." not in name or _one_object(lock, steps, facts)):
                    line, at = take.steps[-1][1].lineno, steps[-1][1].lineno
                    yield Witness(
                        call, fn, "forked-beside", thread=thread, lock=lock, line=line, needed_at=at, needed=steps
                    )


def _one_object(lock: Resource, steps: tuple[tuple[Function, ast.expr], ...], facts: Facts) -> bool:
    """Whether the lock of an object is the same one in the child: no function on the way to it makes another object."""
    owners = [f.cls for c, f in facts.module.calls if c.lineno == lock.line and f.name == "__init__"]
    named = {cls.name for cls in owners if cls is not None}
    sites = [(c, f) for c, f in facts.module.calls if short_name(c.func) in named]
    return len(sites) == 1 and not in_loop(*sites[0]) and sites[0][1] not in [fn for fn, _ in steps]


def _forks_holding(facts: Facts) -> bool:
    """Whether nothing in the file asks for another way to start processes than a fork."""
    words = {"spawn", "forkserver"}
    arguments = (a for c, _ in facts.module.calls for a in (*c.args, *(k.value for k in c.keywords)))
    return not any(isinstance(a, ast.Constant) and a.value in words for a in arguments)


def _in_child(call: ast.Call, fn: Function, facts: Facts) -> Iterator[dict[str, tuple[tuple[Function, ast.expr], ...]]]:
    """The locks that a child takes which this call forks, each with the path to it."""
    module = facts.module
    if module.canonical(call.func) in FORKS:
        for effect in facts.walker.effects(fn):
            if on_child_side(effect.node, call):
                if effect.kind == "take" and effect.resource is not None:
                    yield {effect.resource.id: ((fn, effect.node),)}
                elif effect.callee is not None and runs_now(effect):
                    takes = facts.takes(effect.callee)
                    yield {name: ((fn, effect.node), *take.steps) for name, take in takes.items()}
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "start":
        process = module.resource(call.func.value, fn)
        if process is None or process.kind != "Process":
            return
        construction = next((c for c, _ in module.calls if _makes(c, process.line)), None)
        target = construction and keyword(construction, "target", 1)
        child = module.function_named(target, fn) if target else None
        if child is not None:
            yield {name: take.steps for name, take in facts.takes(child).items()}


def _makes(call: ast.Call, line: int) -> bool:
    return call.lineno == line and keyword(call, "target") is not None


def _of_threads(lock: Resource, facts: Facts) -> bool:
    """Whether a lock belongs to threads: one of multiprocessing is released by the parent for the child too."""
    calls = (c for c, _ in facts.module.calls if c.lineno == lock.line)
    names = [facts.module.canonical(c.func) for c in calls]
    return not any(name.startswith("multiprocessing.") for name in names)


def _asks(fn: Function, facts: Facts) -> bool:
    """Whether a function calls os.getpid()."""
    return any(facts.module.canonical(call.func).endswith("os.getpid") for call in fn.calls)


def _has_pid(node: ast.Compare) -> bool:
    """Whether a comparison involves a process id."""
    sides = [node.left, *node.comparators]
    return any("pid" in ast.unparse(side).lower() for side in sides)


def _again(maker: Function, cls: Class) -> bool:
    """Whether the lock is created in a method that others call too, such as when a new process is detected."""
    return maker.cls is cls and any(
        isinstance(call.func, ast.Attribute) and call.func.attr == maker.name
        for fn in cls.methods.values()
        if fn.name != "__init__"
        for call in fn.calls
    )


def _report_lock_across_fork(
    call: ast.Call, maker: Function, asks: Function, taker: Function, lock: str, facts: Facts
) -> Witness:
    take = facts.takes(taker)[lock].steps[-1][1]
    return Witness(call, maker, lock=lock, asks=asks, take=take, taker=taker)


def fork_with_threads(facts: Facts) -> Iterator[Witness]:
    """Report forks in files that start threads, unless the child execs."""
    lines = [r.line for r in facts.roots if r.kind == "thread" and not r.alone]
    made = [(c, fn) for c, fn in facts.module.calls if facts.module.constructed_kind(c, fn)]
    begun = {c.lineno: _begun(c, fn, facts) for c, fn in made}
    lines = [begun.get(line, line) for line in lines]
    lines += [
        begun.get(c.lineno, c.lineno)
        for fn in facts.module.functions
        for c in fn.calls
        if facts.module.constructed_kind(c, fn) == "Thread" or _starts(c, fn, facts) or _runs_in_threads(c, fn, facts)
    ]
    # Threads of a child are not those of the process that forks.
    apart = {begun.get(c.lineno, c.lineno) for fn in facts.module.functions if _of_child(fn, facts) for c in fn.calls}
    lines = [line for line in lines if line not in apart]
    for fn in facts.module.functions if lines else ():
        # A child that executes another program keeps no copy of the locks.
        if any(short_name(c.func).startswith(("execl", "execv", "spawn")) and c.lineno > fn.line for c in fn.calls):
            continue
        for call in fn.calls:
            line = next((line for line in lines if same_file(line, call.lineno)), None)
            first = _comes_first(call, begun.get(call.lineno, call.lineno), fn, line) if line is not None else True
            if line is not None and not first and _forks_among_threads(call, fn, facts):
                runs = keyword(call, "preexec_fn") is not None
                how = ", and runs Python code in the child (preexec_fn)," if runs else ""
                yield Witness(call, fn, how=how, line=line, instead=_OF_PREEXEC if runs else _OF_FORK)


def _of_child(fn: Function, facts: Facts) -> bool:
    """Whether only a child process runs a function, on its way from where the child begins."""
    todo, visited = [fn], set[Function]()
    while todo:
        at = todo.pop()
        if at in visited:
            continue
        visited.add(at)
        tags = facts.reached.get(id(at), set())
        if not tags or any(not tag.startswith("process:") for tag in tags):
            return False
        is_root = f"process:{at.qualname}" in tags
        todo += [] if is_root else [caller for caller, _ in facts.callers.get(id(at), ())]
    return True


def _starts(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call starts a thread that was made elsewhere."""
    resource = resource_of(call, ("start",), fn, facts)
    return resource is not None and resource.kind == "Thread"


def _runs_in_threads(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call gives a task to an executor of threads, which starts one for it."""
    resource = resource_of(call, ("submit", "map"), fn, facts)
    executor = call.func.value if resource is not None and isinstance(call.func, ast.Attribute) else None
    return executor is not None and type_name(executor, fn, facts.module).endswith("ThreadPoolExecutor")


def _forks_among_threads(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call forks this process: itself, or as a process or pool of a context that is said to fork."""
    if facts.module.canonical(call.func) in FORKS:
        return True
    if facts.module.constructed_kind(call, fn) == "Popen" or facts.module.canonical(call.func) in RUNS:
        code = keyword(call, "preexec_fn")
        return code is not None and not is_constant(code, None)
    receiver = (
        call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in ("Pool", "Process") else None
    )
    makers = facts.module.objects.made(receiver, fn) if receiver is not None else []
    contexts = (c for c, _ in makers if short_name(c.func) == "get_context")
    return any(is_constant(keyword(context, "method", 0), "fork") for context in contexts)


def _begun(construction: ast.Call, fn: Function, facts: Facts) -> int:
    """The line at which what is made here is started by the same function, or else is made."""
    name = name_of_site(construction, fn).id
    starts = (use.line for use in facts.uses(("start",), of=name) if use.fn is fn)
    return min(starts, default=construction.lineno)


def _comes_first(fork: ast.Call, forked: int, fn: Function, started: int) -> bool:
    """Whether the only threads are started by the same function, after the fork."""
    loop = enclosing(fork, ast.For, ast.While)
    again = loop is not None and started <= last_line(loop)
    return forked < started <= last_line(fn.node) and not again


# Locks in code that Python runs in the middle of other code: destructors, handlers of signals and of logging.

INTERRUPTING = {"del": "a destructor or callback of a weak reference", "gc": "a callback of the garbage collector"}
