"""Why a push costs more in some runs: forty starts of two processes that copy between two cores, without Paceline.

Each start has new memory, in pages of 4 KB and in pages of 2 MB, whose physical addresses lie side by side. A push
writes by plain stores, or by those that pass the caches. If the cache's sets were the cause, large pages would have one
mode. The time that a cache line takes from core to core and back says where the two cores lie: a virtual machine's
cores move between physical ones.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from paceline.kernels.build import library
from paceline.kernels.printers.cpp import part

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from harness import write  # noqa: E402

NUMBERS = 55_050
LARGE = 2 << 20
COLLAPSE = 25  # MADV_COLLAPSE: make large pages of these, now


class Memory:
    """Shared memory at a multiple of 2 MB: a turn, and a slot for each process."""

    def __init__(self, large: bool) -> None:
        libc, size = ctypes.CDLL(None, use_errno=True), 2 * LARGE
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_long] * 5]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
        descriptor = os.memfd_create("copies")
        os.ftruncate(descriptor, size)
        somewhere = libc.mmap(None, size + LARGE, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.start: int = -(-somewhere // LARGE) * LARGE
        fixed, both = 0x10, mmap.PROT_READ | mmap.PROT_WRITE
        libc.mmap(self.start, size, both, mmap.MAP_SHARED | fixed, descriptor, 0)
        ctypes.memset(self.start, 0, size)
        #: Whether the system made the pages that were asked for.
        self.made = not large or libc.madvise(self.start, size, COLLAPSE) == 0
        os.close(descriptor)

    def slot(self, number: int) -> int:
        return self.start + mmap.PAGESIZE + number * -(-4 * NUMBERS // mmap.PAGESIZE) * mmap.PAGESIZE


def one(code: Any, large: bool, streamed: bool, rounds: int) -> dict[str, float]:
    """One start: nanoseconds of a round trip, microseconds of a push."""
    memory = Memory(large)
    child = os.fork()
    mine = int(child == 0)
    code.pin(sorted(os.sched_getaffinity(0))[mine])
    trip = code.round_trip(ctypes.c_void_p(memory.start), mine, 2000)
    took = code.push(
        ctypes.c_void_p(memory.start), mine, rounds, *map(memory.slot, (1 - mine, mine)), NUMBERS, streamed
    )
    if not mine:
        os.waitpid(child, 0)
        os.sched_setaffinity(0, CORES)
        return {"round trip, ns": round(trip), "push, us": round(took, 1), "pages as asked": memory.made}
    os._exit(0)


CORES = os.sched_getaffinity(0)


def histogram(found: list[float], width: float = 5.0) -> str:
    """Return how many starts fall into each span of so many microseconds."""
    counts: dict[int, int] = {}
    for value in found:
        counts[int(value // width)] = counts.get(int(value // width), 0) + 1
    return ", ".join(f"{k * width:.0f}-{(k + 1) * width:.0f}: {counts[k]}" for k in sorted(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two starts")
    options = parser.parse_args()
    head = "#include <cstdint>\n#include <cstring>\ntypedef float R;\n"
    code, _, _ = library(f"{head}{part('stream')}{(HERE / 'copies.cpp').read_text()}")
    code.round_trip.restype = code.push.restype = ctypes.c_double
    code.round_trip.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    code.push.argtypes = [*code.round_trip.argtypes, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    found: dict[str, list[dict[str, float]]] = {
        f"{pages}, {stores}": [] for pages in ("4 KB", "2 MB") for stores in ("plain", "streamed")
    }
    for _ in range(options.starts):
        for name, starts in found.items():
            starts.append(one(code, name.startswith("2 MB"), name.endswith("streamed"), options.rounds))
        time.sleep(options.pause)
    figures: dict[str, Any] = {"load": os.getloadavg()[0], "starts": found}
    for name, starts in found.items():
        pushes, trips = ([start[key] for start in starts] for key in ("push, us", "round trip, ns"))
        same = statistics.correlation(pushes, trips) if len(set(pushes)) > 1 < len(set(trips)) else float("nan")
        figures[name] = {
            "histogram of a push, us": histogram(pushes),
            "correlation with the round trip": round(same, 2),
        }
        print(
            f"pages of {name}: push, us: {histogram(pushes)}; round trip {min(trips):.0f} to {max(trips):.0f} ns",
            end="; ",
        )
        print(f"correlation {same:.2f}")
    write(figures)


if __name__ == "__main__":
    main()
