"""How fast codecs are: `python benchmarks/compression/speed.py --rounds 7`

Bytes of a dense gradient per second that one core writes as a message, and reads from one. Codecs alternate; a figure
is the median of the rounds. `encode` is the codec alone; `with feedback` is what a worker does: it adds what is owed,
looks for numbers that are not finite, and encodes. `decode` is what a receiver does with one message.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

from paceline.algorithms.codecs.catalogue import parse
from paceline.kernels import codecs
from paceline.training.gradients.encoder import GradientEncoder, Loops, PushedMessage
from paceline.training.gradients.message import matrix
from paceline.training.parameters.layout import lay_out

CODECS = (
    "half", "bfloat16", "int8", "onebit", "threshold:0.0025", "topk:0.01", "topk:0.1", "qsgd:4", "qsgd:8", "ternary",
    "randomk:0.05", "powersgd:2",
)  # fmt: skip
WANTED = {"half": 4.0, "int8": 4.0, "onebit": 4.0, "threshold:0.0025": 1.5, "topk:0.01": 1.5, "topk:0.1": 1.5}


class Case:
    """One codec on one matrix."""

    def __init__(self, text: str, side: int) -> None:
        codec = parse(text)
        assert codec is not None
        layout = lay_out(nn.Linear(side, side, bias=False), 1, [])
        self.text, self.codec, self.bytes = text, codec, 4 * side * side
        self.encoder = GradientEncoder(codec, layout, [[0]], 0)
        self.pushed = PushedMessage(self.encoder.shapes[0], 0)
        self.loops = Loops(codec, torch.float32)
        self.gradient = 0.001 * torch.randn(side, side)
        self.total, self.update = self.gradient.clone(), 0
        remembered = codec.remembers((side, side))
        self.memory = torch.zeros(remembered) if remembered else None

    def fields(self) -> list[Tensor]:
        message = self.pushed.message
        return [*message.fields[0], *([message.words] if self.codec.variable else [])]

    def once(self) -> tuple[float, float, float]:
        """Return the seconds to encode, to encode with feedback, and to decode."""
        self.total.copy_(self.gradient)
        start = perf_counter()
        self.loops.encode(matrix(self.total), self.fields(), self.update, self.memory)
        encoded = perf_counter()
        self.encoder.write(0, [self.gradient], [], (0.0, 0.0), self.pushed.message, self.update, 0)
        self.encoder.settle()
        written = perf_counter()
        self.pushed.gradients(self.update)
        read = perf_counter()
        self.update += 1
        return encoded - start, written - encoded, read - written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sides", default="256,1024,3328", help="of the square matrix: 3328 has 11 million numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result: dict[str, object] = {"native": codecs() is not None, "rounds": given.rounds, "load": os.getloadavg()[0]}
    for side in map(int, given.sides.split(",")):
        cases = [Case(text, side) for text in CODECS]
        for case in cases:
            case.once()
        rounds = [[case.once() for case in cases] for _ in range(given.rounds)]
        print(f"\n{side * side:,} numbers\n\n| codec | encode, GB/s | with feedback | decode | wanted |")
        print("|---|--:|--:|--:|--:|")
        for number, case in enumerate(cases):
            speeds = [[case.bytes / 1e9 / one[number][kind] for one in rounds] for kind in range(3)]
            medians = [statistics.median(each) for each in speeds]
            ranges = [(min(each), max(each)) for each in speeds]
            result[f"{side * side}, {case.text}"] = {
                "encode": medians[0],
                "feedback": medians[1],
                "decode": medians[2],
                "ranges": ranges,
            }
            shown = " | ".join(
                f"{m:.1f} ({low:.1f}-{high:.1f})" for m, (low, high) in zip(medians, ranges, strict=True)
            )
            print(f"| `{case.text}` | {shown} | {WANTED.get(case.text, '')} |", flush=True)
    write(result, "speed.json")


if __name__ == "__main__":
    main()
