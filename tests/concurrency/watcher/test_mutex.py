"""Who holds a mutex of glibc, read from the mutex."""

from __future__ import annotations

import ctypes
import os
import threading
import time

from paceline.concurrency.watcher.waits import owner_of_mutex


def test_the_thread_that_holds_a_contended_mutex_is_found() -> None:
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    address, pid = ctypes.addressof(mutex), os.getpid()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        library.pthread_mutex_lock(mutex)
        held.set()
        release.wait()
        library.pthread_mutex_unlock(mutex)

    def want() -> None:
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_unlock(mutex)

    threads = [threading.Thread(target=each) for each in (hold, want)]
    try:
        threads[0].start()
        held.wait()
        assert owner_of_mutex(pid, address) == ()  # no thread waits for it
        threads[1].start()
        while not owner_of_mutex(pid, address):
            time.sleep(0.01)
        assert owner_of_mutex(pid, address) == (threads[0].native_id,)
    finally:
        release.set()
        for thread in threads:
            thread.join()


def test_what_is_no_mutex_has_no_owner() -> None:
    other = ctypes.create_string_buffer(b"\x02\0\0\0\0\0\0\0\x01" + bytes(11), 64)
    assert owner_of_mutex(os.getpid(), ctypes.addressof(other)) == ()
    assert owner_of_mutex(os.getpid(), 8) == ()
