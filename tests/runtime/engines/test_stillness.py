"""A worker that is stopped for ever: how long its parent waits for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from paceline.runtime.engines.local.worker_pool import Stillness, is_stopped


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def after(seconds: list[float], stopped: list[bool], goes_on: bool) -> int | None:
    """The number of the look at which a worker is given up, with 10 s as the deadline."""
    clock = Clock()
    state = iter(stopped)
    stillness = Stillness(10.0, lambda pid: next(state), clock)
    for number, each in enumerate(seconds):
        clock.now += each
        if stillness.poll([1], goes_on):
            return number
    return None


def test_a_stopped_worker_is_given_up_at_the_deadline_and_elsewhere_after_others_have_named_it() -> None:
    assert after([0.5] * 40, [True] * 40, goes_on=True) == 21  # 10.5 s after it was noticed
    assert after([0.5] * 40, [True] * 40, goes_on=False) == 31  # 15.5 s


def test_a_worker_that_goes_on_meanwhile_begins_anew() -> None:
    assert after([0.5] * 38, [True] * 18 + [False] + [True] * 19, goes_on=True) is None


def test_seconds_in_which_the_parent_itself_was_stopped_do_not_count() -> None:
    assert after([0.5, 3600.0, 0.5], [True] * 3, goes_on=True) is None


def test_a_process_is_stopped_by_sigstop_until_sigcont() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        for number, expected in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            process.send_signal(number)
            until = time.monotonic() + 60
            while is_stopped(process.pid) != expected and time.monotonic() < until:
                time.sleep(0.01)
            assert is_stopped(process.pid) == expected
    finally:
        process.communicate(b"\n")
    assert not is_stopped(process.pid)


@pytest.mark.parametrize("pid", [0, 2**22 + 1])
def test_what_is_no_process_is_not_stopped(pid: int) -> None:
    assert not is_stopped(pid)
