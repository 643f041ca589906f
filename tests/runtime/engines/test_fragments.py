"""DiLoCo in fragments: the same bits on every engine, as written out by hand, and exact bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.codecs.catalogue import CODECS
from paceline.errors import PlanError, UsageError
from paceline.interfaces.testing.conformance import check_run
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.message import MessageShape, segments_of
from paceline.training.gradients.payload import Payload
from paceline.training.parameters.layout import Fragments, lay_out

PLANS = (
    "diloco:workers=3,every=4,fragments=2",
    "diloco:workers=2,every=5,fragments=3,rate=1,momentum=0",
    "diloco:workers=2,every=2,fragments=2,codec=threshold:0.01",
    "diloco:workers=3,every=4,fragments=2,overlap=2",
    "diloco:workers=2,every=5,fragments=2,overlap=1,codec=onebit",
    "diloco:workers=2,every=3,overlap=2",
)


def trained(plan: str, engine: str, job: str = "mlp", updates: int = 11) -> pl.Run:
    return pl.train(JOBS[job](), plan, engine=engine, folder=None, max_updates=updates)


def same_bits(plan: str, job: str = "mlp") -> list[pl.Run]:
    runs = [trained(plan, engine, job) for engine in ("virtual", "local")]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1
    check_run(runs[1], Plan.parse(plan))
    return runs


@pytest.mark.parametrize(
    ("plan", "job"),
    [
        *((plan, "mlp") for plan in PLANS),
        (PLANS[0], "residual"),
        (PLANS[4], "residual"),
        *(pytest.param(plan, "residual", marks=pytest.mark.soak) for plan in (*PLANS[1:4], PLANS[5])),
    ],
)
def test_every_engine_and_replay_have_the_same_bits(plan: str, job: str) -> None:
    same_bits(plan, job)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_goes_with_fragments(codec: str) -> None:
    plan = f"diloco:workers=3,every=3,fragments=2,codec={codec}"
    virtual, local = same_bits(plan)
    if not CODECS[codec].make().adds:  # the bytes of those that add up are in the next test
        assert virtual.summary()["bytes_sent"] == local.summary()["bytes_sent"]


@pytest.mark.parametrize("overlap", [0, 1, 2])
def test_it_is_the_algorithm_of_the_paper(overlap: int) -> None:
    """Two replicas with SGD, and the outer step of one fragment after another, written out in PyTorch."""
    every, rate, momentum, updates = 4, 0.7, 0.9, 11
    data = torch.randn(16, 3, dtype=torch.float64), torch.randint(2, (16,))

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()

    job = pl.Job(
        model=net,
        data=data,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        batch_size=8,
        epochs=9,
        shuffle=False,
    )
    plan = f"diloco:workers=2,every={every},fragments=2,overlap={overlap},rate={rate},momentum={momentum}"
    found = pl.train(job, plan, engine="virtual", folder=None, max_updates=updates)

    numbers = Fragments.of(lay_out(net(), 1, ()), 2).numbers
    modules = [net() for _ in range(2)]
    replicas = [list(module.parameters()) for module in modules]
    shared = [p.detach().clone() for p in replicas[0]]
    velocity = [torch.zeros_like(p) for p in shared]

    def sent(fragment: int) -> dict[int, torch.Tensor]:
        return {n: sum(shared[n] - replica[n].detach() for replica in replicas) / 2 for n in numbers[fragment]}

    def apply(outer: dict[int, torch.Tensor], own: float) -> None:
        for n, step in outer.items():
            velocity[n] = momentum * velocity[n] + step
            shared[n] = shared[n] - rate * (step + momentum * velocity[n])
            for replica in replicas:
                replica[n].data.copy_(own * replica[n].data + (1 - own) * shared[n])

    flight: list[dict[int, torch.Tensor]] = []
    begun = 0
    for update in range(updates):
        first = update % 2 * 8
        for worker, module in enumerate(modules):
            part = slice(first + 4 * worker, first + 4 * worker + 4)
            loss = nn.functional.cross_entropy(module(data[0][part]), data[1][part])
            gradients = torch.autograd.grad(loss, replicas[worker])
            for p, gradient in zip(replicas[worker], gradients, strict=True):
                p.data.sub_(0.1 * gradient)
        if flight and update in (begun + overlap, updates - 1):
            apply(flight.pop(), 0.5)
        if (update + 1) % 2 == 0:
            flight, begun = [sent(((update + 1) // 2 - 1) % 2)], update
            if not overlap:
                apply(flight.pop(), 0.0)
    for fragment in (1, 0):
        apply(sent(fragment), 0.0)
    for mine, theirs in zip(found.model.parameters(), replicas[0], strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fragments", [1, 2, 3, 6])
def test_fragments_divide_the_parameters_and_balance_them(fragments: int) -> None:
    module = JOBS["mlp"]().make_model()
    layout = lay_out(module, 1, ())
    made = Fragments.of(layout, fragments)
    assert sorted(n for numbers in made.numbers for n in numbers) == list(range(6))
    names = [span.name for span in layout.shards[0].parameters]
    for each, numbers in zip(made.each, made.numbers, strict=True):
        assert [span.name for span in each.shards[0].parameters] == [names[n] for n in numbers]
    heaviest = max(sum(p.size for p in each.shards[0].parameters) for each in made.each)
    whole, largest = sum(p.numel() for p in module.parameters()), max(p.numel() for p in module.parameters())
    assert heaviest <= whole / fragments + largest


@pytest.mark.parametrize(
    ("codec", "fragments"),
    [
        pytest.param(codec, n, marks=[] if n == 2 or (codec, n) in (("dense", 1), ("int8", 4)) else [pytest.mark.soak])
        for codec in ("dense", "half", "randomk:0.2", "powersgd:1", "int8")
        for n in (1, 2, 4)
    ],
)
def test_bytes_are_those_of_each_fragment(codec: str, fragments: int) -> None:
    """Around a ring of two workers each sends half of a vector twice, so together they send it twice."""
    plan = Plan.parse(f"diloco:workers=2,every=4,fragments={fragments},codec={codec}")
    run = trained(str(plan), "local", updates=10)
    sizes = []
    for layout in Fragments.of(lay_out(JOBS["mlp"]().make_model(), 1, ()), fragments).each:
        if plan.codec is None:
            sizes.append(Payload.length(layout) * 8)
            continue
        shape = MessageShape(plan.codec, layout.shards[0], layout.dtype)
        added = sum(part.cuts[-1] - part.cuts[0] for part in segments_of(shape, 2)) if plan.codec.adds else shape.fixed
        sizes.append(added)
    rows = run.trace.rows[run.trace.rows["kind"] == Kind.COLLECTIVE]
    exchanges = 9 * fragments // 4 + fragments
    both = np.sum([rows["bytes"][rows["worker"] == worker] for worker in (0, 1)], axis=0)
    assert both.tolist() == [2 * sizes[number % fragments] for number in range(exchanges)]


@pytest.mark.parametrize("plan", [PLANS[0], "diloco:workers=2,every=1,overlap=1"])
def test_a_run_that_is_done_is_not_continued(plan: str, tmp_path: Path) -> None:
    job = JOBS["mlp"]()
    run = pl.train(job.with_(epochs=1), plan, folder=tmp_path, checkpoint_every=2)
    assert run.path is not None
    with pytest.raises(UsageError, match="not brought together yet"):
        pl.train(job, resume=run.path, epochs=3)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("diloco:every=3,fragments=4", "at most one fragment is exchanged after an update, so there are at most 3"),
        ("diloco:mode=asynchronous,fragments=2", "fragments and overlap belong to mode=synchronous"),
        ("diloco:every=9,fragments=4,overlap=3", "overlap is at most every / fragments, here 2"),
        ("diloco:fragments=0", "at least 1"),
        ("local_sgd:fragments=2", "no option 'fragments'"),
    ],
)
def test_what_fragments_do_not_go_with_is_refused(plan: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.parse(plan)


def test_more_fragments_than_parameters_are_refused() -> None:
    with pytest.raises(PlanError, match=r"the model has 6 parameters .* give at most fragments=6"):
        trained("diloco:every=8,fragments=7", "virtual")
