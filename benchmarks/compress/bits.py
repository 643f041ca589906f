"""Random networks in C against the integer model: every bit of 10,000 samples, and every file under sanitizers.

python benchmarks/compress/bits.py                          60 networks, 10,000 samples
python benchmarks/compress/bits.py --first 20 --networks 40     the others; what the result file holds already is kept

Every file of one precision, another one for each network, is also run under sanitizers.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import read, write
from run import sanitized
from tests.compression.networks import drawn

from paceline.compression.building import Built
from paceline.compression.emission.c_file import integer_file
from paceline.compression.emission.kernels import CORTEX, PLAIN, SMALL, WIDE
from paceline.compression.integers import IntegerModel, Precision, integers, ranges
from paceline.compression.reading import read as read_network

PRECISIONS = (Precision(8), Precision(4), Precision(8, True), Precision(4, True))
#: What is written for a Cortex-M4 is compiled for this machine here: its loops without SMLAD.
KERNELS = (SMALL, PLAIN, WIDE, replace(CORTEX, flags=("-O2",)))


def network(seed: int, count: int) -> dict[str, object]:
    """One network in all precisions and kernels."""
    case = drawn(seed)
    chance = torch.Generator().manual_seed(seed)
    draw = torch.rand if float(case.x.min()) >= 0 else torch.randn
    x = draw(count, *case.x.shape[1:], generator=chance)
    made = read_network(case.model, tuple(case.x.shape[1:]))
    found = ranges(made, case.x)
    compared = different = unclean = 0
    for precision in PRECISIONS:
        whole = integers(made, found, precision)
        expected = IntegerModel(whole)(x).reshape(count, -1)
        for kernel in KERNELS:
            file = integer_file(whole, kernel, x)
            with Built(file, made.numbers_in, made.numbers_out) as built:
                different += int((built.run(x) != expected).any(1).sum())
            compared += count
            if precision is PRECISIONS[seed % len(PRECISIONS)]:
                unclean += not sanitized(file)
    return {
        "seed": seed, "samples": count, "compared": compared, "different": different, "not_clean": unclean
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--networks", type=int, default=60)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(given.first, given.first + given.networks)
    rows = [row for row in read("bits.json").get("rows", []) if row["seed"] not in seeds]
    with ThreadPoolExecutor(given.threads) as pool:
        for row in pool.map(lambda seed: network(seed, given.samples), seeds):
            print(row, flush=True)
            rows.append(row)
            whole = {name: sum(int(str(row[name])) for row in rows) for name in ("compared", "different", "not_clean")}
            about = {"precisions": list(map(str, PRECISIONS)), "kernels": [kernel.name for kernel in KERNELS]}
            figures = {"networks": len(rows), **about, **whole, "rows": rows}
            write(figures, "bits.json")


if __name__ == "__main__":
    main()
