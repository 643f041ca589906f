"""What a push costs: microseconds of CPU of a real shard server, and of a bare worker that computes nothing.

    HIDDEN=64 python benchmarks/cluster_speed/push.py [--pushes 5000] [--profile]

CPU times of two processes change less with busy neighbours than samples per second do. To compare two versions, run
them in turn with PYTHONPATH.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import socket
from time import monotonic, process_time

import torch
from job import job

from paceline.algorithms.cluster.messages import DESK, Process, Propose, Push, Pushed, Role, pack
from paceline.algorithms.cluster.outputs import TIMING
from paceline.algorithms.rules.gradients import Plain
from paceline.runtime.engines.cluster.servers.loop import MESSAGES, kind_of, peer_of
from paceline.runtime.engines.cluster.servers.shard_process import ShardProcess
from paceline.runtime.engines.cluster.servers.shard_state import GradientVector, ShardState
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, listen
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.hub import Hub, PeerPlace, Received
from paceline.runtime.links.tcp.waiting import Pump
from paceline.training.parameters.layout import Layout, lay_out

SERVER, WORKER, VIEW = Process(Role.SERVER, 0), Process(Role.WORKER, 0), 1 << 20
WARM_UP = 200  # pushes that are not counted


def hub(process: Process, listener: socket.socket | None = None, place: PeerPlace | None = None) -> Hub:
    me = Identity(peer_of(process), b"r" * 16, b"j" * 32)
    return Hub(me, LOOPBACK, listener, place=place, pump=Pump(TIMING.heartbeat))


def push(layout: Layout, server: Address, listener: socket.socket, pushes: int) -> None:
    """Be the desk and a worker: propose the view, push so often, and print what a push has cost the worker."""
    (shard,) = layout.shards
    flat = torch.zeros(shard.length)
    raw = flat.view(torch.uint8).numpy().data
    vector = GradientVector(shard, torch.float32, uses_pulled=False, shards=1)
    vector.write(shard.parameter_views(flat), [], [0])

    def place(peer: Peer, kind: int, ints: tuple[int, ...], size: int) -> memoryview | None:
        return raw if size == len(raw) else None

    desk, worker, there = hub(DESK, listener), hub(WORKER, place=place), peer_of(SERVER)
    worker.dial(server, 60.0)
    while there not in desk.peers or there not in worker.peers:
        desk.poll(0.01)
        worker.poll(0.01)
    kind, ints = pack(Propose(1, 0, VIEW, (SERVER.number,)))
    desk.post(there, MESSAGES + kind, ints)
    pushed, begun, cpu = kind_of(Pushed), 0.0, 0.0
    for batch in range(pushes):
        if batch == WARM_UP:
            begun, cpu = monotonic(), process_time()
        answered = False
        while not answered:  # a push that came before the view is refused, and made again
            kind, ints = pack(Push(0, VIEW, batch, batch, VIEW))
            worker.post(there, MESSAGES + kind, ints, vector.parts, copy=False)
            events = [event for event in worker.poll(60.0) if isinstance(event, Received)]
            answered = any(event.kind == pushed for event in events)
    count = pushes - WARM_UP
    print(
        f"worker {1e6 * (process_time() - cpu) / count:.0f} us CPU; {1e6 * (monotonic() - begun) / count:.0f} us in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=5000)
    parser.add_argument("--profile", action="store_true", help="show in which functions the server's time is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    layout = lay_out(job.make_model(), 1, ())
    listeners = [listen(Address("127.0.0.1", 0), LOOPBACK) for _ in range(2)]
    mine, desk = (Address(*each.getsockname()[:2]) for each in listeners)
    child = os.fork()
    if child == 0:
        try:
            push(layout, mine, listeners[1], options.pushes)
        finally:
            os._exit(0)
    server = ShardProcess(
        SERVER.number, 0, TIMING, lambda place: hub(SERVER, listeners[0], place), desk, mine.host,
        lambda number: ShardState(job, layout, number, Plain()), 1,
    )  # fmt: skip
    while server.machine.version < WARM_UP:
        server.turn()
    profile, cpu = cProfile.Profile() if options.profile else None, process_time()
    if profile is not None:
        profile.enable()
    while server.machine.version < options.pushes:
        server.turn()
    if profile is not None:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    print(f"server {1e6 * (process_time() - cpu) / (options.pushes - WARM_UP):.0f} us CPU")
    os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
