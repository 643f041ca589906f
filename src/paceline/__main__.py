"""The process of a command, from its start to its end."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import MutableMapping

from paceline.runtime.engines.signals import termination

# About a millisecond. On two quiet cores steps of two threads take as long as without a limit; with 5,000 spins they
# take 1.2 to 1.5 times as long, since waking a thread costs more than the wait.
SPINS = 50_000


def run() -> None:
    """Run the command, and end the process without taking apart what it has loaded.

    With PyTorch that takes half a second, as long as a small job trains. SIGTERM ends it with exit code 143, and Ctrl-C
    with 130, also while it is imported.
    """
    termination.exit_at_once()
    limit_spinning(os.environ)
    from paceline.algorithms.cluster.launchers import from_mpiexec
    from paceline.interfaces.cli import main

    code: int | str | None = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    by_mpi = from_mpiexec(os.environ) is not None  # its library has an end of its own
    # Python would end by SIGINT if it has seen a KeyboardInterrupt in code that C runs, as where PyTorch is imported.
    small = "torch" not in sys.modules and not termination.requested
    if small or isinstance(code, str) or by_mpi:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does at its end
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # Python says so at its end
    os._exit(code or 0)


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Let PyTorch's threads sleep after they have waited for one another for a moment, unless the user says otherwise.

    GNU's OpenMP reads it when it is loaded, and would spin for many milliseconds, on a core that the awaited thread may
    need: beside other programs a step of two threads then takes many times as long as a step of one.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPINS))


if __name__ == "__main__":
    run()
