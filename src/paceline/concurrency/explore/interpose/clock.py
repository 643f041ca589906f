"""`time`: a clock that passes only when the scheduler says so, and sleeps that cost nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from paceline.concurrency.explore.interpose.control import here, step
from paceline.concurrency.explore.scheduler import real_monotonic, real_sleep

#: To look at a clock takes this long, so that a loop that polls a clock ends.
TICK = 0.001
EPOCH = 1_700_000_000.0  # the virtual time of day at the virtual second 0


def monotonic() -> float:
    """Return the virtual time in a thread under control, else the real one."""
    where = here()
    if where is None:
        return real_monotonic()
    run, _ = where
    run.now += TICK
    return run.now


def _virtual(real: Callable[[], Any], epoch: float, unit: Callable[[float], Any]) -> Callable[[], Any]:
    return lambda: unit(monotonic() + epoch) if here() is not None else real()


def sleep(seconds: float, /) -> None:
    if here() is None:
        real_sleep(seconds)
    elif seconds <= 0:
        step("yields to", "other threads", "clock", mode="read")
    else:
        step("sleeps", f"for {seconds:g} s", "clock", ready=lambda: False, timeout=seconds)


def install() -> None:
    time.sleep = sleep  # type: ignore[assignment]
    threading._time = monotonic  # type: ignore[attr-defined]  # of conditions
    for name, epoch in (("monotonic", 0.0), ("perf_counter", 0.0), ("time", EPOCH)):
        setattr(time, name, _virtual(getattr(time, name), epoch, float))
        setattr(time, f"{name}_ns", _virtual(getattr(time, f"{name}_ns"), epoch, lambda seconds: int(seconds * 1e9)))
