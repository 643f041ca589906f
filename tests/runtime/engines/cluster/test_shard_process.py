"""What a shard server shows, and how it makes its versions."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.algorithms.cluster.messages import (
    NONE,
    Applied,
    Copy,
    Enrol,
    Message,
    Poll,
    Process,
    Propose,
    Push,
    Pushed,
    Replicate,
    Replicated,
    Role,
    Status,
    SyncSpare,
    View,
    pack,
)
from paceline.algorithms.cluster.outputs import TIMING, Apply
from paceline.algorithms.codecs.catalogue import parse
from paceline.plans.plan import Plan, server_of
from paceline.runtime.engines.cluster.control import Rows
from paceline.runtime.engines.cluster.servers.collector import Collector
from paceline.runtime.engines.cluster.servers.loop import MESSAGES, Other, kind_of, peer_of
from paceline.runtime.engines.cluster.servers.server_head import ServerHead
from paceline.runtime.engines.cluster.servers.shard_process import ShardProcess
from paceline.runtime.engines.cluster.servers.shard_state import CodedVector, ShardState
from paceline.runtime.links.tcp.hub import Received
from paceline.runtime.runs.trace import DTYPE
from paceline.training.gradients.encoder import GradientEncoder, PulledReader
from paceline.training.gradients.message import MessageShape
from tests.runtime.engines.cluster.stubs import AT_DESK, Notes, layout_of, maker, shard_server, small_job

BACKUP, FIRST, SECOND = Process(Role.SERVER, 1), Process(Role.WORKER, 0), Process(Role.WORKER, 1)
DESK = Process(Role.DESK, 0)
VIEW = (1 << 32) + 1


def _get(server: ShardProcess, hub: Notes, sender: Process, message: Message, body: bytes = b"") -> None:
    """Let a server receive a message."""
    kind, ints = pack(message)
    view = server._place(peer_of(sender), MESSAGES + kind, tuple(ints), len(body)) if body else None
    if view is not None:
        view[:] = body
    hub.events = [
        Received(peer_of(sender), MESSAGES + kind, tuple(ints), memoryview(bytearray(body)) if view is None else view)
    ]
    server.loop.turn(0.0)


def test_a_spare_answers_while_it_builds_the_state_for_a_copy() -> None:
    """To make a user's model may take long; a server that is silent meanwhile would be given up."""
    make, hub, go_on = maker(), Notes(), threading.Event()

    def slowly(shard: int) -> ShardState:
        assert go_on.wait(60)
        return make(shard)

    source = make(0)
    source.version.raw.fill_(7)
    spare = shard_server(hub, slowly, shard=NONE)
    _get(spare, hub, BACKUP, Copy(VIEW, 0, 3, 3, (), ()), bytes(source.everything))
    hub.forget()
    _get(spare, hub, DESK, Poll(1))
    assert [kind for _, kind, _, _ in hub.posted] == [kind_of(Status)]
    assert spare.machine.shard == NONE
    go_on.set()
    spare._builder.shutdown()
    spare.turn()
    assert (spare.machine.shard, spare.machine.version) == (0, 3)
    assert bytes(spare.state.everything) == bytes(source.everything)  # type: ignore[union-attr]


def test_a_worker_is_shown_what_the_backup_has_and_nothing_newer() -> None:
    """What the primary alone has may be lost with it: no gradient may be computed from that."""
    make, hub = maker(), Notes()
    server, alone = shard_server(hub, make), make(0)
    vectors = [alone.vectors.take(), alone.vectors.take()]
    for value, vector in enumerate(vectors, 1):
        vector.write([torch.full_like(each, float(value)) for each in vector.gradients], [], [0])
    _get(server, hub, DESK, Propose(1, 0, VIEW, (0, 1)))
    _get(server, hub, BACKUP, Enrol(VIEW, 0, 0))
    _get(server, hub, BACKUP, Replicated(VIEW, 0))
    _get(server, hub, FIRST, Push(0, VIEW, 0, 0, VIEW), bytes(vectors[0].bytes))
    _get(server, hub, SECOND, Push(0, VIEW, 1, 0, VIEW), bytes(vectors[1].bytes))
    pushed = kind_of(Pushed)
    assert not [each for each in hub.posted if each[1] == pushed]
    _get(server, hub, BACKUP, Replicated(VIEW, 1))
    _get(server, hub, BACKUP, Replicated(VIEW, 2))
    expected = []
    for version, vector in enumerate(vectors, 1):
        alone.apply(Apply(version, version - 1, 0, 0), vector)
        expected.append(bytes(alone.values))
    answers = [each for each in hub.posted if each[1] == pushed]
    assert [(peer, ints[-1]) for peer, _, ints, _ in answers] == [(peer_of(FIRST), 1), (peer_of(SECOND), 2)]
    assert [body for *_, body in answers] == expected
    assert expected[0] != expected[1]
    assert len(server.state.vectors) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("pull", ["randomk:0.2", "int8"])
def test_a_coded_answer_is_of_the_version_that_it_is_labelled_with(pull: str) -> None:
    """Two pushes whose backup confirms both at once are answered with the newest version, and so is one sent again."""
    job, hub = small_job(40, 30), Notes()
    layout, make = layout_of(job), maker(job, "half", pull, ranks=2)
    server, alone, codec = shard_server(hub, make), make(0), parse("half")
    assert codec is not None
    encoder = GradientEncoder(codec, layout, [[0, 1]], 0)
    shape = MessageShape(parse(pull) or codec, layout.shards[0], layout.dtype)
    flats = [torch.zeros(layout.shards[0].length) for _ in range(2)]
    versions = [alone.version.values.clone()]

    def push(worker: Process, batch: int, base: int, fresh: float) -> bytes:
        vector = CodedVector(encoder.shapes[0], False, 1, 0)
        gradients = [torch.randn(span.shape) for span in layout.shards[0].parameters]
        encoder.write(0, gradients, [], (fresh, 0.0), vector.message, batch, 0)
        alone.apply(Apply(len(versions), batch, worker.number, base), vector)
        versions.append(alone.version.values.clone())
        _get(server, hub, worker, Push(0, VIEW, batch, base, VIEW), body := bytes(vector.bytes))
        return body

    def adopt(worker: Process) -> tuple[bool, int]:
        """Read the answer to a worker; return whether the server has noted it, and the version of its label."""
        _, _, ints, body = next(each for each in hub.posted if each[:2] == (peer_of(worker), kind_of(Pushed)))
        flat, version = flats[worker.number], Pushed(*ints).version
        raw, views = flat.view(torch.uint8).numpy().data, layout.shards[0].parameter_views(flat)
        return PulledReader(shape, 0).read(memoryview(bytearray(body)), raw, views, [], version), version

    _get(server, hub, DESK, Propose(1, 0, VIEW, (0, 1)))
    _get(server, hub, BACKUP, Enrol(VIEW, 0, 0))
    _get(server, hub, BACKUP, Replicated(VIEW, 0))
    for number, worker in enumerate((FIRST, SECOND)):
        push(worker, number, 0, 1.0)
        _get(server, hub, BACKUP, Replicated(VIEW, number + 1))
        assert adopt(worker) == (True, number + 1)
    hub.forget()
    again = push(FIRST, 2, 1, 0.0)
    push(SECOND, 3, 2, 0.0)
    _get(server, hub, BACKUP, Replicated(VIEW, 4))
    assert (adopt(FIRST), adopt(SECOND)) == ((False, 4), (True, 4))
    assert torch.equal(flats[0], versions[4]), "the whole of what the label says"
    coded = server.state.pulled[1]  # type: ignore[union-attr]
    assert all(map(torch.equal, layout.shards[0].parameter_views(flats[1]), coded.values)), "what the server has noted"
    hub.forget()
    push(SECOND, 4, 4, 0.0)
    _get(server, hub, BACKUP, Replicated(VIEW, 5))
    _get(server, hub, FIRST, Push(0, VIEW, 2, 1, VIEW), again)
    assert adopt(FIRST) == (False, 5)
    assert torch.equal(flats[0], versions[5])


def test_who_sends_what_is_no_gradient_is_left_and_named_and_nothing_is_counted() -> None:
    hub = Notes()
    server = shard_server(hub)
    _get(server, hub, DESK, Propose(1, 0, VIEW, (0,)))
    _get(server, hub, FIRST, Push(0, VIEW, 0, 0, VIEW), b"short")
    assert [peer for peer, _ in hub.refused] == [peer_of(FIRST)]
    assert "a gradient of 5 bytes" in hub.refused[0][1]
    assert (server.machine.version, server.machine.applied.end) == (0, 0)


def test_the_head_sees_that_a_shard_lacks_its_last_pushes() -> None:
    """The servers that had them may die after the last batch was finished, when no worker is left to repeat it."""
    hub = Notes()
    server = shard_server(hub)
    server.machine.applied = Applied(3, (4, 5))
    server_of_plan = server_of(Plan.parse("downpour"))
    collector = Collector(
        Notes(),  # type: ignore[arg-type]
        AT_DESK,
        TIMING,
        layout_of(small_job()),
        lambda event: None,
        server_of_plan,
    )
    collector.reader.views = {0: View(0, 0, (0,))}
    server.other(Process(Role.HEAD, 0), Other.HISTORY, (0, 0, 0), memoryview(b""))
    _, kind, ints, body = hub.posted[-1]
    collector.other(Process(Role.SERVER, 0), kind, ints, memoryview(body))
    assert collector.lacking(6) == [0]
    assert collector.lacking(3) == []


def test_a_checkpoint_may_come_before_any_new_push() -> None:
    """As when Ctrl-C is pressed while workers start."""
    added = list[bytes]()
    workers = SimpleNamespace(ahead=[0], put_rows=lambda rows: added.append(rows.tobytes()))
    head: Any = SimpleNamespace(nodes=1, workers=workers, collector=SimpleNamespace(sources=[]))
    assert ServerHead._notify(head, np.empty(0, DTYPE)) == 0
    assert added == [b""]


@pytest.mark.parametrize(("lost", "alive"), [({1}, False), (set(), True)])
def test_rows_of_a_node_that_has_left_are_of_no_worker_in_its_place(lost: set[int], alive: bool) -> None:
    """The run waited for ever for that worker to finish."""
    workers = SimpleNamespace(dead={1}, add_rows=lambda *_: None)
    head: Any = SimpleNamespace(workers=workers, _lost=lost, _deserted=None)
    ServerHead.handle_message(head, 1, Rows(5, 0), memoryview(b""))
    assert (1 not in workers.dead) is alive


def test_a_push_is_replicated_as_it_came_to_a_server_that_reads_it_late() -> None:
    """Meanwhile the primary may need it no longer, and receive other pushes where it was."""
    make, hub = maker(), Notes()
    server, other = shard_server(hub, make), Process(Role.SERVER, 2)
    vectors = [make(0).vectors.take() for _ in range(4)]
    for value, vector in enumerate(vectors):
        vector.write([torch.full_like(each, float(value)) for each in vector.gradients], [], [0])

    def push(batch: int) -> None:
        _get(server, hub, FIRST, Push(0, VIEW, batch, batch, VIEW), bytes(vectors[batch].bytes))

    _get(server, hub, DESK, Propose(1, 0, VIEW, (0,)))
    _get(server, hub, DESK, SyncSpare(1, VIEW, BACKUP.number))
    _get(server, hub, BACKUP, Replicated(VIEW, 0))
    push(0)
    push(1)
    server.loop.perform(server.machine.tick(1e9))  # it sends again what is not confirmed
    _get(server, hub, DESK, SyncSpare(1, VIEW, other.number))
    _get(server, hub, other, Replicated(VIEW, 2))
    push(2)
    push(3)
    late = [each for each in hub.posted if each[:2] == (peer_of(BACKUP), kind_of(Replicate))]
    assert [ints[1] for _, _, ints, _ in late] == [1, 2, 1, 2]
    assert [body for *_, body in late] == [bytes(vectors[number].bytes) for number in (0, 1, 0, 1)]
    assert len(server.state.vectors) == 2  # type: ignore[union-attr]
