"""Makes a schedule short: switches are left out as long as the finding stays.

Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 28(2), 2002 (ddmin), over switches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from paceline.concurrency.explore.strategies.replay import Switch


def shrink(switches: Sequence[Switch], fails: Callable[[Sequence[Switch]], bool], seconds: float) -> list[Switch]:
    """Return a shorter list that still fails: no single switch of it can be left out, unless time ran out."""
    short, end = list(switches), time.monotonic() + seconds
    size = max(1, len(short) // 2)
    while short and time.monotonic() < end:
        at, before = 0, len(short)
        while at < len(short) and time.monotonic() < end:
            rest = short[:at] + short[at + size :]
            if fails(rest):
                short = rest
            else:
                at += size
        if size == 1 and len(short) == before:
            break
        size = max(1, size // 2)
    return short
