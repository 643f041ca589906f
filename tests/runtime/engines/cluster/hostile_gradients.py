"""Coded gradients as a worker might send them that is broken or hostile. Shared with benchmarks/compression."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import torch

from paceline.algorithms.cluster.messages import Process, Propose, Push, Role, pack
from paceline.algorithms.codecs.catalogue import CODECS
from paceline.runtime.engines.cluster.servers.loop import MESSAGES, peer_of
from paceline.runtime.engines.cluster.servers.shard_process import ShardProcess
from paceline.runtime.engines.cluster.servers.shard_state import CodedVector
from paceline.runtime.links.tcp.hub import Received
from paceline.training.gradients.encoder import GradientEncoder
from tests.runtime.engines.cluster.stubs import Notes, layout_of, maker, shard_server, small_job

DESK, WORKER, STRANGER = Process(Role.DESK, 0), Process(Role.WORKER, 0), Process(Role.WORKER, 1)
VIEW = (1 << 32) + 1
SIZE = 40, 30
EDGES = (-1, 0, 1, 2**30, 2**31 - 1, -(2**31))


def wrong(frame: bytes, chance: random.Random) -> bytes:
    """Return a frame with something wrong in it: its length, some of its bits, or numbers at the edge."""
    kind = chance.randrange(6)
    if kind == 0:
        return frame[: chance.randrange(1, len(frame))]
    if kind == 1:
        return frame + chance.randbytes(chance.randrange(1, 5000))
    if kind == 2:
        return chance.randbytes(len(frame))
    changed = bytearray(frame)
    if kind == 3:
        for _ in range(chance.randrange(1, 20)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    elif kind == 4:
        for _ in range(chance.randrange(1, 8)):
            place = chance.randrange(len(changed) // 4) * 4
            struct.pack_into("<i", changed, place, chance.choice(EDGES))
    else:
        start = chance.randrange(len(changed))
        changed[start : start + chance.randrange(1, 200)] = b"\xff" * chance.randrange(1, 200)
    return bytes(changed)


def attacked(codec: str, frames: int, seed: int) -> tuple[int, int]:
    """Push wrong gradients to a server, an honest one after each; return how many were refused, and how many applied.

    AssertionError where what was refused is counted, or the honest worker is not served.
    """
    hub, chance = Notes(), random.Random(seed)
    server, honest = shard_server(hub, maker(small_job(*SIZE), codec)), pushes(codec)
    _get(server, hub, DESK, Propose(1, 0, VIEW, (0,)))
    for number in range(frames):
        _get(server, hub, STRANGER, Push(0, VIEW, 2 * number, 0, VIEW), wrong(next(honest), chance))
        assert server.machine.version == 2 * number + 1 - len(hub.refused), "what was refused is not counted"
        _get(server, hub, WORKER, Push(0, VIEW, 2 * number + 1, 0, VIEW), next(honest))
        assert server.machine.version == 2 * number + 2 - len(hub.refused), "an honest worker is served"
        hub.forget()
    assert {peer for peer, _ in hub.refused} <= {peer_of(STRANGER)}
    assert server.state is not None
    assert len(server.state.vectors) <= 3, "what was refused is let go"
    return len(hub.refused), frames - len(hub.refused)


def _get(server: ShardProcess, hub: Notes, sender: Process, message: Propose | Push, body: bytes = b"") -> None:
    """Let a server receive a message, its body where it has room for it."""
    kind, ints = pack(message)
    view = server._place(peer_of(sender), MESSAGES + kind, tuple(ints), len(body)) if body else None
    if view is not None:
        view[:] = body
    received = memoryview(bytearray(body)) if view is None else view
    hub.events = [Received(peer_of(sender), MESSAGES + kind, tuple(ints), received)]
    server.loop.turn(0.0)


def pushes(codec: str) -> Iterator[bytes]:
    """Yield an honest worker's pushes."""
    layout, made = layout_of(small_job(*SIZE)), CODECS[codec].make()
    encoder, update = GradientEncoder(made, layout, [range(len(layout.shards[0].parameters))], 0), 0
    vector = CodedVector(encoder.shapes[0], False, 1, 0)
    while True:
        gradients = [0.01 * torch.randn(span.shape) for span in layout.shards[0].parameters]
        encoder.write(0, gradients, [], (0.0, 0.0), vector.message, update, 0)
        encoder.finalize()
        update += 1
        yield bytes(vector.bytes)
