# Each case stands between lines `# === name`; a line that must be found ends in `# found: CODE`, and nothing else may be.
# === a counter of several threads, without any lock
import threading


class Counter:
    def __init__(self):
        self.done = 0

    def run(self):
        for _ in range(4):
            threading.Thread(target=self.work).start()

    def work(self):
        self.done += 1  # found: PC402


# === a counter of one thread
import threading


class Counter:
    def __init__(self):
        self.done = 0
        threading.Thread(target=self.work).start()

    def work(self):
        self.done += 1


# === a global of tasks in a pool
from concurrent.futures import ThreadPoolExecutor

total = 0


def work(n):
    global total
    total += n  # found: PC402


def run(numbers):
    with ThreadPoolExecutor() as pool:
        for n in numbers:
            pool.submit(work, n)


# === joined before the next is started
import threading

total = 0


def work():
    global total
    total += 1


def run():
    one = threading.Thread(target=work)
    one.start()
    one.join()
    two = threading.Thread(target=work)
    two.start()
    two.join()


# === a global dictionary gone through
import threading

lock = threading.Lock()
names = {}


def add(name, value):
    with lock:
        names[name] = value


def remove(name):
    with lock:
        names.pop(name, None)


def show():
    for name in names:  # found: PC404
        print(name)


# === a copy gone through
import threading

lock = threading.Lock()
names = {}


def add(name, value):
    with lock:
        names[name] = value


def show():
    for name in list(names):
        print(name)


# === made at first use beside a lock
import threading

_lock = threading.Lock()
_instance = None


def get():
    global _instance
    if _instance is None:
        with _lock:
            _instance = object()  # found: PC405
    return _instance


# === made at first use, looked at twice
import threading

_lock = threading.Lock()
_instance = None


def get():
    global _instance
    if _instance is None:
        with _lock:
            if _instance is None:
                _instance = object()
    return _instance


# === locked is asked before it is taken
import threading

lock = threading.Lock()


def work(x):
    if not lock.locked():
        lock.acquire()  # found: PC401
        try:
            x.run()
        finally:
            lock.release()


# === a dictionary filled at first use, otherwise guarded
import threading


class Cache:
    def __init__(self):
        self._lock = threading.Lock()
        self._made = {}

    def drop(self, key):
        with self._lock:
            self._made.pop(key, None)

    def get(self, key):
        if key not in self._made:
            self._made[key] = object()  # found: PC401
        return self._made[key]


# === removed when it exists, by several ranks
import os
import torch.distributed as dist


def clean(path):
    if os.path.exists(path):
        os.remove(path)  # found: PC406
    dist.barrier()


# === written when it is not there, by several ranks
import os
import torch
import torch.distributed as dist


def index(path, make):
    if not os.path.exists(path):
        torch.save(make(), path)  # found: PC406
    dist.barrier()
    return torch.load(path)


# === written by one rank
import os
import torch
import torch.distributed as dist


def index(path, make):
    if dist.get_rank() == 0 and not os.path.exists(path):
        torch.save(make(), path)
    dist.barrier()
    return torch.load(path)
