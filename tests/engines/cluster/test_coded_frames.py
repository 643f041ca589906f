"""Coded gradients that are wrong: a server refuses them, or applies them, and serves on."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from paceline.core.cluster.messages import Process, Propose, Push, Role, pack
from paceline.core.codecs.catalogue import CODECS
from paceline.engines.cluster.servers.shard_process import ShardProcess
from paceline.engines.cluster.servers.shard_state import CodedVector
from paceline.engines.cluster.servers.wire import MESSAGES, peer_of
from paceline.gradients.encoder import GradientEncoder
from paceline.links.tcp.hub import Received
from tests.engines.cluster.hostile_gradients import wrong
from tests.engines.cluster.stubs import Notes, layout_of, maker, shard_server, small_job

DESK, WORKER, STRANGER = Process(Role.DESK, 0), Process(Role.WORKER, 0), Process(Role.WORKER, 1)
VIEW = (1 << 32) + 1
FRAMES = 40
SIZE = 40, 30


def _get(server: ShardProcess, hub: Notes, sender: Process, message: Propose | Push, body: bytes = b"") -> None:
    """Let a server receive a message, a body where it has room for it."""
    kind, ints = pack(message)
    view = server._place(peer_of(sender), MESSAGES + kind, tuple(ints), len(body)) if body else None
    if view is not None:
        view[:] = body
    received = memoryview(bytearray(body)) if view is None else view
    hub.events = [Received(peer_of(sender), MESSAGES + kind, tuple(ints), received)]
    server.loop.turn(0.0)


def _pushes(codec: str) -> Iterator[bytes]:
    """Yield an honest worker's pushes."""
    layout, made = layout_of(small_job(*SIZE)), CODECS[codec].make()
    encoder = GradientEncoder(made, layout, [range(len(layout.shards[0].parameters))], 0)
    vector = CodedVector(encoder.shapes[0], False, 1, 0)
    for update in range(1_000_000):
        gradients = [0.01 * torch.randn(span.shape) for span in layout.shards[0].parameters]
        encoder.write(0, gradients, [], (0.0, 0.0), vector.message, update, 0)
        encoder.settle()
        yield bytes(vector.bytes)


@pytest.mark.parametrize("codec", CODECS)
def test_a_server_outlives_wrong_coded_gradients(codec: str) -> None:
    hub, chance = Notes(), random.Random(7)
    server, honest = shard_server(hub, maker(small_job(*SIZE), codec)), _pushes(codec)
    _get(server, hub, DESK, Propose(1, 0, VIEW, (0,)))
    applied = 0
    for number in range(FRAMES):
        before = len(hub.refused)
        _get(server, hub, STRANGER, Push(0, VIEW, 2 * number, 0), wrong(next(honest), chance))
        applied += len(hub.refused) == before
        assert server.machine.version == applied, "what was refused is not counted"
        _get(server, hub, WORKER, Push(0, VIEW, 2 * number + 1, 0), next(honest))
        applied += 1
        assert server.machine.version == applied, "an honest worker is served"
    assert hub.refused, "truncated and prolonged frames are refused"
    assert {peer for peer, _ in hub.refused} == {peer_of(STRANGER)}
    assert len(server.state.vectors) <= 3  # type: ignore[union-attr]
