"""Programs that compute without a word."""

from __future__ import annotations

import hashlib
import threading


def python() -> None:
    number = 1
    while True:
        number = number * 6364136223846793005 % (1 << 64)


def long_c_call() -> None:
    hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 100_000_000)


def in_thread() -> None:
    thread = threading.Thread(target=python)
    thread.start()
    thread.join()


def sorts() -> None:
    while True:
        sorted(hash(str(number)) for number in range(300_000))


PROGRAMS = {"python": python, "long_c_call": long_c_call, "in_thread": in_thread, "sorts": sorts}
