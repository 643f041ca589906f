# Each case stands between lines `# === name`; a line that must be found ends in `# found: CODE`, and nothing else may be.
# === a list of processes joined first
import multiprocessing as mp


def run(work, n):
    out = mp.Queue()
    procs = [mp.Process(target=work, args=(out, i)) for i in range(n)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()  # found: PC201
    return [out.get(timeout=1) for p in procs]


# === read first, then joined
import multiprocessing as mp


def run(work, n):
    out = mp.Queue()
    procs = [mp.Process(target=work, args=(out, i)) for i in range(n)]
    for p in procs:
        p.start()
    found = [out.get(timeout=1) for p in procs]
    for p in procs:
        p.join()
    return found


# === a pipe read after the join
import multiprocessing as mp


def run(work):
    mine, theirs = mp.Pipe()
    p = mp.Process(target=work, args=(theirs,))
    p.start()
    p.join()  # found: PC201
    return mine.recv()


# === polled while nobody reads
import subprocess
import time


def run(command):
    p = subprocess.Popen(command, stdout=subprocess.PIPE)
    while p.poll() is None:  # found: PC202
        time.sleep(1)
    return p.stdout.read()


# === waited for at once
import subprocess
from subprocess import PIPE


def run(command):
    return subprocess.Popen(command, stdout=PIPE).wait()  # found: PC202


# === read and then waited for
import subprocess


def run(command):
    p = subprocess.Popen(command, stdout=subprocess.PIPE)
    for line in p.stdout:
        print(line)
    return p.wait()


# === an asyncio child waited for
import asyncio


async def run(command):
    p = await asyncio.create_subprocess_exec(command, stdout=asyncio.subprocess.PIPE)
    await p.wait()  # found: PC202
    return await p.stdout.read()


# === an event cleared just before the wait
import threading


class Loop:
    def __init__(self):
        self.wake = threading.Event()
        threading.Thread(target=self.run).start()

    def run(self):
        while True:
            self.work()
            self.wake.clear()  # found: PC205
            self.wake.wait()

    def poke(self):
        self.wake.set()

    def work(self):
        pass


# === an event cleared after the wait
import threading


class Loop:
    def __init__(self):
        self.wake = threading.Event()
        threading.Thread(target=self.run).start()

    def run(self):
        while True:
            self.wake.wait()
            self.wake.clear()
            self.work()

    def poke(self):
        self.wake.set()

    def work(self):
        pass


# === a condition whose question is asked without it
import threading


class Box:
    def __init__(self):
        self.ready = threading.Condition()
        self.items = []

    def put(self, item):
        with self.ready:
            self.items.append(item)
            self.ready.notify()

    def get(self):
        while not self.items:
            with self.ready:
                self.ready.wait()  # found: PC204
        return self.items.pop()


# === get after a look whether it is empty
import queue
import threading

items = queue.Queue()


def work():
    while not items.empty():
        item = items.get()  # found: PC208
        print(item)


for _ in range(4):
    threading.Thread(target=work).start()

# === get that does not wait after a look
import queue
import threading

items = queue.Queue()


def work():
    while not items.empty():
        item = items.get_nowait()
        print(item)


for _ in range(4):
    threading.Thread(target=work).start()

# === an event that is not set when the work fails
import threading


class Job:
    def __init__(self, work):
        self.work = work
        self.done = threading.Event()
        threading.Thread(target=self._run).start()

    def _run(self):
        self.result = self.work()
        self.done.set()  # found: PC209

    def get(self):
        self.done.wait()
        return self.result


# === an event that is set in any case
import threading


class Job:
    def __init__(self, work):
        self.work = work
        self.done = threading.Event()
        threading.Thread(target=self._run).start()

    def _run(self):
        try:
            self.result = self.work()
        finally:
            self.done.set()

    def get(self):
        self.done.wait()
        return self.result
