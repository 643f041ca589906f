"""What the machine can do at most: multiply-adds in registers, and bytes from memory."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from functools import cache

import paceline.kernels.machine as machine
from paceline.kernels.build import library

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
