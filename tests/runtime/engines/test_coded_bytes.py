"""The bytes that a trace has are those that follow from the model's shapes: every codec, exchange and size."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.codecs.catalogue import BYTES, CODECS, parse
from paceline.algorithms.collectives import Collective, segment_cuts
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.local_steps import LocalSteps
from paceline.plans.plan import Plan
from paceline.runtime.runs.trace import Kind

SIZES = [(9, 4, 3), (33, 40, 7)]
TABLES = ("ring", "tree", "halving_doubling", "central", "hierarchical")
FIXED = [name for name, row in CODECS.items() if not row.make().variable]


def job(sizes: tuple[int, int, int]) -> pl.Job:
    inputs, hidden, outputs = sizes
    data = torch.randn(24, inputs), torch.randint(outputs, (24,))
    return pl.Job(
        model=lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)),
        data=data,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        batch_size=8,
    )


def lined(size: int) -> int:
    return -(-size // 64) * 64


def blocks(name: str, sizes: tuple[int, int, int], tail: int) -> tuple[int, int, int]:
    """Return the bytes of coded fields, their itemsize, and the numbers that stay dense; written out once more here."""
    codec = parse(name)
    assert codec is not None
    inputs, hidden, outputs = sizes
    coded, dense, width = 0, hidden + outputs, 4
    for shape in ((hidden, inputs), (outputs, hidden)):
        parts = [(field.length, 4 if field.dtype == "own" else BYTES[field.dtype]) for field in codec.fields(shape)]
        found = sum(count * each if codec.adds else -(-count * each // 8) * 8 for count, each in parts)
        if found < 4 * prod(shape):
            coded, width = coded + found, parts[0][1]
        else:
            dense += prod(shape)
    return coded, width, dense + 4 + tail


def sent(collective: Collective, worker: int, workers: int, kinds: list[tuple[int, int]]) -> int:
    """Return the bytes that a worker sends by a table, over segments of (numbers, bytes of one) of each kind."""
    count = collective.segments(workers)
    cuts = [(segment_cuts(numbers, count, width), width) for numbers, width in kinds]
    piece = [sum(lined((cut[s + 1] - cut[s]) * width) for cut, width in cuts) for s in range(count)]
    return sum(sum(piece[s.send.first : s.send.stop]) for s in collective.steps(worker, workers) if s.send)


def first_parts(name: str, sizes: tuple[int, int, int]) -> int:
    """Return the bytes of the first parts of messages that are summed in two; 0 of others."""
    codec = CODECS[name].make()
    if not codec.in_two:
        return 0
    inputs, hidden, outputs = sizes
    found = [codec.fields(shape) for shape in ((hidden, inputs), (outputs, hidden))]
    shapes = zip(found, ((hidden, inputs), (outputs, hidden)), strict=True)
    return sum(4 * one.length for (one, two), shape in shapes if one.length + two.length < prod(shape))


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.soak)], ids=["every pair", "the rest"])
@pytest.mark.parametrize("codec", FIXED)
def test_measured_bytes_are_computed_bytes(codec: str, turn: int) -> None:
    """Of two sizes each plan has one here, and the next plan and the next codec the other one."""
    adds, workers = CODECS[codec].make().adds, 4
    tables = (*TABLES, "diloco") if adds else ("ring", "diloco")
    for number, table in enumerate((*tables, "downpour"), FIXED.index(codec) + turn):
        sizes = SIZES[number % 2]
        coded, width, dense = blocks(codec, sizes, 2)
        first = first_parts(codec, sizes)
        message = lined(lined(first) + coded - first) + lined(4 * dense)
        if table == "downpour":
            run = pl.train(job(sizes), f"downpour:workers=2,codec={codec}", engine="local", folder=None, max_updates=4)
            pulled = sum(lined(4 * prod(p.shape)) for p in run.model.parameters())
            rows = run.trace.rows[run.trace.rows["kind"] == Kind.APPLY]
            assert set(rows["bytes"]) == {message + pulled}
            continue
        kinds = [*([(first // 4, 4)] if first else []), ((coded - first) // width, width), (dense, 4)]
        plan = Plan.parse(f"{table}:workers={workers},codec={codec}")
        assert isinstance(plan.method, AllReduce | LocalSteps)
        run = pl.train(job(sizes), plan, engine="local", folder=None, max_updates=2)
        rows = run.trace.rows[run.trace.rows["kind"] == Kind.COLLECTIVE]
        for worker in range(workers):
            due = sent(plan.method.collective, worker, workers, kinds) if adds else 3 * message
            assert set(rows["bytes"][rows["worker"] == worker]) == {due}, (table, worker)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_of_a_threshold_the_bytes_follow_from_the_numbers_beyond_it(sizes: tuple[int, int, int]) -> None:
    """One update, in which nothing is owed yet: what is sent is counted in the gradient of each worker's part."""
    made, limit = job(sizes), 0.02
    run = pl.train(made, f"ring:workers=2,codec=threshold:{limit}", engine="virtual", folder=None, max_updates=1)
    local = pl.train(made, f"ring:workers=2,codec=threshold:{limit}", engine="local", folder=None, max_updates=1)
    found = [each.trace.rows[each.trace.rows["kind"] == Kind.COLLECTIVE]["bytes"] for each in (run, local)]
    assert np.array_equal(np.sort(found[0]), np.sort(found[1]))
    coded, _, dense = 16, 4, sizes[1] + sizes[2] + 4 + 2
    assert all((size - lined(coded) - lined(4 * dense)) % 4 == 0 and size > lined(coded) for size in found[0])
