"""The nodes of a run, started as a launcher starts them.

A node imports nothing: it is forked from multiprocessing's forkserver, which has PyTorch loaded, and so is its own
forkserver. Otherwise it is what a launcher starts: its processes end with it, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn

from paceline.interfaces.api.train import train
from paceline.interfaces.testing.survival.hosts import Host
from paceline.runtime.engines.cluster import NodeOptions
from paceline.runtime.engines.workers.process import fork_anew, interrupts_wait, nameless_main, prepare
from paceline.training.jobs.job import Job

CLASSES, INPUTS, HIDDEN, TEST = 4, 16, 24, 4000
HELD_AFTER = 120  # passes of a process


class SlowNet(nn.Module):
    """A small network whose training passes take some milliseconds more, so that a run lasts long enough for faults.

    After some passes of its process it waits as long as a file exists, so that no run ends before its last fault.
    """

    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Dropout(0.05), nn.Linear(HIDDEN, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(float(os.environ.get("SURVIVAL_STEP", "0")))
            SlowNet.passes += 1
            hold = os.environ.get("SURVIVAL_HOLD")
            while hold and SlowNet.passes > HELD_AFTER and os.path.exists(hold):
                time.sleep(0.01)
        result: Tensor = self.body(x)
        return result


def survival_job(batches: int, batch_size: int = 16, seed: int = 0) -> Job:
    """Return a job of so many batches that is learned well, with enough test data to tell half a point."""
    generator = torch.Generator().manual_seed(7)
    x, teacher = torch.randn(batches * batch_size + TEST, INPUTS, generator=generator), nn.Linear(INPUTS, CLASSES)
    with torch.no_grad():
        teacher.weight.copy_(torch.randn(CLASSES, INPUTS, generator=generator))
        teacher.bias.zero_()
        y = teacher(x).argmax(1)
    return Job(
        model=SlowNet,
        data=(x[TEST:], y[TEST:]),
        test=(x[:TEST], y[:TEST]),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        batch_size=batch_size,
        epochs=1,
        seed=seed,
    )


@dataclass(frozen=True)
class NodeProgram:
    """What every node of a run does."""

    plan: str
    nodes: int
    batches: int
    #: Seconds that each training pass takes at least.
    step: float
    seed: int = 0
    #: Seconds that a worker or a node waits for another.
    deadline: float = 120.0
    #: Updates between two checkpoints; None for no checkpoints.
    checkpoint_every: int | None = None
    #: The folder of a run that is resumed.
    resume: Path | None = None


@dataclass
class RunNode:
    """One node of a run."""

    rank: int
    process: BaseProcess
    #: What it has printed.
    out: Path

    @property
    def pid(self) -> int:
        return self.process.pid or 0


@dataclass
class Nodes:
    """The nodes of one run, rank after rank."""

    folder: Path
    program: NodeProgram
    running: list[RunNode]

    def start(self, rank: int, host: Host | None, head: str) -> None:
        """Start the node of a rank."""
        out = self.folder / f"node-{rank}.txt"
        environment = {
            "PACELINE_RANK": str(rank),
            "PACELINE_NODES": str(self.program.nodes),
            "PACELINE_HEAD": head,
            "PACELINE_RUN": str(self.folder),
            "PACELINE_TOKEN": "5ca1ab1e" * 4,
            "OMP_NUM_THREADS": "1",
            "SURVIVAL_STEP": str(self.program.step),
            "SURVIVAL_HOLD": str(self.folder / "hold"),
        }
        training = partial(_train, self.folder, self.program, host is not None)
        self.running.append(RunNode(rank, fork_process(self.folder, training, environment, out, host), out))

    @property
    def run(self) -> Path | None:
        """The folder of the run, once there is one."""
        return next((self.folder / "runs").glob("*"), None)

    def processes(self) -> list[psutil.Process]:
        """Return every process of the run, also of nodes that have ended."""
        mark, alive = str(self.folder), []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and belongs(process, mark):
                    alive.append(process)
            except (psutil.Error, OSError):
                continue
        return alive

    def hold(self) -> None:
        """Let no worker make its last batches, until `release`."""
        (self.folder / "hold").touch()

    def release(self) -> None:
        """Let the workers go on to the end."""
        (self.folder / "hold").unlink(missing_ok=True)

    def wait(self, seconds: float) -> list[int | None]:
        """Wait until every node has ended, together so long; return their exit codes, None for one that has not."""
        end = time.monotonic() + seconds
        for node in self.running:
            node.process.join(max(0.0, end - time.monotonic()))
        return [node.process.exitcode for node in self.running]

    def kill(self) -> None:
        """End what is left of the run."""
        for process in self.processes():
            process.kill()
        for node in self.running:
            node.process.join(10.0)


def belongs(process: psutil.Process, mark: str) -> bool:
    """Whether a process has written its outputs to this folder: all processes of a node inherit that."""
    return os.readlink(f"/proc/{process.pid}/fd/1").startswith(mark + "/")


@contextmanager
def started(
    folder: Path, program: NodeProgram, hosts: Sequence[Host] = (), late: Sequence[int] = (), held: bool = False
) -> Iterator[tuple[Nodes, str]]:
    """Start the nodes of a run but those of the ranks in `late`; end what is left of them after the block.

    Yields the nodes, and where the head listens.
    """
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    head = f"{hosts[0].address}:29400" if hosts else f"127.0.0.1:{free_port()}"
    nodes = Nodes(folder, program, [])
    if held:
        nodes.hold()
    try:
        for rank in range(program.nodes):
            if rank not in late:
                nodes.start(rank, hosts[rank] if hosts else None, head)
        yield nodes, head
    finally:
        nodes.kill()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def fork_process(
    folder: Path, do: Callable[[], int], environment: dict[str, str], out: Path, host: Host | None
) -> BaseProcess:
    """Start a process in a folder and on a host; what `do` prints goes to a file, and its answer is the exit code."""
    context = multiprocessing.get_context("forkserver")
    with nameless_main():
        prepare()
        process = context.Process(target=_be_process, args=(folder, do, environment, out, host))
        with interrupts_wait():
            process.start()
    return process


def _be_process(folder: Path, do: Callable[[], int], environment: dict[str, str], out: Path, host: Host | None) -> None:
    """Be a process that does something, and exit with its answer. Never returns."""
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.stdout, sys.stderr = (open(stream, "w", encoding="utf-8", buffering=1, closefd=False) for stream in (1, 2))  # noqa: SIM115
    if host is not None:
        host.enter()
    os.environ.update(environment)
    os.chdir(folder)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    torch.set_num_threads(1)
    fork_anew()
    try:
        code = do()
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _train(folder: Path, program: NodeProgram, apart: bool) -> int:
    """Train this node's part; return the exit code."""
    try:
        train(
            *(() if program.resume else (survival_job(program.batches, seed=program.seed), program.plan)),
            engine="cluster",
            folder=folder / "runs",
            timeout=program.deadline,
            nodes=NodeOptions(trusted_network=apart),
            checkpoint_every=program.checkpoint_every,
            resume=program.resume,
        )
        return 0
    except Exception as error:
        code: int = getattr(error, "exit_code", -1)
        if code < 0:
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return code
