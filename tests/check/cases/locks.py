# Each case stands between lines `# === name`; a line that must be found ends in `# found: CODE`, and nothing else may be.
# === property takes the lock again
import threading


class Pool:
    def __init__(self):
        self._lock = threading.Lock()
        self._items = []

    @property
    def size(self):
        with self._lock:
            return len(self._items)

    def put(self, item):
        with self._lock:
            if self.size < 3:  # found: PC103
                self._items.append(item)


# === a re-entrant lock may be taken again
import threading


class Pool:
    def __init__(self):
        self._lock = threading.RLock()

    @property
    def size(self):
        with self._lock:
            return 1

    def put(self):
        with self._lock:
            return self.size


# === a condition on the same lock
import threading


class Box:
    def __init__(self):
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)

    def put(self):
        with self._lock:
            self._tell()  # found: PC103

    def _tell(self):
        with self._ready:
            self._ready.notify()


# === a lock per object is another lock
import threading


class Account:
    def __init__(self, other):
        self._lock = threading.Lock()
        self.other = other

    def move(self):
        with self._lock:
            self.other.move()


# === released before it is taken again
import threading


class Pool:
    def __init__(self):
        self._lock = threading.Lock()

    def put(self):
        self._lock.acquire()
        self.n = 1
        self._lock.release()
        self.get()

    def get(self):
        with self._lock:
            return self.n


# === an early return keeps it
import threading

lock = threading.Lock()


def f(x):
    lock.acquire()  # found: PC102
    if x:
        return 1
    lock.release()
    return 2


# === an exception keeps it
import threading

lock = threading.Lock()


def f(x):
    lock.acquire()  # found: PC102
    x.work()
    lock.release()


# === a finally gives it back, whatever happens
import threading

lock = threading.Lock()


def f(x):
    lock.acquire()
    try:
        if x:
            return x.work()
        while x:
            if x.more():
                continue
            break
        raise ValueError
    finally:
        lock.release()


# === a handler that leaves keeps it
import threading

lock = threading.Lock()


def f(x):
    lock.acquire()  # found: PC102
    try:
        x.work()
    except ValueError:
        return None
    lock.release()


# === a try that gives up
import threading

lock = threading.Lock()


def f(x):
    if not lock.acquire(timeout=3):
        raise RuntimeError
    try:
        return x.work()
    finally:
        lock.release()


# === a match that leaves on one side
import threading

lock = threading.Lock()


def f(x):
    lock.acquire()  # found: PC102
    match x:
        case 1:
            lock.release()
        case 2:
            return
        case _:
            lock.release()


# === acquired in a coroutine
import asyncio

lock = asyncio.Lock()


async def f(x):
    await lock.acquire()  # found: PC102
    await x.work()
    lock.release()


# === one order through a third lock
import threading

a = threading.Lock()
b = threading.Lock()
gate = threading.Lock()


def f():
    with gate:
        with a:
            with b:
                pass


def g():
    with gate:
        with b:
            with a:
                pass


# === a circle of three
import threading

a = threading.Lock()
b = threading.Lock()
c = threading.Lock()


def f():
    with a, b:  # found: PC101
        pass


def g():
    with b, c:
        pass


def h():
    with c, a:
        pass


# === locks of two classes
import threading


class Store:
    def __init__(self):
        self.lock = threading.Lock()
        self.index = Index(self)

    def put(self):
        with self.lock:
            self.index.add()

    def size(self):
        with self.lock:
            return 1


class Index:
    def __init__(self, store: Store):
        self.lock = threading.Lock()
        self.store = store

    def add(self):
        with self.lock:
            pass

    def check(self):
        with self.lock:
            return self.store.size()  # found: PC101


# === a context manager that holds the lock
import threading
from contextlib import contextmanager

a = threading.Lock()
b = threading.Lock()


@contextmanager
def both():
    with a:
        yield


def f():
    with both():
        with b:  # found: PC101
            pass


def g():
    with b, a:
        pass


# === a wait for a thread that needs the lock
import threading


class Service:
    def __init__(self):
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        self._step()

    def _step(self):
        with self._lock:
            pass

    def stop(self):
        with self._lock:
            self._thread.join()  # found: PC105


# === a wait with a timeout ends
import threading


class Service:
    def __init__(self):
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        with self._lock:
            pass

    def stop(self):
        with self._lock:
            self._thread.join(1)


# === an event set under the lock that the waiter holds
import threading


class Box:
    def __init__(self):
        self._lock = threading.Lock()
        self._done = threading.Event()

    def finish(self):
        with self._lock:
            self._done.set()

    def wait(self):
        with self._lock:
            self._done.wait()  # found: PC105


# === a condition waited for with another lock held
import threading


class Box:
    def __init__(self):
        self._lock = threading.Lock()
        self._ready = threading.Condition()
        self.items = []

    def put(self, item):
        with self._lock:
            with self._ready:
                self.items.append(item)
                self._ready.notify()

    def get(self):
        with self._lock:
            with self._ready:
                while not self.items:
                    self._ready.wait()  # found: PC105
                return self.items.pop()


# === listeners called under the lock
import threading


class Source:
    def __init__(self):
        self._lock = threading.Lock()
        self._listeners = []

    def add(self, listener):
        with self._lock:
            self._listeners.append(listener)

    def fire(self):
        with self._lock:
            for listener in self._listeners:
                listener()  # found: PC104


# === a weak reference's callback takes a lock
import threading
import weakref


class Registry:
    def __init__(self):
        self._lock = threading.Lock()
        self._all = {}

    def add(self, thing):
        with self._lock:
            self._all[id(thing)] = weakref.ref(thing, self._gone)

    def get(self, thing):
        with self._lock:
            return str(thing)

    def _gone(self, ref):
        with self._lock:  # found: PC111
            self._all.pop(ref, None)


# === an object's own lock in its destructor
import threading


class Handle:
    def __init__(self):
        self._lock = threading.Lock()

    def close(self):
        with self._lock:
            self.free()

    def __del__(self):
        self.close()


# === a queue used by a signal handler
import queue
import signal

events = queue.Queue()


def on_signal(number, frame):
    events.put(number)  # found: PC112


signal.signal(signal.SIGUSR1, on_signal)

# === a handler that ends the process may print
import signal
import sys


def on_signal(number, frame):
    print("bye")
    sys.exit(0)


signal.signal(signal.SIGTERM, on_signal)

# === fork with threads
import os
import threading


class Server:
    def start(self):
        threading.Thread(target=self.watch).start()
        self.spawn()

    def watch(self):
        pass

    def spawn(self):
        pid = os.fork()  # found: PC114
        if pid == 0:
            self.serve()

    def serve(self):
        pass


# === fork and exec with threads
import os
import threading


def start(command):
    threading.Thread(target=print).start()
    if os.fork() == 0:
        os.execv(command, [command])


# === a decorator that holds the lock
import functools
import threading


def locked(method):
    @functools.wraps(method)
    def wrapper(self, *args):
        with self._lock:
            return method(self, *args)

    return wrapper


class Pool:
    def __init__(self):
        self._lock = threading.Lock()

    @locked
    def size(self):
        return 1

    @locked
    def put(self, item):
        return self.size()  # found: PC103
