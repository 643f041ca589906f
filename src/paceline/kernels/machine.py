"""What this machine has, and what it can do at most: vector width, registers, usable cores, multiply-adds, bytes."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import paceline.kernels.machine as machine
from paceline.kernels.build import abilities, library
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


# What the machine can do at most: multiply-adds in registers, and bytes from memory.

TEXT = """
#include <cstdint>
#include <cstring>
typedef float V __attribute__((vector_size(BYTES)));

// Sums that do not wait for one another: as many as there may be multiply-adds under way.
extern "C" void multiply_adds(int64_t rounds, int64_t threads, float* out) {
#pragma omp parallel num_threads(threads)
    {
        V a = V{} + 0.999f, b = V{} + 1e-3f;
        V DECLARED;
        for (int64_t r = 0; r < rounds; r++) {
            MULTIPLIED
        }
        const V sum = SUMMED;
#pragma omp critical
        std::memcpy(out, &sum, sizeof sum);
    }
}

extern "C" void read_all(const float* from, int64_t numbers, int64_t threads, float* out) {
#pragma omp parallel num_threads(threads)
    {
        V s[4] = {};
#pragma omp for schedule(static)
        for (int64_t q = 0; q < numbers / (4 * LANES); q++)
            for (int k = 0; k < 4; k++) {
                V v;
                std::memcpy(&v, from + (q * 4 + k) * LANES, sizeof v);
                s[k] += v;
            }
        const V sum = s[0] + s[1] + s[2] + s[3];
#pragma omp critical
        std::memcpy(out, &sum, sizeof sum);
    }
}
"""


@dataclass(frozen=True)
class Peak:
    """The most that so many threads can do."""

    threads: int
    gflops: float
    gigabytes: float  # read per second, from an array of 256 MB


@cache
def peak(threads: int, tries: int = 5) -> Peak:
    """Measured once, in about a second."""
    import torch

    width, registers = machine.vector()
    constraint = '"v"' if width == 64 else '"x"' if machine.x86() else '"w"'
    sums = 16 if registers == 32 else 10
    names = [f"s{k}" for k in range(sums)]
    operations = " ".join(f'{n} = {n} * a + b; asm volatile("" : "+" {constraint}({n}));' for n in names)
    defines = {
        "BYTES": width,
        "LANES": width // 4,
        "SUMMED": " + ".join(names),
        "MULTIPLIED": operations,
        "DECLARED": ", ".join(f"{n} = V{{}} + {k}.0f" for k, n in enumerate(names)),
    }
    text = "".join(f"#define {name} {value}\n" for name, value in defines.items()) + TEXT
    loaded, _, _ = library(text)
    out = torch.zeros(64)
    pointer = ctypes.c_void_p(out.data_ptr())
    rounds = 1_000_000
    how = (ctypes.c_int64(rounds), ctypes.c_int64(threads), pointer)
    best = min(_timed(loaded.multiply_adds, *how) for _ in range(tries))
    numbers = 64 << 20
    array = torch.ones(numbers)
    arguments = (ctypes.c_void_p(array.data_ptr()), ctypes.c_int64(numbers), ctypes.c_int64(threads), pointer)
    read = min(_timed(loaded.read_all, *arguments) for _ in range(tries))
    return Peak(threads, 2.0 * sums * (width // 4) * rounds * threads / best / 1e9, numbers * 4 / read / 1e9)


def _timed(function: ctypes._NamedFuncPointer, *arguments: object) -> float:
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin
