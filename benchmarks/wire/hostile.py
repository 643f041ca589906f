"""A million hostile connections against a live server, while two honest workers keep pushing to it."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import deque
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from socket import socket

import psutil

from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, listen
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.hub import Arrived, Gone, Hub, Received
from paceline.runtime.links.tcp.waiting import Pump

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from harness import write  # noqa: E402
from tests.runtime.links.tcp.hostile import attack, closed_by_the_other_end, hostile  # noqa: E402

RUN, JOB = os.urandom(16), os.urandom(32)
SERVER, ASKER = Peer(1, 0), Peer(3, 0)
PUSH, PULL, STATE, END = 16, 17, 18, 19
BODY = os.urandom(220_000)
OPEN = 40  # connections of strangers at a time; fewer than there are places, so that each is looked at
WARM_UP = 20_000  # connections before the memory is looked at

context = get_context("fork")


def serve(pipe: Pipe) -> None:
    told: list[str] = []
    hub = Hub(Identity(SERVER, RUN, JOB), LOOPBACK, listen(Address("127.0.0.1", 0), LOOPBACK), report=told.append)
    pipe.send(hub.address)
    arrived = lost = 0
    while True:
        for event in hub.poll(1.0):
            match event:
                case Received(peer, kind, ints) if kind == PUSH:
                    hub.post(peer, PULL, ints, [BODY])
                case Received(peer, kind) if kind == STATE:
                    open_now = len(os.listdir("/proc/self/fd"))
                    hub.post(
                        peer,
                        STATE,
                        (hub.refused, psutil.Process().memory_info().rss, open_now, arrived, lost, len(told)),
                    )
                case Received():
                    hub.close()
                    return
                case Arrived():
                    arrived += 1
                case Gone():
                    lost += 1


def work(number: int, address: Address, pipe: Pipe) -> None:
    """Push until told to end; report the seconds of each push."""
    hub = Hub(Identity(Peer(2, number), RUN, JOB))
    hub.dial(address, 60.0)
    while not hub.peers:
        hub.poll(1.0)
    seconds: list[float] = []
    pipe.send("ready")
    while True:
        start = time.perf_counter()
        assert hub.post(SERVER, PUSH, (len(seconds),), [BODY])
        answers: list[object] = []
        while not answers:
            answers += hub.poll(1.0)
        assert answers == [Received(SERVER, PULL, (len(seconds),), memoryview(BODY))]
        seconds.append(time.perf_counter() - start)
        if pipe.poll():
            if pipe.recv() == "end":
                break
            pipe.send(seconds)
            seconds = []
    hub.close()
    os._exit(0)


def strike(address: Address, count: int, seed: int) -> None:
    """Send so many hostile messages, each on a connection of its own, which the server has to close."""
    strangers: deque[tuple[socket, bool]] = deque()

    def end(stranger: socket, unfinished: bool) -> None:
        assert unfinished or closed_by_the_other_end(stranger, 60.0), "a stranger was answered, or not refused"
        stranger.close()

    for number, each in zip(range(count), hostile(seed, RUN, JOB), strict=False):
        source = f"127.{number // 62500 % 200 + 1}.{number // 250 % 250}.{number % 250 + 1}"
        strangers.append((attack(address, each.sent, source), each.unfinished))
        if len(strangers) > OPEN:
            end(*strangers.popleft())
    for stranger in strangers:
        end(*stranger)


def spread(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"pushes": len(seconds), "median_us": round(1e6 * cuts[49]), "p99_us": round(1e6 * cuts[98])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    count = parser.parse_args().frames
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    address = ours.recv()
    pipes = [context.Pipe() for _ in range(2)]
    workers = [context.Process(target=work, args=(n, address, pipes[n][1]), daemon=True) for n in range(2)]
    for worker in workers:
        worker.start()
    for pipe, _ in pipes:
        assert pipe.recv() == "ready"
    asker = Hub(Identity(ASKER, RUN, JOB), pump=(pump := Pump()))
    asker.dial(address, 60.0)
    while not asker.peers:
        asker.poll(1.0)

    def state() -> tuple[int, ...]:
        asker.post(SERVER, STATE)
        while not (answers := asker.poll(1.0)):
            pass
        (answer,) = answers
        assert isinstance(answer, Received)
        return answer.ints

    def pushes() -> dict[str, float]:
        for pipe, _ in pipes:
            pipe.send("report")
        return spread([second for pipe, _ in pipes for second in pipe.recv()])

    pushes()
    time.sleep(10)
    quiet = pushes()
    strike(address, WARM_UP, 0)
    _, memory, descriptors, arrived, lost, _ = state()
    pushes()
    begun = time.perf_counter()
    parts = 10
    for part in range(parts):
        strike(address, count // parts, part + 1)
        print(f"{(part + 1) * count // parts:,} of {count:,} in {time.perf_counter() - begun:.0f} s", flush=True)
    seconds = time.perf_counter() - begun
    under_attack = pushes()
    time.sleep(6)  # those that said nothing lose their places
    refused, memory_after, descriptors_after, arrived_after, lost_after, told = state()
    for pipe, _ in pipes:
        pipe.send("end")
    for worker in workers:
        worker.join()
    asker.post(SERVER, END)
    asker.close()
    pump.close()
    server.join()
    write(
        {
            "hostile_connections": count, "seconds": round(seconds), "refused_with_warm_up": refused,
            "accepted": arrived_after - arrived, "honest_peers_lost": lost_after - lost,
            "memory_grown_bytes": memory_after - memory, "descriptors_grown": descriptors_after - descriptors,
            "lines_of_log": told, "pushes_before": quiet, "pushes_under_attack": under_attack,
        },
        "hostile.json",
    )  # fmt: skip
    print((Path(__file__).parent / "hostile.json").read_text())


if __name__ == "__main__":
    main()
