"""The machines that a network is compressed for: this one, and a Cortex-M4."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from paceline.compression.building import LIBRARY, PATIENCE, STRICT, Built, Latency, text_and_data
from paceline.compression.emission.c_file import TOLERANCE, CFile, float_file, integer_file, program_file
from paceline.compression.emission.kernels import CORTEX, CORTEX_SMALL, PLAIN, SMALL, WIDE
from paceline.compression.emission.writer import text
from paceline.compression.network import ENDS, CannotEmit, LayerProgram, Network
from paceline.compression.search import FLOAT32, Candidate, Made, Measurement
from paceline.errors import MachineError, RunFailed
from paceline.kernels.build import abilities
from paceline.kernels.machine import cores

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
