"""The search over width, precision and kernel, and the machines that it is for: this one, and a Cortex-M4.

    widths       the model is narrowed step by step, each step retrained by the run's own job, from the one before
    precisions   float32, int8, int4, and the two with shared exponents, each evaluated on validation data
    kernels      how it is computed, as text in C; each is compiled, compared with its reference and timed

Nothing is timed while anything is compiled, and calls of all candidates are timed in turns.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.compression.building import LIBRARY, PATIENCE, STRICT, Built, Latency, text_and_data
from paceline.compression.emission.c_file import TOLERANCE, CFile, float_file, integer_file, program_file
from paceline.compression.emission.kernels import CORTEX, CORTEX_SMALL, PLAIN, SMALL, WIDE
from paceline.compression.emission.writer import text
from paceline.compression.integers import IntegerModel, IntegerNetwork, Precision, integers, ranges
from paceline.compression.network import ENDS, CannotEmit, LayerProgram, Network
from paceline.compression.pruning import narrowed, prunable
from paceline.compression.reading import graph_of, network_of
from paceline.compression.result import Point
from paceline.compression.samples import Division, Loss, Score, loss_between
from paceline.errors import MachineError, RunFailed
from paceline.kernels.build import abilities
from paceline.kernels.machine import cores

WIDTHS = (1.0, 0.75, 0.55, 0.42, 0.32, 0.24, 0.18)
PRECISIONS = (Precision(8), Precision(4), Precision(8, True), Precision(4, True))
FLOAT32 = "float32"
NOTHING_LOST = Loss(0.0)
BATCH = 1000

Retrain = Callable[[nn.Module], nn.Module]
Say = Callable[[str], None]


class Target(Protocol):
    """The machine that a network is made for."""

    @property
    def name(self) -> str: ...

    def takes(self, network: Network | LayerProgram) -> None:
        """Raise if no form of a network can be made."""
        ...

    def files(self, candidate: Candidate, samples: Tensor) -> Iterator[tuple[str, CFile]]:
        """Yield (kernel, C file) for each way of computing a candidate."""
        ...

    def measure(self, forms: Sequence[Made], samples: Tensor) -> list[Measurement]:
        """Compare each file's results with those of its module, and return what it needs."""
        ...


@dataclass(frozen=True)
class Made:
    """A C file, and the module that gives the same results."""

    kernel: str
    file: CFile
    network: Network | LayerProgram
    module: nn.Module


@dataclass(frozen=True)
class Measurement:
    """What a file needs: bytes, and the time of a call here or the instructions there."""

    size: int
    latency: Latency | None = None
    instructions: int | None = None
    #: Bytes of the stack; 0 where they were not measured.
    stack: int = 0


@dataclass(frozen=True)
class Candidate:
    """A network in one precision, before it is measured."""

    width: float
    network: Network | LayerProgram
    whole: IntegerNetwork | None
    #: The model in float32.
    trained: nn.Module
    #: On validation data.
    accuracy: float = 0.0
    lost: Loss = NOTHING_LOST

    @property
    def module(self) -> nn.Module:
        """What computes in PyTorch what the C file computes."""
        return self.trained if self.whole is None else IntegerModel(self.whole)

    @property
    def precision(self) -> str:
        return FLOAT32 if self.whole is None else str(self.whole.precision)


@dataclass(frozen=True)
class SearchResult:
    """All points, each with the candidate that it was made of."""

    points: tuple[Point, ...]
    candidates: tuple[Candidate, ...]
    trained: float


def search(
    module: nn.Module,
    division: Division,
    score: Score,
    retrain: Retrain,
    target: Target,
    say: Say,
    widths: Sequence[float] = WIDTHS,
) -> SearchResult:
    """Make and measure all candidates. `trained` is the accuracy of the model as it was."""
    trained = score.each(module, division.validation)
    share = float(trained.mean())
    say(f"the trained model {score.says.format(f'{share:.2%}', f'{len(trained):,} validation samples')}")
    candidates: list[Candidate] = []
    for width, narrow in _widths(module, division, retrain, say, widths):
        for each in _precisions(width, narrow, division):
            scores = score.each(each.module, division.validation)
            candidates.append(replace(each, accuracy=float(scores.mean()), lost=loss_between(trained, scores)))
        best = max(each.accuracy for each in candidates if each.width == width)
        say(f"width {width:g}: {best:.2%}")
    if isinstance(network := candidates[0].network, LayerProgram):
        say(f"in float32 only: {network.why}")
    samples = division.validation.x
    forms = [
        (each, Made(kernel, file, each.network, each.module))
        for each in candidates
        for kernel, file in target.files(each, samples)
    ]
    say(f"compiling and measuring {len(forms)} forms")
    measured = target.measure([one for _, one in forms], samples)
    points = tuple(
        Point(
            each.width,
            each.precision,
            one.kernel,
            each.accuracy,
            each.lost,
            needs.size,
            one.file.memory + needs.stack,
            one.file,
            needs.latency,
            needs.instructions,
        )
        for (each, one), needs in zip(forms, measured, strict=True)
    )
    return SearchResult(points, tuple(each for each, _ in forms), share)


def _widths(
    module: nn.Module, division: Division, retrain: Retrain, say: Say, widths: Sequence[float]
) -> Iterator[tuple[float, nn.Module]]:
    """Yield (part of the channels, a module of that width), each narrowed from the one before and retrained."""
    full_counts = {each.module: each.channels for each in prunable(graph_of(module, division.ranges.x))}
    before = dict(full_counts)
    for width in sorted(widths, reverse=True):
        channel_counts = {name: max(round(width * channels), 1) for name, channels in full_counts.items()}
        if channel_counts == before and width < 1:
            continue  # nothing can be narrowed, or not by so little
        if channel_counts != before:
            graph = graph_of(module, division.ranges.x)
            say(f"retraining at width {width:g}: {', '.join(map(str, channel_counts.values()))} channels")
            module = retrain(narrowed(module, graph, channel_counts, division.ranges.x[:BATCH])).eval()
        before = channel_counts
        yield width, module


def _precisions(width: float, module: nn.Module, division: Division) -> Iterator[Candidate]:
    network = network_of(module, division.ranges.x)
    yield Candidate(width, network, None, module)
    if isinstance(network, LayerProgram):
        return
    value_ranges = ranges(network, division.ranges.x)
    for precision in PRECISIONS:
        yield Candidate(width, network, integers(network, value_ranges, precision), module)


# The machines that a network is compressed for: this one, and a Cortex-M4.

# This machine as a target: the time of a call is measured.

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


# A Cortex-M4 as a target: cross-compiled, run in QEMU, its instructions and its stack counted.
#
# QEMU's clock advances one nanosecond with each instruction (`-icount shift=0`), so the system timer counts them.
# Neither wait states nor the pipeline are modelled: the figure is of instructions, not of cycles.

GCC, SIZE, QEMU = "arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm"
BOARD = ("-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none", "-icount", "shift=0")
SEMIHOSTING = ("-semihosting-config", "enable=on,target=native")
PACKAGES = "gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"


@dataclass(frozen=True)
class CortexM4:
    """A Cortex-M4, as QEMU plays it."""

    name: str = "cortex-m4"

    def __post_init__(self) -> None:
        missing = [tool for tool in (GCC, QEMU) if shutil.which(tool) is None]
        if missing:
            raise MachineError(
                f"--for cortex-m4 needs {' and '.join(missing)}, which this machine lacks: apt-get install {PACKAGES}"
            )

    def takes(self, network: Network | LayerProgram) -> None:
        """Refuse what has no form in whole numbers."""
        if isinstance(network, LayerProgram):
            raise CannotEmit(f"a Cortex-M4 gets whole numbers, and {network.why}; `--for here` takes it in float32")

    def files(self, candidate: Candidate, samples: Tensor) -> Iterator[tuple[str, CFile]]:
        """Yield (kernel, C file) for each way of computing a candidate in whole numbers."""
        if candidate.whole is not None:
            for kernel in (CORTEX_SMALL, CORTEX):
                yield kernel.name, integer_file(candidate.whole, kernel, samples)

    def measure(self, forms: Sequence[Made], samples: Tensor) -> list[Measurement]:
        """Compile every file and run it in QEMU, where it compares its results with those of its module."""
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(lambda one: _measured(one.file), forms))


def _measured(file: CFile) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        place = Path(folder)
        for name, content in (
            ("net.c", file.text),
            *((name, text(name)) for name in ("harness_cortex.c", "cortex.ld")),
        ):
            (place / name).write_text(content)
        options = [option for option in LIBRARY if option != "-fPIC"]
        _run([GCC, *STRICT, *file.flags, *options, "-c", "net.c", "-o", "net.o"], place)
        program = ["-DNET_NO_MAIN", "harness_cortex.c", "-nostartfiles", "-T", "cortex.ld", "-o", "net.elf"]
        _run([GCC, *STRICT, *file.flags, *program], place)
        output = _run([QEMU, *BOARD, *SEMIHOSTING, "-kernel", "net.elf"], place)
        counters = {name: int(number) for name, number in (line.split() for line in output.splitlines())}
        if counters["wrong"]:
            raise RunFailed(f"{counters['wrong']} results on the Cortex-M4 are wrong, which is a fault of Paceline's")
        return Measurement(text_and_data(place / "net.o", SIZE), None, counters["instructions"], counters["stack"])


def _run(command: list[str], place: Path) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise RunFailed(f"{command[0]} failed, which is a fault of Paceline's:\n{(done.stdout + done.stderr)[:2000]}")
    return done.stdout + done.stderr
