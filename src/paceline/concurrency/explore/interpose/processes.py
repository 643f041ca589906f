"""`multiprocessing`: a process is a thread with memory of its own; what processes share is modelled.

The queues, locks and pools of threads serve, with items that are pickled. A process is forked or spawned as the program
chooses. Its end waits for its threads, and until what it has put into queues fits into their pipes; that of the
program, for all processes that are no daemons.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import multiprocessing
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable
from multiprocessing import connection, context, pool, process
from typing import Any

from paceline.concurrency.explore.interpose import control, locks, threads
from paceline.concurrency.explore.interpose.control import Shared, step, this
from paceline.concurrency.explore.interpose.memory import Context, copied, shared_tensors
from paceline.concurrency.explore.operation import Touch
from paceline.concurrency.explore.rewriting import importing
from paceline.concurrency.explore.scheduler import Task

PIPE = 65_536  # bytes that a pipe holds before its writer waits
_real: Any = {name: getattr(multiprocessing, name) for name in multiprocessing.__all__}
_real_fork, _real_pid = os.fork, os.getpid


class _Lock(Shared):
    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        of_threads: Any = super()
        return bool(of_threads.acquire(block, timeout))


def _common(kind: Any, base: Any = Shared) -> Any:
    """Return the form of a primitive of threads that processes share."""
    return type(kind.__name__, (base, kind), {"real": staticmethod(_real[kind.__name__])})


class PickledQueue(Shared, locks.Queue):
    """A queue of pickled items, which has the ends of its pipe as pools use them."""

    all: list[PickledQueue] = []  # noqa: RUF012

    def _init(self, maxsize: int) -> None:
        self.queue: deque[tuple[bytes, Context | None]] = deque()
        self._reader = self._writer = self._rlock = self
        self.send, self.recv = self.put, self.get
        PickledQueue.all.append(self)

    def _put(self, item: Any) -> None:
        self.queue.append((pickle.dumps(item), control.context()))

    def _get(self) -> Any:
        return pickle.loads(self.queue.popleft()[0])

    def holds(self, writer: Context) -> bool:
        """Whether a process cannot end, since no one has read what it has put."""
        return sum(len(data) for data, context in self.queue if context is writer) > PIPE

    def poll(self) -> bool:
        return not self.empty()

    def acquire(self) -> None:
        """Let no one else read any more, as a pool does that ends."""
        step("keeps others from", self.name, id(self))
        self.reader = control.me()

    def close(self) -> None:
        """Do nothing: what was put is read all the same."""

    join_thread = close

    def cancel_join_thread(self) -> None:
        PickledQueue.all.remove(self)


class Connection(Shared):
    """An end of a pipe, as one process has it; each direction of the pipe is a queue of messages."""

    open: dict[Connection, Context | None] = {}  # noqa: RUF012  # and the process that has it open

    def __new__(cls, *_: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, source: deque[bytes] | None, sink: deque[bytes] | None, name: str, owner: Any) -> None:
        self._source, self._sink, self.name = source, sink, name
        Connection.open[self] = owner

    def acquire(self) -> Connection:
        return self

    def release(self) -> None:
        step("closes", self, id(self._sink if self._source is None else self._source), releases=True)
        Connection.open.pop(self, None)

    close = release

    @property
    def closed(self) -> bool:
        return self not in Connection.open

    @property
    def ready(self) -> bool:
        return bool(self._source) or not any(each._sink is self._source for each in Connection.open)

    def send(self, item: Any) -> None:
        sink, data = self._use(self._sink), pickle.dumps(item)
        is_read: Callable[[], bool] = lambda: any(each._source is sink for each in Connection.open)  # noqa: E731
        step("writes into", self, id(sink), ready=lambda: sum(map(len, sink)) < PIPE or not is_read(), releases=True)
        if not is_read():
            raise BrokenPipeError(32, "Broken pipe")
        sink.append(data)
        if sum(map(len, sink)) > PIPE:
            step("waits for a reader of", self, id(sink), ready=lambda: sum(map(len, sink)) <= PIPE or not is_read())

    def recv(self) -> Any:
        source = self._use(self._source)
        step("reads from", self, id(source), ready=lambda: self.ready, acquires=True, holder=lambda: self._own_writer())
        if not source:
            raise EOFError
        return pickle.loads(source.popleft())

    def _own_writer(self) -> int | None:
        """Return the reader, if only its own process could still write what it waits for, and has no other thread."""
        run, me = this()
        owners = {id(owner) for each, owner in Connection.open.items() if each._sink is self._source}
        alone = [each for each in run.tasks if each.context is me.context and not each.done] == [me]
        return me.number if alone and owners == {id(me.context)} else None

    send_bytes, recv_bytes = send, recv

    def poll(self, timeout: float | None = 0.0) -> bool:
        where = id(self._use(self._source))
        step("polls", self, where, mode="read", ready=lambda: self.ready, timeout=timeout, acquires=True)
        return self.ready

    def _use(self, messages: deque[bytes] | None) -> deque[bytes]:
        if self.closed or messages is None:
            raise OSError("handle is closed" if self.closed else "connection is one-way")
        return messages


def _pipe(duplex: bool = True) -> tuple[Any, Any]:
    if not control.is_controlled():
        return _real["Pipe"](duplex)  # type: ignore[no-any-return]
    one, two, name, owner = deque[bytes](), deque[bytes]() if duplex else None, control.name_of_new("Pipe"), present()
    return Connection(one, two, name, owner), Connection(two, one, name, owner)


def _wait(objects: Any, timeout: float | None = None, real: Any = connection.wait) -> Any:
    """Wait until one of several pipes, queues or ends of processes is ready."""
    if not all(isinstance(each, Connection | PickledQueue | Process) for each in objects):
        return real(objects, timeout)

    def ready() -> list[Any]:
        return [each for each in objects if (each._qsize() if isinstance(each, PickledQueue) else each.ready)]

    step("waits for", "one of several pipes or processes", "ends", ready=lambda: bool(ready()), timeout=timeout)
    return ready()


class Value(Shared):
    """A number that processes share; to change it is a read and a write, with or without its lock."""

    real: Any = staticmethod(_real["Value"])

    def __init__(self, kind: Any, value: Any = 0, lock: Any = True) -> None:
        self.value, self._lock = value, MADE["RLock"]() if lock in (True, None) else lock
        self.acquire, self.release = getattr(self._lock, "acquire", None), getattr(self._lock, "release", None)

    def get_lock(self) -> Any:
        return self._lock


QUEUES = ("Queue", "SimpleQueue", "JoinableQueue")
MADE: dict[str, Any] = {
    **{each.__name__: _common(each, Shared if at > 3 else _Lock) for at, each in enumerate(locks.PRIMITIVES)},
    **{name: type(name, (PickledQueue,), {"real": staticmethod(_real[name])}) for name in QUEUES},
    "RawValue": type("RawValue", (Value,), {"real": staticmethod(_real["RawValue"])}),
    "Value": Value,
}


class _Dict(Shared, dict):  # type: ignore[type-arg]
    """The dictionary of a manager: who reads a value gets a copy."""

    def __init__(self, *items: Any, **settings: Any) -> None:
        dict.__init__(self, *items, **settings)

    def __getitem__(self, key: Any) -> Any:
        return _sent(super().__getitem__(key))

    def get(self, key: Any, default: Any = None) -> Any:
        return _sent(super().get(key, default))


class _List(Shared, list):  # type: ignore[type-arg]
    """The list of a manager, or an array in shared memory."""

    def __init__(self, items: Any = (), lock: Any = None) -> None:
        list.__init__(self, items)
        self._lock = MADE["RLock"]() if lock is True else lock
        self.acquire, self.release = getattr(self._lock, "acquire", None), getattr(self._lock, "release", None)

    def __getitem__(self, index: Any) -> Any:
        return _sent(super().__getitem__(index))

    def get_lock(self) -> Any:
        return self._lock


class _Namespace(Shared):
    """The namespace of a manager."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def _array(kind: Any, size_or_items: Any, *, lock: Any = True) -> Any:
    if not lock:
        control.refuse("multiprocessing.Array without a lock")  # memory that NumPy looks into
    return _List([0] * size_or_items if isinstance(size_or_items, int) else size_or_items, lock)


class Manager(Shared):
    """What a manager makes is common to all processes; it needs no process of its own."""

    def acquire(self) -> Manager:
        return self

    def __getattr__(self, name: str) -> Any:
        made = {**MADE, "dict": _Dict, "list": _List, "Namespace": _Namespace, "Pool": pool.Pool}
        return made[name] if name in made else control.refuse(f"{name} of a manager")

    def release(self) -> None:
        """Do nothing."""

    start = shutdown = release


class Process(Shared):
    """`multiprocessing.Process`; beside torch.distributed a rank: the n-th that a program starts is rank n."""

    real: Any = _real["Process"]
    method = ""  # of starting; empty for that of the program
    are_ranks, made, started = False, 0, 0
    _task: Task | None = None
    exitcode: int | None = None
    pid: int | None = None

    def __init__(
        self, group: None = None, target: Any = None, name: Any = None, args: Any = (), kwargs: Any = None, **rest: Any
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        Process.made += 1
        self.name, self._identity = name or f"Process-{Process.made}", (Process.made,)
        self.daemon = bool(rest.get("daemon"))

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        assert self._task is None, "cannot start a process twice"
        present()
        held = tuple(Touch(id(each), "read") for each in locks.Lock.all)  # a fork copies locks as they are
        step("starts", self.name, ("thread", len(this()[0].tasks)), others=held)
        number, name = Process.started, self.name
        if Process.are_ranks:
            name, own = f"rank {number}", Context(number)
            child: Callable[[], Any] = lambda: afresh(self._target)(*self._args, **self._kwargs)  # noqa: E731
        else:
            own, child = self._prepared()
        Process.started += 1
        self.pid = own.pid = _real_pid() + Process.started
        self._task = threads.start_task(name, lambda: self._body(own, child), own, self.daemon)

    def _prepared(self) -> tuple[Context, Callable[[], Any]]:
        """Return the memory of the new process, and what it does."""
        task, is_fork = this()[1], (self.method or multiprocessing.get_start_method()) == "fork"
        task.quiet += 1  # methods of copying are not interrupted
        own, memo = Context.forked() if is_fork else (Context(), shared_tensors())
        for end in [each for each, owner in Connection.open.items() if is_fork and owner is task.context]:
            memo[id(end)] = Connection(end._source, end._sink, end.name, own)  # a fork leaves all of them open
        clone = own.process = object.__new__(type(self))
        clone.__dict__ = {name: copied(value, memo) for name, value in self.__dict__.items()}
        task.quiet -= 1

        def spawned() -> None:
            clone._target, clone.__class__ = afresh(clone._target), afresh(type(clone))
            clone.run()

        return own, clone.run if is_fork else spawned

    def _body(self, own: Context, child: Callable[[], Any]) -> None:
        (run, me), code = this(), 0
        try:
            child()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if own.rank is not None:
                raise
        for task in run.tasks:
            if task.context is own and task is not me and not task.daemon:
                threads.wait_for_end(task)
        for each in [each for each in PickledQueue.all if each.holds(own)]:
            read: Callable[[], bool] = lambda each=each: not each.holds(own)  # type: ignore[misc]  # noqa: E731
            step("waits for a reader of", each.name, id(each), ready=read)
        self.exitcode = code
        _close(own)

    def terminate(self) -> None:
        task = self._task
        if task is not None and not task.done:
            step("kills", self.name, ("end", task.number), releases=True)
            self.exitcode = -15
            for each in this()[0].tasks:
                if each.context is task.context:
                    each.done, each.pending = True, None
            _close(task.context)

    kill = terminate

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None:
            threads.wait_for_end(self._task, timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not threads.has_ended(self._task)

    @property
    def ready(self) -> bool:
        return self._task is not None and self._task.done

    sentinel = property(lambda self: self)

    def close(self) -> None:
        """Do nothing."""


def present() -> Context:
    """Return the process that calls, of which all threads are that were started before there were two."""
    run, me = this()
    main = me.context or Context()
    for task in run.tasks:
        task.context = task.context or main
    return me.context  # type: ignore[no-any-return]


def _close(own: Context) -> None:
    """Close the ends of pipes that a process has left open."""
    Connection.open = {end: owner for end, owner in Connection.open.items() if owner is not own}


def afresh(thing: Any) -> Any:
    """Return a function or class as this process's own module has it, which is imported anew."""
    module: Any = sys.modules.get(getattr(thing, "__module__", ""))
    names = getattr(thing, "__globals__", None) or vars(module)
    if names["__name__"] == "__main__":
        module = importing.run_script(names["__file__"], "__mp_main__")
        sys.modules["__main__"] = module
    elif control.MARK in names:
        module = importlib.import_module(names["__name__"])
    else:
        return thing
    for part in thing.__qualname__.split("."):
        module = getattr(module, part)
    return module


class ProcessPoolExecutor(concurrent.futures.Executor):
    """A pool of processes."""

    def __init__(self, max_workers: int | None = None, mp_context: Any = None, *first: Any, **settings: Any) -> None:
        settings.pop("max_tasks_per_child", None)
        self._pool = pool.Pool(max_workers or 2, *first, **settings | {"context": mp_context})

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._pool.apply_async(fn, args, kwargs, future.set_result, future.set_exception)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.close()
        if wait:
            self._pool.join()


def _unless_real(model: Any, real: Any) -> Any:
    return lambda *args, **settings: (model if control.is_controlled() else real)(*args, **settings)


MODELS: dict[str, Any] = {
    "Manager": lambda *_: Manager(),
    "Array": _array,
    "RawArray": lambda *_: control.refuse("multiprocessing.RawArray"),
}


def _current() -> Any:
    return getattr(control.context(), "process", None) or _real["current_process"]()


def install() -> None:
    """Put the models in the place of the functions and classes of `multiprocessing`."""
    functions = {"Pipe": _pipe, "current_process": _current}
    functions |= {name: _unless_real(model, _real[name]) for name, model in MODELS.items()}
    for name, value in {**MADE, **functions, "Process": Process}.items():
        setattr(multiprocessing, name, value)
        setattr(context.BaseContext, name, staticmethod(value) if name in functions else value)
    for each in (context.ForkContext, context.SpawnContext, context.ForkServerContext, context.DefaultContext):
        names = {"method": getattr(each, "_name", ""), "real": each.Process}
        each.Process = type("Process", (Process,), names)
    process.current_process = _current
    pool.wait = connection.wait = _wait  # type: ignore[attr-defined, assignment]
    concurrent.futures.ProcessPoolExecutor = ProcessPoolExecutor  # type: ignore[misc, assignment]
    os.fork = _unless_real(lambda: control.refuse("os.fork"), _real_fork)
    os.getpid = lambda: getattr(control.context(), "pid", None) or _real_pid()
