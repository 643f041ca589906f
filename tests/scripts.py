"""Scripts in processes that begin with PyTorch imported.

A fresh interpreter takes three seconds of a core to import PyTorch and its optimizers, and a world of two takes that
twice. Here each script is forked from paceline's forkserver, which has imported both, and is then as a fresh
interpreter: it has its own standard streams, environment, folder and arguments, and its file is `__main__`. The workers
that a script starts come from the same forkserver.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path

import torch

from paceline.runtime.engines.workers.process import interrupts_wait, prepare


@dataclass(frozen=True)
class Ended:
    """How a script ended: its exit code, or minus the signal that killed it, and what it wrote."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Running:
    """A script under way; its streams go to files beside it."""

    process: BaseProcess
    out: Path
    err: Path

    def end(self, seconds: float) -> Ended:
        self.process.join(seconds)
        code = self.process.exitcode
        assert code is not None, f"the script did not end within {seconds:.0f} s: {self.err.read_text()}"
        return Ended(code, self.out.read_text(), self.err.read_text())

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()


class _Forkserver:
    """The address of this process's forkserver, which another process can be given."""

    def __init__(self) -> None:
        prepare()
        self.descriptor = int(Path(forkserver._forkserver._forkserver_address).name)  # type: ignore[attr-defined]

    def __getstate__(self) -> dict[str, object]:
        return {"descriptor": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.descriptor = state["descriptor"].detach()  # type: ignore[attr-defined]

    def use(self) -> None:
        """Let this process start its workers there."""
        server = forkserver._forkserver  # type: ignore[attr-defined]
        server._forkserver_address = f"/proc/self/fd/{self.descriptor}"
        server.ensure_running = forkserver.ensure_running = lambda: None  # which is bound to the method as it was


def start(script: Path, *arguments: object, name: str = "script", **environment: str) -> Running:
    """Start `python script arguments...` in the script's folder; `name` tells its streams from those of others."""
    out, err = (script.parent / f"{name}.{stream}" for stream in ("out", "err"))
    context, words = multiprocessing.get_context("forkserver"), [str(each) for each in arguments]
    process = context.Process(target=_be, args=(script, words, dict(os.environ) | environment, out, err, _Forkserver()))
    with interrupts_wait():
        process.start()
    return Running(process, out, err)


def typed(folder: Path, *words: object, **environment: str) -> Running:
    """Start `paceline words...` in this folder."""
    script = folder / "paceline_command.py"
    script.write_text("from paceline.interfaces.cli import main\n\nmain()\n")
    return start(script, *words, **environment)


def finish(running: Sequence[Running], seconds: float = 200.0) -> list[Ended]:
    """Wait for all of them, together as long as given. No script outlives this."""
    until = time.monotonic() + seconds
    try:
        return [each.end(max(0.1, until - time.monotonic())) for each in running]
    finally:
        for each in running:
            each.stop()


def world(script: Path, ranks: int, *arguments: object, port: int) -> list[Ended]:
    """The script once for every rank, as torchrun starts them."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return finish(
        [start(script, *arguments, name=f"{script.stem}-{rank}", RANK=str(rank), **shared) for rank in range(ranks)]
    )


def _be(
    script: Path, arguments: list[str], environment: Mapping[str, str], out: Path, err: Path, server: _Forkserver
) -> None:
    """Become the script. What the forkserver would do at its exit is not the script's."""
    server.use()
    for path, stream in ((out, 1), (err, 2)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    atexit._clear()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(script.parent)
    if threads := environment.get("OMP_NUM_THREADS"):  # PyTorch has read the variable where it was imported
        torch.set_num_threads(int(threads))
    sys.argv[:] = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
