"""A Cortex-M4 as a target: cross-compiled, run in QEMU, its instructions and its stack counted.

QEMU's clock advances one nanosecond with each instruction (`-icount shift=0`), so the system timer counts them.
Neither wait states nor the pipeline are modelled: the figure is of instructions, not of cycles.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from paceline.compression.building import LIBRARY, PATIENCE, STRICT, text_and_data
from paceline.compression.emission.c_file import CFile, integer_file
from paceline.compression.emission.kernels import CORTEX, CORTEX_SMALL
from paceline.compression.emission.writer import text
from paceline.compression.network import CannotEmit, Network
from paceline.compression.programs import LayerProgram
from paceline.compression.search import Candidate, Made, Measurement
from paceline.errors import MachineError, RunFailed
from paceline.kernels.machine import cores

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
