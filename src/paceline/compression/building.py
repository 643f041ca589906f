"""A C file compiled on this machine: its results, its size and the time of a call."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from paceline.compression.emission.c_file import CFile
from paceline.compression.emission.writer import text
from paceline.errors import MachineError, RunFailed

#: A file has functions that its layers may not call; clang, unlike gcc, warns of those that are inline.
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function")
LIBRARY = ("-DNET_LIBRARY", "-fPIC", "-fno-asynchronous-unwind-tables")
PATIENCE = 120.0  # seconds for one file
CALLS, WARM = 4000, 500  # of a measurement of the time


@dataclass(frozen=True)
class Latency:
    """The time of a call with one sample, in microseconds."""

    p50: float
    p99: float


@cache
def compiler() -> tuple[str, ...]:
    """$CC, gcc, cc or clang."""
    for name in filter(None, (os.environ.get("CC", ""), "gcc", "cc", "clang")):
        command = tuple(name.split())
        if shutil.which(command[0]):
            return command
    raise MachineError("there is no C compiler on this machine: install gcc, or name one in $CC")


def compiled(file: CFile, object_file: Path, options: Sequence[str] = LIBRARY) -> Path:
    """Compile a file to an object, with all warnings as errors."""
    source = object_file.with_suffix(".c")
    source.write_text(file.text, encoding="utf-8")
    _compile([*STRICT, *file.flags, *options, "-c", str(source), "-o", str(object_file)])
    return object_file


def _compile(arguments: Sequence[str]) -> None:
    command = [*compiler(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise RunFailed(f"{command[0]} refused the C file, which is a fault of Paceline's:\n{done.stderr[:2000]}")


def libraries(file: CFile) -> list[str]:
    """What is linked: nothing in whole numbers."""
    return ["-lm"] if "#include <math.h>" in file.text else []


def text_and_data(file: Path, tool: str) -> int:
    """The bytes of an object's text and data, as binutils' `size` counts them."""
    done = subprocess.run([tool, str(file)], capture_output=True, text=True, check=True)
    code, data = done.stdout.splitlines()[1].split()[:2]
    return int(code) + int(data)


class Built:
    """A C file as a library in this process; a context, which removes it."""

    def __init__(self, file: CFile, inputs: int, outputs: int) -> None:
        self.file, self.inputs, self.outputs = file, inputs, outputs
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-")
        place = Path(self._folder.name)
        object_file, harness = compiled(file, place / "net.o"), place / "harness.c"
        #: The bytes of code and constants, without `main` and its samples.
        self.size = text_and_data(object_file, "size")
        harness.write_text(text("harness.c"))
        timed = ("-O2", "-shared", "-fPIC", "-D_POSIX_C_SOURCE=200809L", *(["-DNET_TOKENS"] if file.tokens else []))
        _compile([*STRICT, *timed, str(harness), str(object_file), "-o", str(place / "net.so"), *libraries(file)])
        #: The library; its `net_run` is the file's own.
        self.library = place / "net.so"
        self._library = ctypes.CDLL(str(self.library))

    def __enter__(self) -> Built:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def run(self, x: Tensor) -> Tensor:
        """The results of each sample."""
        inputs = self._given(x)
        outputs = torch.empty(len(x), self.outputs)
        counts = (ctypes.c_int64(number) for number in (len(x), self.inputs, self.outputs))
        self._library.net_run_all(_pointer(inputs), *counts, _pointer(outputs))
        return outputs

    def _given(self, x: Tensor) -> Tensor:
        kind = torch.int32 if self.file.tokens else torch.float32
        return x.to(kind).reshape(len(x), self.inputs).contiguous()

    def scores(self, inputs: Tensor) -> Tensor:
        """The whole numbers of each sample, whose bytes are given with the channels of a pixel side by side."""
        inputs = inputs.to(torch.uint8).contiguous()
        outputs = torch.empty(len(inputs), self.outputs, dtype=torch.int32)
        for sample, scores in zip(inputs, outputs, strict=True):
            self._library.net_run_bytes(_pointer(sample), _pointer(scores))
        return outputs

    def latency(self, x: Tensor, calls: int = CALLS) -> Latency:
        """The time of a call with one sample after another."""
        ordered = sorted(self.times(x, calls))
        return Latency(ordered[calls // 2], ordered[calls * 99 // 100])

    def times(self, x: Tensor, calls: int = CALLS) -> list[float]:
        """The microseconds of each call, after some that do not count."""
        inputs = self._given(x)
        times = torch.empty(WARM + calls, dtype=torch.int64)
        output = torch.empty(self.outputs)
        sizes = ctypes.c_int64(len(x)), ctypes.c_int64(self.inputs)
        self._library.net_time(_pointer(inputs), *sizes, _pointer(output), ctypes.c_int64(len(times)), _pointer(times))
        microseconds: list[float] = (times[WARM:].double() / 1000).tolist()
        return microseconds


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
