"""Many random networks, as tests/kernels tries some: gradients against PyTorch's in float64 to 1e-10, and in float32 to
1e-4. From the repository's folder:

    python benchmarks/kernels/sweep.py 40            # in both precisions, side by side and one by one
    python benchmarks/kernels/sweep.py 125 exact     # in float64, side by side, compiled without optimisation
"""

from __future__ import annotations

import sys
import time

from hypothesis import given, seed, settings
from hypothesis.strategies import SearchStrategy

sys.path.insert(0, ".")

from tests.kernels.networks import Case, encoders, images, operations, sequences
from tests.kernels.test_gradients import check

from paceline.kernels import build, processors

FAMILIES = {"images": images, "sequences": sequences, "encoders": encoders, "operations": operations}
WAYS = ((False, 0), (False, 1000), (True, 0), (True, 1000))


def sweep(strategy: SearchStrategy[Case], single: bool, few: int, examples: int) -> int:
    """Try so many networks, batches of up to `few` samples one by one; how many were tried."""
    tried = []
    processors.FEW = few

    @seed(2026)
    @settings(max_examples=examples, deadline=None, database=None)
    @given(strategy)
    def try_one(case: Case) -> None:
        tried.append(1)
        check(case if single else case.double(), 1e-4 if single else 1e-10)

    try_one()
    return len(tried)


def main(examples: int, exact: bool) -> None:
    if exact:
        build.FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in build.FLAGS)
    for name, family in FAMILIES.items():
        for single, few in WAYS[:1] if exact else WAYS:
            begin = time.perf_counter()
            count = sweep(family(), single, few, examples)
            word = ("float32, to 1e-4" if single else "float64, to 1e-10") + (", sample by sample" if few else "")
            print(f"{name}: {count} networks agree in {word}; {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, "exact" in sys.argv)
