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
        network, integer_network = candidate.network, candidate.whole
        if isinstance(network, LayerProgram):
            yield "loops", program_file(network, candidate.trained, samples)
            return
        if integer_network is None:
            yield FLOAT32, float_file(network, samples)
            return
        vectors = WIDE if set(VECTORS) <= set(abilities().split()) else PLAIN
        for kernel in (SMALL, vectors):
            yield kernel.name, integer_file(integer_network, kernel, samples)

    def measure(self, forms: Sequence[Made], samples: Tensor) -> list[Measurement]:
        """Compile all files side by side, compare their results, then time them in turns."""
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(cores()) as pool:
            built = [stack.enter_context(each) for each in pool.map(_built, forms)]
            for one, each in zip(forms, built, strict=True):
                _compare(one, each, samples[:COMPARED])
            timed = _in_turns([partial(each.latency, samples[:SAMPLES], CALLS) for each in built])
        return [Measurement(each.size, latency) for each, latency in zip(built, timed, strict=True)]


@torch.no_grad()
def _compare(form: Made, built: Built, samples: Tensor) -> None:
    """Raise if a file does not compute what its module computes: every bit in whole numbers."""
    expected = form.module(samples).reshape(len(samples), -1)
    outputs = built.run(samples)
    if form.network.end and not form.file.whole_numbers:  # which the C file leaves out
        outputs = ENDS[form.network.end](outputs)
    tolerance = 0.0 if form.file.whole_numbers else TOLERANCE * max(1.0, float(expected.abs().max()))
    worst = float((outputs - expected).abs().max())
    if not worst <= tolerance:
        raise RunFailed(
            f"the C file of kernel {form.kernel} is {worst:g} off its reference, which is a fault of Paceline's"
        )


def _built(form: Made) -> Built:
    return Built(form.file, form.network.numbers_in, form.network.numbers_out)


def _in_turns(measures: Sequence[Callable[[], Latency]]) -> list[Latency]:
    """Measure everything in turns; the medians of each."""
    latencies = [[each() for each in measures] for _ in range(ROUNDS)]
    middle = ROUNDS // 2
    return [
        Latency(sorted(row[k].p50 for row in latencies)[middle], sorted(row[k].p99 for row in latencies)[middle])
        for k in range(len(measures))
    ]
