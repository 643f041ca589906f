"""Where other paths of execution begin: threads, processes, tasks, signal handlers, destructors, forks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.walk import Walker
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import (
    around,
    block_of,
    dotted,
    enclosing,
    is_constant,
    is_within,
    keyword,
    parent,
    short_name,
    statement_of,
)
from paceline.concurrency.check.threads.own_objects import brings_own, owned
from paceline.concurrency.check.values.bindings import prepares
from paceline.concurrency.check.values.calls import functions_of, method_name, type_name
from paceline.concurrency.check.values.module import Module


class Root(NamedTuple):
    """A function in which another path of execution begins."""

    kind: str  # thread, process, task, signal, del, gc, fork, exit
    function: Function
    line: int
    several: bool  # started in a loop, or more than once
    alone: bool = False  # joined before another thread is started
    own: bool = False  # each of several has an object of its own
    together: bool = False  # its waiter sees its failure at once, whether or not the others have ended
    once_in: Function | None = None  # a function that starts one of it each time that it runs


class Roots:
    """The roots of one file, and which functions they reach."""

    def __init__(self, module: Module, walker: Walker) -> None:
        self.module, self.walker = module, walker

    @cached_property
    def all(self) -> list[Root]:
        """The functions in which threads, processes, tasks, handlers and destructors begin."""
        roots = list(self._roots())
        runs_often = self.reached_from(r.function for r in roots if r.several and not r.own)
        # A thread that is started once by what several threads run is started several times.
        return [r._replace(several=True) if r.kind == "thread" and r.once_in in runs_often else r for r in roots]

    def reached_from(self, functions: Iterable[Function]) -> set[Function]:
        """These functions and all that they call."""
        visited: set[Function] = set()
        todo = list(functions)
        while todo:
            fn = todo.pop()
            if fn not in visited:
                visited.add(fn)
                todo += self._called(fn)
        return visited

    def _called(self, fn: Function) -> list[Function]:
        """What a function runs in its own thread: not a coroutine that it hands to the loop of another one."""
        calls = (m for m in self.walker.effects(fn) if m.callee is not None)
        return [m.callee for m in calls if not (m.callee.asynchronous and _is_handed_over(m.node))]  # type: ignore[union-attr, misc]

    def _roots(self) -> Iterator[Root]:
        """Every root of the file, in no particular order."""
        module = self.module
        for begun in started_by_libraries(module):
            yield Root("thread", *begun)
        for fn in module.functions:
            if self._serves(fn):
                yield Root("thread", fn, fn.line, True)
            if self._declared_threaded(fn):
                yield Root("thread", fn, fn.line, True)
            if fn.name == "__del__":
                yield Root("del", fn, fn.line, True)
            for call in fn.calls:
                yield from self._started_by(call, fn)
            for target, value in fn.assigns:
                if isinstance(target, ast.Subscript) and short_name(target.value) == "signals":
                    yield from (Root("signal", each, value.lineno, False) for each in functions_of(value, fn, module))
        for cls in module.classes.values():
            if self._handles_requests(cls):
                yield from (
                    Root("thread", m, m.line, True, own=True) for m in cls.methods.values() if HANDLES.match(m.name)
                )
            if "run" in cls.methods and (cls.is_thread or cls.is_a(*PROCESSES)):
                names = {cls.name, *(each.name for each in module.objects.index.derived(cls))}
                sites = [(c, f) for c, f in module.calls if short_name(c.func) in names]
                alone = bool(sites) and all(joined_at_once(c, f) for c, f in sites)
                # Two places that make a thread of the class make two
                # at once, unless each is joined where it is started.
                several = any(in_loop(c, f) for c, f in sites) or (len(sites) > 1 and not alone)
                kind = "thread" if cls.is_thread else "process"
                yield Root(kind, cls.methods["run"], cls.node.lineno, several, alone, True)
            if any(base.endswith("Servicer") for base in cls.bases) and "grpc" in module.imports:
                yield from (Root("thread", m, m.line, True) for m in cls.methods.values() if m.name[:1].isupper())

    def _declared_threaded(self, fn: Function) -> bool:
        """Whether its name or its documentation says that other threads call this function: `call_from_thread`."""
        if fn.asynchronous or fn.cls is None or fn.name.startswith(("__", "test")):
            return False
        docstring = ast.get_docstring(fn.node, clean=False) if isinstance(fn.node, ast.FunctionDef) else None
        return bool(FROM_THREADS.search(fn.name) or CALLED.search(docstring or ""))

    @cached_property
    def _serves_in_threads(self) -> bool:
        """Whether the file has to do with a server of the standard library that runs each request in a thread."""
        names = {short for origin in self.module.imports.values() if (short := origin.rpartition(".")[2])}
        names |= {a.attr for fn in self.module.functions for a in fn.attributes}
        return any(name.startswith("Threading") for name in names)

    def _handles_requests(self, cls: Class) -> bool:
        """Whether a server of the standard library makes objects of this class in the threads of its requests."""
        return any(base.endswith("RequestHandler") for base in cls.bases) and self._serves_in_threads

    def _serves(self, fn: Function) -> bool:
        """Whether a server of web pages runs this function, each request in a thread."""
        if fn.asynchronous or fn.cls is not None or not getattr(fn.node, "decorator_list", ()):
            return False
        calls = [d.func for d in fn.node.decorator_list if isinstance(d, ast.Call)]  # type: ignore[union-attr]
        routed = any(isinstance(f, ast.Attribute) and f.attr in ROUTES for f in calls)
        return routed and any(origin.split(".")[0] in SERVERS for origin in self.module.imports.values())

    def _started_by(self, call: ast.Call, fn: Function) -> Iterator[Root]:
        """The root that a call starts, if any."""
        name = short_name(call.func)
        if name in RUNS_TOGETHER:
            for coroutine, several in _coroutines(call, fn):
                started = self.module.callee(coroutine, fn)
                if started is not None and started.asynchronous and not started.generator:
                    yield Root("task", started, call.lineno, several, together=True)
            return
        if self.module.canonical(call.func) in FORKS:
            effects = [m for m in self.walker.effects(fn) if m.callee is not None and on_child_side(m.node, call)]
            yield from (Root("process", m.callee, m.line, in_loop(call, fn)) for m in effects if m.callee is not None)
        if name not in STARTS:
            if name == "append" and "gc.callbacks" in self.module.canonical(call.func) and call.args:
                for function in functions_of(call.args[0], fn, self.module):
                    yield Root("gc", function, call.lineno, True)
            yield from self._prepared_by(call, fn)
            return
        kind, argument, position = STARTS[name]
        of_processes = isinstance(call.func, ast.Attribute) and self._of_processes(call.func.value, fn)
        # `map` is a method of many things, and a function of Python.
        if name in EACH and not of_processes and not self._is_pool(call, fn):
            return
        if name in STARTS_IN_MODULE and STARTS_IN_MODULE[name] not in self.module.canonical(call.func).split("."):
            return
        if kind == "thread" and of_processes:
            kind = "process"
        if name == "apply_async" and self._makers(call, fn) & {"ThreadPool"}:
            kind = "thread"
        value = keyword(call, argument, position)
        if kind == "task" and isinstance(value, ast.Call):
            value = value.func
        if kind == "fork":
            value = call.keywords[0].value if call.keywords else None
        for function in [] if value is None else functions_of(value, fn, self.module):
            many = name in ("submit", "apply_async", *EACH) and not self._has_one_worker(call, fn)
            several = many or (name not in ("submit", *EACH) and self._is_repeated(call, fn, value, function))
            target = ast.Attribute(value, "__call__") if function.name == "__call__" else value  # type: ignore[arg-type]
            is_confined = brings_own(target, call, fn) or (name in EACH and _is_of_element(value))  # type: ignore[arg-type]
            alone = not several and joined_at_once(call, fn)
            once_in = None if name in EACH or in_loop(call, fn) else fn
            yield Root(kind, function, call.lineno, several, alone, is_confined, once_in=once_in)

    def _prepared_by(self, call: ast.Call, fn: Function) -> Iterator[Root]:
        """What every worker of a pool runs before its tasks."""
        value, _ = prepares(call)
        if value is not None:
            kind = "thread" if "Thread" in short_name(call.func) else "process"
            for function in functions_of(value, fn, self.module):
                yield Root(kind, function, call.lineno, not is_constant(keyword(call, "max_workers", 0), 1))

    def _makers(self, call: ast.Call, fn: Function) -> set[str]:
        """The constructors that may have made the object whose method a call is."""
        constructors = self.module.objects.made(call.func.value, fn) if isinstance(call.func, ast.Attribute) else ()
        return {short_name(each.func) for each, _ in constructors}

    def _of_processes(self, node: ast.expr, fn: Function) -> bool:
        """Whether an executor runs its tasks in processes, which share nothing."""
        return any(
            short_name(call.func) in ("ProcessPoolExecutor", "Pool") for call, _ in self.module.objects.made(node, fn)
        )

    def _is_pool(self, call: ast.Call, fn: Function) -> bool:
        """Whether a call is one of an executor or of a pool of threads."""
        return not self._makers(call, fn).isdisjoint(POOLS_OF_THREADS) or self._is_executor(call, fn)

    def _is_executor(self, call: ast.Call, fn: Function) -> bool:
        resource = self.module.resource(call.func.value, fn) if isinstance(call.func, ast.Attribute) else None
        return resource is not None and resource.kind == "Executor"

    def _has_one_worker(self, call: ast.Call, fn: Function) -> bool:
        """Whether an executor has one thread, and so runs one task at a time; where it is unknown, all of the file."""
        constructors = self.module.objects.made(call.func.value, fn) if isinstance(call.func, ast.Attribute) else []
        pools = [c for c, _ in constructors if short_name(c.func) == "ThreadPoolExecutor"] or self._pools
        return bool(pools) and all(is_constant(keyword(c, "max_workers", 0), 1) for c in pools)

    @cached_property
    def _pools(self) -> list[ast.Call]:
        return [c for c, _ in self.module.calls if short_name(c.func) == "ThreadPoolExecutor"]

    def _is_repeated(self, call: ast.Call, fn: Function, value: ast.expr | None, started: Function) -> bool:
        """Whether a start happens more than once: in a loop, or in a function that is called for it repeatedly."""
        if in_loop(call, fn):
            return not joined_at_once(call, fn)
        sites = self._sites.get(id(fn), [])
        name = value.id if isinstance(value, ast.Name) else ""
        if name in fn.parameters:
            arguments = self.module.objects.arguments(fn, name)
            chosen = {id(a.site) for a in arguments if started in functions_of(a.value, a.caller, self.module)}
            sites = [(site, caller) for site, caller in sites if id(site) in chosen]
        elif fn.outer in (None, self.module.top) or not started.outer:
            return False  # an object of its own may be started each time
        return any(in_loop(site, caller) for site, caller in sites)

    @cached_property
    def _sites(self) -> dict[int, list[tuple[ast.expr, Function]]]:
        """Function -> the calls that run it."""
        call_sites: dict[int, list[tuple[ast.expr, Function]]] = {}
        for caller in self.module.functions:
            for effect in self.walker.effects(caller):
                if effect.callee is not None:
                    call_sites.setdefault(id(effect.callee), []).append((effect.node, caller))
        return call_sites

    @cached_property
    def on_loop(self) -> set[int]:
        """The functions that an event loop runs as callbacks: those given to `call_later`, `add_reader`."""
        callbacks: set[int] = set()
        for fn in self.module.functions:
            for call in fn.calls:
                name = short_name(call.func)
                if name not in RUNS_ON_LOOP or not isinstance(call.func, ast.Attribute):
                    continue
                owner = short_name(getattr(call.func.value, "func", call.func.value)).lower()
                arguments = call.args[RUNS_ON_LOOP[name] : RUNS_ON_LOOP[name] + 1]
                if "loop" in owner:
                    callbacks |= {id(each) for value in arguments for each in functions_of(value, fn, self.module)}
        return callbacks

    @cached_property
    def reached(self) -> dict[int, set[str]]:
        """Function -> the roots that reach it, each as `kind:name`."""
        roots: dict[int, set[str]] = {}
        for root in self.all:
            tag = f"{root.kind}:{root.function.qualname}"
            todo = [root.function]
            while todo:
                fn = todo.pop()
                tags = roots.setdefault(id(fn), set())
                if tag not in tags:
                    tags.add(tag)
                    todo += self._called(fn)
        return roots

    def threads_of(self, fn: Function) -> set[str]:
        """The threads that reach a function."""
        return {t for t in self.reached.get(id(fn), ()) if t.startswith("thread:")}

    @cached_property
    def own(self) -> set[int]:
        """The functions that each thread runs on an object of its own, as far as this file can tell."""
        starts = ((root.function, root.own) for root in self.all if root.kind == "thread")
        return owned(starts, self.walker.effects, self.module)

    @cached_property
    def has_threads(self) -> bool:
        """Whether the file starts any thread."""
        return any(root.kind == "thread" for root in self.all)


def _is_of_element(value: ast.expr | None) -> bool:
    """Whether what is run for each element is a method of the element: `pool.map(lambda job: job.run(), jobs)`."""
    call = value.body if isinstance(value, ast.Lambda) else None
    receiver = call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
    return isinstance(value, ast.Lambda) and dotted(receiver) in {a.arg for a in value.args.args}  # type: ignore[arg-type]


def _is_handed_over(coroutine: ast.expr) -> bool:
    """Whether a coroutine is given to the loop of another thread."""
    up = parent(coroutine)
    return isinstance(up, ast.Call) and short_name(up.func) == "run_coroutine_threadsafe"


def _coroutines(call: ast.Call, fn: Function) -> Iterator[tuple[ast.Call, bool]]:
    """The calls of coroutines that `gather` and its like run as tasks, and whether each stands for several of them."""
    for argument in call.args:
        awaitable = argument.value if isinstance(argument, ast.Starred) else argument
        if isinstance(awaitable, ast.Name):
            awaitable = fn.bound.get(awaitable.id, awaitable)
            filled = (c.args[0] for c in fn.calls if c.args and dotted(c.func) == f"{dotted(argument)}.append")
            yield from ((value, in_loop(value, fn)) for value in filled if isinstance(value, ast.Call))
        parts = awaitable.elts if isinstance(awaitable, ast.List | ast.Tuple | ast.Set) else [awaitable]
        for part in parts:
            inner = part.value if isinstance(part, ast.Starred) else part
            several = isinstance(inner, ast.ListComp | ast.GeneratorExp | ast.SetComp)
            value = inner.elt if isinstance(inner, ast.ListComp | ast.GeneratorExp | ast.SetComp) else inner
            if isinstance(value, ast.Call):
                yield value, several or in_loop(call, fn)


def in_loop(node: ast.AST, fn: Function) -> bool:
    """Whether this is inside a loop or comprehension of the function."""
    at = parent(node)
    while at is not None and at is not fn.node and not isinstance(at, _LOOPS):
        at = parent(at)
    return isinstance(at, _LOOPS)


def turns_around(call: ast.Call) -> ast.expr | None:
    """How often the loop or comprehension over `range(n)` around a call makes it."""
    at = enclosing(call, ast.For, ast.ListComp)
    over = at.iter if isinstance(at, ast.For) else at.generators[0].iter if isinstance(at, ast.ListComp) else None
    ranged = isinstance(over, ast.Call) and short_name(over.func) == "range" and len(over.args) == 1
    return over.args[0] if ranged else None  # type: ignore[union-attr]


def joined_at_once(constructor: ast.Call, fn: Function) -> bool:
    """A thread whose `start()` is followed by its `join()`, in the same turn of a loop, with no start in between."""
    name = next((dotted(target) for target, value in fn.assigns if value is constructor), "")
    loop, methods = enclosing(constructor, ast.For, ast.While), (f"{name}.start", f"{name}.join")
    calls = [c for c in fn.calls if name and dotted(c.func) in methods and c.lineno >= constructor.lineno]
    if any(enclosing(c, ast.For, ast.While) is not loop for c in calls):
        return False
    if len(calls) < 2 or short_name(calls[0].func) != "start" or short_name(calls[1].func) != "join":
        return False
    return not any(short_name(c.func) == "start" and calls[0].lineno < c.lineno < calls[1].lineno for c in fn.calls)


_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)

# Calls that start another path of execution -> its kind, and the name and position of the argument that it runs.
STARTS: dict[str, tuple[str, str, int]] = libraries.table("calls that start another path of execution")
#: Those of them that run a function once for each element, in the workers of a pool.
EACH = ("map", "imap", "imap_unordered", "map_async", "starmap", "starmap_async")
POOLS_OF_THREADS = {"ThreadPoolExecutor", "ThreadPool"}
#: Calls that run the coroutines that they are given as tasks, at the same time.
RUNS_TOGETHER = {"gather", "as_completed"}
#: Methods of an event loop, or of its tasks, that take a callback -> its position.
RUNS_ON_LOOP = libraries.table("methods of an event loop that take a callback")
# Web frameworks that run each request in a thread, and the decorators of their functions.
SERVERS = {"flask", "fastapi", "starlette", "bottle"}
ROUTES = {"route", "get", "post", "put", "patch", "delete"}
#: How functions are called, or are said to be called, that other threads run.
FROM_THREADS = re.compile(r"from_(an?other_|any_|worker_)?(thread|executor)$|(?<!un)(?<!not_)thread_?safe$")
CALLED = re.compile(
    r"(?<!not )(?<!never )(?<!only )\b(?:called|invoked|executed)\s+(?:from|by|in|on)\s+"
    r"(?:an?|another|other|different|any|many|several|multiple|arbitrary|worker)\b[^.,;:]{0,30}\bthreads?\b"
)
#: The methods of a request handler of the standard library that a request runs.
HANDLES = re.compile("handle$|do_[A-Z]+$")
STARTS_IN_MODULE = libraries.table("functions that start something in one module only")


# Functions that a library runs in threads of its own: callbacks, and methods of its base classes.
# A callback of a sound card, of a message broker or of a file watcher meets the program's own threads, although the
# program starts none. Which functions those are is data in libraries/threads.json.

_FUTURES = "concurrent.futures.Future"


def started_by_libraries(module: Module) -> Iterator[tuple[Function, int, bool]]:
    """Each such function with the line at which it is given to the library, and whether several threads run it."""
    for cls in module.classes.values():
        for base in cls.bases:
            pattern, _, several = libraries.run_in_thread(base).partition(" ")
            named = (m for m in cls.methods.values() if pattern and re.fullmatch(pattern, m.name))
            yield from ((m, m.line, bool(several)) for m in named if not m.asynchronous)
    for fn in module.functions:
        for call in fn.calls:
            if short_name(call.func) in libraries.takers():
                yield from _called_back(call, fn, module)
        for target, value in fn.assigns:
            if isinstance(target, ast.Attribute) and not isinstance(value, ast.Constant):
                yield from _assigned(target, value, fn, module)


def _called_back(call: ast.Call, fn: Function, module: Module) -> Iterator[tuple[Function, int, bool]]:
    """The functions among the arguments of a call that its library runs."""
    name = method_name(call.func, fn, module)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "add_done_callback":
        future = module.resource(call.func.value, fn)
        name = f"{_FUTURES}.add_done_callback" if future is not None and future.kind == "Future" else ""
    for parameter in libraries.called_in_thread(name).split():
        argument, _, position = parameter.partition(":")
        value = keyword(call, argument, int(position) if position else None)
        function = None if value is None else module.function_named(value, fn)
        if function is not None and not function.asynchronous:
            yield function, call.lineno, name.startswith(_FUTURES)


def _assigned(
    target: ast.Attribute, value: ast.expr, fn: Function, module: Module
) -> Iterator[tuple[Function, int, bool]]:
    """A function that is assigned to an attribute of a library's object: `client.on_message = self._received`."""
    function = module.function_named(value, fn) if target.attr.startswith("on_") else None
    if function is not None and not function.asynchronous:
        pattern = libraries.assigned_for_thread(type_name(target.value, fn, module))
        if pattern and re.fullmatch(pattern, target.attr):
            yield function, target.lineno, False


# Forks of the process itself, and what only the child does after one.

FORKS = ("os.fork", "os.forkpty", "pty.fork")
#: The bases of classes whose `run` is what a process runs.
PROCESSES = ("multiprocessing.Process", "multiprocessing.context.Process")


def on_child_side(node: ast.expr, fork: ast.Call) -> bool:
    """Whether only the child gets here: by `if pid == 0` or `if not pid`, or after `if pid` has led the parent away."""
    tests = [test for test in around(node, ast.If) if test.lineno >= fork.lineno]
    if any(_is_childs(test.test, fork) is is_within(node, test.body) for test in tests):
        return True
    at = statement_of(node)
    while at is not None and at.lineno >= fork.lineno:
        before = (s for s in block_of(at) if isinstance(s, ast.If) and fork.lineno <= s.lineno < at.lineno)
        if any(_is_childs(s.test, fork) is False and isinstance(s.body[-1], _LEAVES) for s in before):
            return True
        at = enclosing(at, ast.stmt)
    return False


def _is_childs(test: ast.expr, fork: ast.Call) -> bool | None:
    """Whether the child passes a test of what a fork has returned, or its parent; None for any other test."""
    text, name = ast.unparse(test), getattr(parent(fork), "targets", [fork])[0]
    if text.endswith("== 0") or text.startswith("not "):
        return True
    return False if text in (who := ast.unparse(name), f"{who} > 0", f"{who} != 0") else None


_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
