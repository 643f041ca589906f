"""This machine as a target: the time of a call is measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from paceline.compression.building import Built, Latency
from paceline.compression.emission.c_file import TOLERANCE, CFile, float_file, integer_file, program_file
from paceline.compression.emission.kernels import PLAIN, SMALL, WIDE
from paceline.compression.network import Network
from paceline.compression.programs import ENDS, LayerProgram
from paceline.compression.search import FLOAT32, Candidate, Made, Measurement
from paceline.errors import RunFailed
from paceline.kernels.build import abilities
from paceline.kernels.machine import cores

ROUNDS = 3
CALLS = 1000
SAMPLES = 64
COMPARED = 500
VECTORS = ("avx512_vnni", "avx512vbmi", "avx512bw", "avx512vl")


@dataclass(frozen=True)
class Here:
    """This machine's compiler and processor."""

    name: str = "here"

    def takes(self, network: Network | LayerProgram) -> None:
        """Refuse nothing: what has no form in whole numbers is computed in float32."""

    def files(self, candidate: Candidate, samples: Tensor) -> Iterator[tuple[str, CFile]]:
        """Yield (kernel, C file) for each way of computing a candidate."""
        network, made = candidate.network, candidate.whole
        if isinstance(network, LayerProgram):
            yield "loops", program_file(network, candidate.trained, samples)
            return
        if made is None:
            yield FLOAT32, float_file(network, samples)
            return
        vectors = WIDE if set(VECTORS) <= set(abilities().split()) else PLAIN
        for kernel in (SMALL, vectors):
            yield kernel.name, integer_file(made, kernel, samples)

    def measure(self, made: Sequence[Made], samples: Tensor) -> list[Measurement]:
        """Compile all files side by side, compare their results, then time them in turns."""
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(cores()) as pool:
            built = [stack.enter_context(each) for each in pool.map(_built, made)]
            for one, each in zip(made, built, strict=True):
                _compare(one, each, samples[:COMPARED])
            timed = _in_turns([partial(each.latency, samples[:SAMPLES], CALLS) for each in built])
        return [Measurement(each.size, latency) for each, latency in zip(built, timed, strict=True)]


@torch.no_grad()
def _compare(made: Made, built: Built, samples: Tensor) -> None:
    """Raise if a file does not compute what its module computes: every bit in whole numbers."""
    expected = made.module(samples).reshape(len(samples), -1)
    found = built.run(samples)
    if made.network.end and not made.file.whole_numbers:  # which the C file leaves out
        found = ENDS[made.network.end](found)
    tolerance = 0.0 if made.file.whole_numbers else TOLERANCE * max(1.0, float(expected.abs().max()))
    worst = float((found - expected).abs().max())
    if not worst <= tolerance:
        raise RunFailed(
            f"the C file of kernel {made.kernel} is {worst:g} off its reference, which is a fault of Paceline's"
        )


def _built(made: Made) -> Built:
    return Built(made.file, made.network.numbers_in, made.network.numbers_out)


def _in_turns(measures: Sequence[Callable[[], Latency]]) -> list[Latency]:
    """Measure everything in turns; the medians of each."""
    taken = [[each() for each in measures] for _ in range(ROUNDS)]
    middle = ROUNDS // 2
    return [
        Latency(sorted(row[k].p50 for row in taken)[middle], sorted(row[k].p99 for row in taken)[middle])
        for k in range(len(measures))
    ]
