"""Wrong coded gradients over sockets to a live shard server: `python benchmarks/compression/hostile.py --frames 2000`

Of each codec so many frames that are truncated, prolonged, random, or have bits or numbers at the edge in them, sent by
a worker that has passed the handshake, as a broken one would; an honest worker pushes after each, and has to be served.
The server is a process of its own. Strangers, who are refused before any gradient, are those of `benchmarks/wire`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import psutil
import torch

from paceline.algorithms.cluster.messages import Process, Propose, Push, Pushed, Role, pack
from paceline.algorithms.cluster.outputs import TIMING
from paceline.algorithms.cluster.shard import ShardMachine
from paceline.algorithms.codecs.catalogue import CODECS
from paceline.runtime.engines.cluster.servers.loop import MESSAGES, kind_of, peer_of
from paceline.runtime.engines.cluster.servers.shard_process import ShardProcess
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, listen
from paceline.runtime.links.tcp.handshake import Identity
from paceline.runtime.links.tcp.hub import Arrived, Gone, Hub, Received

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from harness import write  # noqa: E402
from tests.runtime.engines.cluster.hostile_gradients import SIZE, pushes, wrong  # noqa: E402
from tests.runtime.engines.cluster.stubs import maker, small_job  # noqa: E402

RUN, JOB = os.urandom(16), os.urandom(32)
DESK, HONEST, HOSTILE = Process(Role.DESK, 0), Process(Role.WORKER, 0), Process(Role.WORKER, 1)
SERVER = Process(Role.SERVER, 0)
VIEW = (1 << 32) + 1
PATIENCE = 60.0  # seconds for an answer

context = get_context("fork")


def serve(desk: Address, codec: str, told: str) -> None:
    """Be the server of shard 0, until it is ended."""
    torch.set_num_threads(1)
    port = listen(Address("127.0.0.1", 0), LOOPBACK)
    Path(told).write_text(str(port.getsockname()[1]))
    ShardProcess(
        ShardMachine(0, TIMING, 0),
        lambda place: Hub(Identity(peer_of(SERVER), RUN, JOB), LOOPBACK, port, place=place, report=lambda text: None),
        desk, "127.0.0.1", maker(small_job(*SIZE), codec), 1,
    ).run()  # fmt: skip


class Worker:
    """One worker's connection to the server."""

    def __init__(self, me: Process, address: Address) -> None:
        self.hub, self.address = Hub(Identity(peer_of(me), RUN, JOB)), address
        self.connect()

    def connect(self) -> None:
        self.hub.dial(self.address, PATIENCE)
        while not any(isinstance(event, Arrived) for event in self.hub.poll(1.0)):
            pass

    def push(self, batch: int, body: bytes) -> bool:
        """Push a gradient; whether it was applied. AssertionError if there is neither an answer nor a refusal."""
        kind, ints = pack(Push(0, VIEW, batch, 0, VIEW))
        self.hub.post(peer_of(SERVER), MESSAGES + kind, ints, [body])
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for event in self.hub.poll(1.0):
                if isinstance(event, Gone):
                    self.connect()
                    return False
                if isinstance(event, Received) and event.kind == kind_of(Pushed):
                    return True
        raise AssertionError(f"batch {batch}: neither an answer nor a refusal")


@contextmanager
def server(codec: str, folder: Path) -> Iterator[tuple[Hub, Address, int]]:
    """Start a server; yield the desk's hub, the server's address and its process."""
    desk, told = (
        Hub(Identity(peer_of(DESK), RUN, JOB), LOOPBACK, listen(Address("127.0.0.1", 0), LOOPBACK)),
        folder / codec,
    )
    started = context.Process(target=serve, args=(desk.address, codec, str(told)), daemon=True)
    started.start()
    try:
        while not any(isinstance(event, Arrived) for event in desk.poll(1.0)):
            pass
        kind, ints = pack(Propose(1, 0, VIEW, (0,)))
        desk.post(peer_of(SERVER), MESSAGES + kind, ints)
        assert started.pid is not None
        yield desk, Address("127.0.0.1", int(told.read_text())), started.pid
        assert started.is_alive(), "the server has ended"
    finally:
        if started.pid is not None:
            os.kill(started.pid, signal.SIGKILL)
        started.join()
        desk.close(0.0)


def attacked(codec: str, frames: int, seed: int, folder: Path) -> dict[str, int]:
    """Push wrong gradients, an honest one after each; return what became of them."""
    chance, honest_pushes = random.Random(seed), pushes(codec)
    with server(codec, folder) as (desk, address, pid):
        honest, hostile = Worker(HONEST, address), Worker(HOSTILE, address)
        refused, before, memory = 0, 0, psutil.Process(pid).memory_info
        for number in range(frames):
            refused += not hostile.push(2 * number, wrong(next(honest_pushes), chance))
            assert honest.push(2 * number + 1, next(honest_pushes)), "an honest worker is served"
            desk.poll(0.0)
            before = before or (number >= frames // 4) * memory().rss
        return {"refused": refused, "applied": frames - refused, "growth_kib": (memory().rss - before) >> 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for codec in CODECS:
            found[codec] = attacked(codec, given.frames, given.seed, Path(folder))
            print(f"| `{codec}` | {' | '.join(map(str, found[codec].values()))} |", flush=True)
    write({"frames": given.frames, "codecs": found}, "hostile.json")


if __name__ == "__main__":
    main()
