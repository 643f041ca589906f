"""Wrong coded gradients against a shard server: `python benchmarks/compression/hostile.py --frames 2000`

Of each codec so many frames that are truncated, prolonged, random, or have bits or numbers at the edge in them, and an
honest worker's gradient after each. The server runs in this process, without sockets: `benchmarks/wire` attacks those.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from record import write  # noqa: E402
from tests.engines.cluster.hostile_gradients import attacked  # noqa: E402

from paceline.core.codecs.catalogue import CODECS  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for codec in CODECS:
        refused, applied = attacked(codec, given.frames, given.seed)
        found[codec] = {"refused": refused, "applied": applied}
        print(f"| `{codec}` | {refused} | {applied} |", flush=True)
    write(Path(__file__).parent, {"frames": given.frames, "codecs": found}, "hostile.json")


if __name__ == "__main__":
    main()
