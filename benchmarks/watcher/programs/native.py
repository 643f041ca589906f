"""Locks of C, taken by ctypes: mutexes of glibc, also while Python's interpreter lock is held."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time

PLAIN = ctypes.CDLL(None)
WITH_GIL = ctypes.PyDLL(None)


def circle() -> None:
    mutexes = [ctypes.create_string_buffer(64) for _ in range(2)]

    def run(number: int) -> None:
        PLAIN.pthread_mutex_lock(mutexes[number])
        time.sleep(0.3)
        PLAIN.pthread_mutex_lock(mutexes[1 - number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def mutex_against_the_interpreter() -> None:
    """One thread holds the mutex and wants the interpreter, the other holds the interpreter and wants the mutex."""
    mutex = ctypes.create_string_buffer(64)

    def run() -> None:
        PLAIN.pthread_mutex_lock(mutex)
        time.sleep(0.5)

    threading.Thread(target=run).start()
    time.sleep(0.2)
    WITH_GIL.pthread_mutex_lock(mutex)


def shared_with_a_dead_process() -> None:
    memory = mmap.mmap(-1, 4096)
    mutex = (ctypes.c_char * 64).from_buffer(memory)
    attributes = ctypes.create_string_buffer(16)
    PLAIN.pthread_mutexattr_init(attributes)
    PLAIN.pthread_mutexattr_setpshared(attributes, 1)
    PLAIN.pthread_mutex_init(mutex, attributes)
    if os.fork() == 0:
        PLAIN.pthread_mutex_lock(mutex)
        os._exit(0)
    os.wait()
    PLAIN.pthread_mutex_lock(mutex)


PROGRAMS = {
    "circle": circle,
    "mutex_against_the_interpreter": mutex_against_the_interpreter,
    "shared_with_a_dead_process": shared_with_a_dead_process,
}
