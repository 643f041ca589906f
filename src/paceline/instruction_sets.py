"""The newest instruction set that may compute, so that processors of several kinds compute the same bits.

PyTorch, oneDNN and MKL choose their functions by the processor, once, when they first compute; functions of other
instructions round otherwise. Each reads from the environment which are the newest that it may choose.
PACELINE_MAX_CPU_ISA=avx2 stands for all of them, and for generated code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

VARIABLE = "PACELINE_MAX_CPU_ISA"


class InstructionSet(NamedTuple):
    """An instruction set, as libraries and compilers name it."""

    #: What the libraries read. MKL promises the same bits on processors of all makers for COMPATIBLE alone.
    variables: Mapping[str, str]
    #: By the names of /proc/cpuinfo, which are those of the compiler.
    flags: tuple[str, ...]


ALL = {
    "avx2": InstructionSet(
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}, ("avx2", "fma")
    ),
    "avx512": InstructionSet(
        {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_CBWR": "COMPATIBLE"},
        ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
    ),
}


def limit(name: str) -> None:
    """Limit this process, and those that it starts, to an instruction set, unless PyTorch is imported already."""
    os.environ[VARIABLE] = name
    if name in ALL and "torch" not in sys.modules:
        os.environ.update(ALL[name].variables)


def max_cpu_isa() -> str:
    """Return the instruction set that this process is limited to; empty for none, UsageError where it cannot be."""
    if not (name := os.environ.get(VARIABLE, "")):
        return ""
    from paceline.errors import UsageError, suggest

    if name not in ALL:
        raise UsageError(f"{VARIABLE}={name!r} is no instruction set; {suggest(name, ALL)}")
    if missing := [flag for flag in ALL[name].flags if flag not in processor_flags()]:
        raise UsageError(f"{VARIABLE}={name}: this processor has no {', '.join(missing)}")
    if any(os.environ.get(variable) != value for variable, value in ALL[name].variables.items()):
        raise UsageError(
            f"{VARIABLE}={name} came after PyTorch was imported, whose libraries choose their functions once; set it "
            "before Python starts, and import paceline before torch"
        )
    return name


def processor_flags() -> list[str]:
    """Return the instruction sets of this processor, as the kernel names them; none where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line.partition(":")[2].split()
    return []
