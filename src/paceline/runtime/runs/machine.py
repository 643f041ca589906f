"""The machine that a run is made on, for its record."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from paceline.runtime.runs.record import MachineRecord
from paceline.version import __version__


def this_machine() -> MachineRecord:
    """Describe this machine and the versions in use."""
    import numpy
    import torch

    return MachineRecord(
        system=platform.platform(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        paceline=__version__,
        python=sys.version.split()[0],
        torch=torch.__version__,
        numpy=numpy.__version__,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
