"""Whether anything is lost: `python benchmarks/compression/identity.py --updates 1000`

One worker's encoder writes the gradients of mnist-dnn's 55,000 parameters. Every seventh message is written twice, as
after a death that has made its exchange fail, and half-way the worker is replaced by one that has only its checkpoint.
What was sent plus what is owed is compared with what was computed, parameter by parameter.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from harness import write  # noqa: E402
from tests.training.gradients.error_feedback import drift, owing  # noqa: E402

from paceline.training.jobs.built_ins import mnist_dnn  # noqa: E402

CODECS = (
    "half", "bfloat16", "int8", "onebit", "threshold:0.001", "threshold:0.01", "topk:0.01", "topk:0.001",
    "randomk:0.05", "powersgd:1", "powersgd:2",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for codec in owing(CODECS):
        apart, share = drift(codec, mnist_dnn(), given.updates)
        found[codec] = {"largest_difference": apart, "bytes_of_dense": share}
        print(f"| `{codec}` | {apart:.1e} | {share:.1%} |", flush=True)
    write({"updates": given.updates, "codecs": found}, "identity.json")


if __name__ == "__main__":
    main()
