"""What this machine has: vector width, registers, and the cores that a process can really use."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Collection
from functools import cache
from pathlib import Path

from paceline.kernels.build import abilities
from paceline.kernels.memory import Target


@cache
def vector() -> tuple[int, int]:
    """(bytes, registers) of the widest vector."""
    flags = abilities().split()
    if "avx512f" in flags:
        return 64, 32
    if "avx2" in flags:
        return 32, 16
    return 16, 32 if platform.machine() in ("aarch64", "arm64") else 16


def x86() -> bool:
    """Whether this is an x86 CPU of 64 bits."""
    return platform.machine() in ("x86_64", "AMD64")


def target(real: str = "float") -> Target:
    """This machine's widest vectors, of float or double."""
    width, registers = vector()
    return Target(width, real, registers, shares=True)


def cores(affinity: Collection[int] | None = None) -> int:
    """The cores that this process, or several processes that may run on those given, can really use.

    These are no more than its affinity, and no more than a container's quota allows, rounded down.
    """
    mine = affinity or (os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
    allowed = quota()
    return max(1, min(len(mine), math.floor(allowed)) if allowed else len(mine))


def quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores per second that the control groups allow, the tightest of all above us; None for as many as there are."""
    quotas = []
    folder = root / _group().lstrip("/")
    for place in (folder, *folder.parents):
        if root not in (place, *place.parents):
            break
        try:
            limit, period = (place / "cpu.max").read_text(encoding="utf-8").split()
            if limit != "max":
                quotas.append(int(limit) / int(period))
        except (OSError, ValueError):
            continue
    try:
        old = root / "cpu"
        given_old = int((old / "cpu.cfsquota_us").read_text(encoding="utf-8"))
        if given_old > 0:
            quotas.append(given_old / int((old / "cpu.cfs_period_us").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        pass
    return min(quotas, default=None)


def _group() -> str:
    """The control group of this process."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split("::", 1)[1] for line in lines if "::" in line), "")
