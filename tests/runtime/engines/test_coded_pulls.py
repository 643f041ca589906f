"""Coded pulls: workers compute with what the server knows that they have, and nothing is lost."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.cluster.messages import Pushed
from paceline.algorithms.cluster.outputs import Apply
from paceline.algorithms.codecs.catalogue import CODECS, parse
from paceline.algorithms.rules.gradients import Plain
from paceline.errors import FrameError, PlanError
from paceline.interfaces.testing.conformance import check_run, difference, replays
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan
from paceline.runtime.engines.cluster.servers.history import PushHistory
from paceline.runtime.engines.cluster.servers.shard_state import CodedVector, Pushes, ShardState
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.encoder import HEAD, GradientEncoder, PulledReader, PulledView
from paceline.training.gradients.message import MessageShape
from paceline.training.parameters.layout import lay_out
from tests.runtime.engines.cluster.stubs import layout_of, small_job

OWING = [name for name, row in CODECS.items() if row.make().feedback]
ANSWERS = ("half", "int8", "threshold:0.0001", "powersgd:1", "randomk:0.2")


def trained(plan: str, engine: str, updates: int = 12) -> pl.Run:
    return pl.train(JOBS["mlp"](), plan, engine=engine, folder=None, max_updates=updates)


@pytest.mark.parametrize("pull", ANSWERS)
def test_every_engine_has_the_same_bits_and_bytes(pull: str) -> None:
    plan = f"downpour:workers=1,shards=2,codec=onebit,pull={pull}"
    runs = [trained(plan, engine) for engine in ("virtual", "local")]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1
    assert len({run.summary()["bytes_sent"] for run in runs}) == 1
    whole = trained("downpour:workers=1,shards=2,codec=onebit", "virtual")
    assert runs[0].summary()["bytes_sent"] < whole.summary()["bytes_sent"]
    assert 1e-8 < difference(whole.model, runs[0].model) < 0.9


def test_what_several_workers_pulled_is_replayed() -> None:
    plan = "downpour:workers=3,codec=half,pull=int8"
    run = trained(plan, "local", 30)
    check_run(run, Plan.parse(plan))
    replays(run)


@pytest.mark.parametrize("pull", [name for name in OWING if not CODECS[name].make().variable])
def test_measured_bytes_are_computed_bytes(pull: str) -> None:
    """The first answer to each worker is whole, every other one is a message."""
    run = trained(f"downpour:workers=2,codec=half,pull={pull}", "local", 20)
    layout = layout_of(JOBS["mlp"]())
    shapes = [MessageShape(CODECS[name].make(), layout.shards[0], layout.dtype) for name in ("half", pull)]
    pushed, pulled = (shape.fixed for shape in shapes)
    rows = run.trace.rows[run.trace.rows["kind"] == Kind.APPLY]
    for worker in range(2):
        mine = rows[rows["worker"] == worker]["bytes"].tolist()
        assert mine[:1] in ([], [pushed + layout.bytes])
        assert set(mine[1:]) <= {pushed + pulled}


@pytest.mark.parametrize("pull", OWING)
def test_what_a_worker_reads_is_what_the_server_knows(pull: str) -> None:
    """Through bytes, to the last bit; and what it has comes as near to the newest version as the codec does."""
    codec, layout = parse(pull), lay_out(nn.Linear(30, 20), 1, [])
    assert codec is not None
    shape = MessageShape(codec, layout.shards[0], layout.dtype)
    view, reader, flat = PulledView(shape, 1), PulledReader(shape, 1), torch.zeros(layout.shards[0].length)
    raw, mine = flat.view(torch.uint8).numpy().data, layout.shards[0].parameter_views(flat)
    newest = [torch.randn(span.shape) for span in layout.shards[0].parameters]
    first = newest
    view.whole(newest, [])
    assert reader.read(view.answer, raw, mine, [], 1)
    assert all(map(torch.equal, mine, newest))
    for version in range(2, 30):
        moved = [0.01 * torch.randn(value.shape) if version < 20 else torch.zeros(1) for value in newest]
        newest = [value + step for value, step in zip(newest, moved, strict=True)]
        view.difference(newest, [], version)
        assert reader.read(view.answer, raw, mine, [], version)
        assert all(map(torch.equal, mine, view.values))
        assert len(view.answer) == HEAD + view.bytes < HEAD + layout.bytes * 2
    assert torch.equal(mine[1], newest[1]), "biases travel as they are"
    assert (mine[0] - newest[0]).norm() < (first[0] - newest[0]).norm(), "nearer than without any answer"


def test_a_server_answers_the_same_as_its_backup_and_whole_where_it_has_to() -> None:
    job = small_job(40, 30)
    layout, codec, pull = layout_of(job), parse("half"), parse("int8")
    assert codec is not None
    primary, backup = (ShardState(job, layout, 0, Pushes(Plain(), codec, pull, ranks=2)) for _ in range(2))
    encoder = GradientEncoder(codec, layout, [[0, 1]], 0)

    def push(worker: int, version: int, whole: float) -> list[bytes]:
        vector = CodedVector(encoder.shapes[0], False, 1, 0)
        gradients = [torch.randn(span.shape) for span in layout.shards[0].parameters]
        encoder.write(0, gradients, [], (whole, 0.0), vector.message, version, 0)
        for state in (primary, backup):
            state.apply(Apply(version, version, worker, version - 1), vector)
        pushed = Pushed(0, 1, version, version)
        answers = [b"".join(state.answer(worker, pushed, PushHistory(1))) for state in (primary, backup)]
        assert answers[0] == answers[1]
        assert len(answers[0]) == primary.answered
        return answers

    kinds = [push(*each)[0][0] for each in ((0, 1, 1.0), (1, 2, 1.0), (0, 3, 0.0), (0, 4, 1.0), (2, 5, 0.0))]
    assert kinds == [0, 0, 1, 0, 0], "asked for, asked for, coded, asked for, another process at the first one's rank"
    before = bytes(primary.everything)
    head, values = primary.answer(2, Pushed(0, 1, 77, 6), PushHistory(1))
    assert (head[0], values) == (2, primary.values), "a batch that another worker has pushed: no note of it"
    head, values = primary.answer(2, Pushed(0, 1, 77, 5), PushHistory(1))
    assert head[0] == 0, "a batch that another worker has pushed, and nothing newer: what the server has noted"
    assert bytes(values) == bytes(primary.pulled[0].answer[HEAD:])
    assert bytes(primary.everything) == before


def test_answers_that_are_none_are_refused() -> None:
    codec, layout = parse("topk:0.1"), lay_out(nn.Linear(30, 20), 1, [])
    assert codec is not None
    shape = MessageShape(codec, layout.shards[0], layout.dtype)
    view, reader, flat = PulledView(shape, 1), PulledReader(shape, 1), torch.zeros(layout.shards[0].length)
    raw, mine = flat.view(torch.uint8).numpy().data, layout.shards[0].parameter_views(flat)
    view.difference([torch.randn(span.shape) for span in layout.shards[0].parameters], [], 1)
    good = bytes(view.answer)
    wrong = [good[:30], good[:-1], good + b"x" * 10_000, b"\x07" + good[1:], b"\x00" + good[1:]]
    wrong.append(good[:HEAD] + b"\xff\xff\xff\x7f" + good[HEAD + 4 :])
    for each in wrong:
        with pytest.raises(FrameError):
            reader.read(memoryview(bytearray(each)), raw, mine, [], 1)
    assert not flat.any()


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(PlanError, match="give codec= as well"):
        Plan.parse("downpour:pull=half")
    with pytest.raises(PlanError, match="rounds at random"):
        Plan.parse("downpour:codec=half,pull=qsgd")
    with pytest.raises(PlanError, match="no option 'pull'"):
        Plan.parse("dc_asgd:codec=half,pull=half")
