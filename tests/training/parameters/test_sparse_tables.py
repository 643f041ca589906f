"""Embedding tables with sparse gradients: only touched rows travel, and the numbers are those of one process."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.algorithms.server.version_slots import VersionSlots
from paceline.errors import JobError, JobWarning, PlanError
from paceline.interfaces.api.comparing import compare
from paceline.interfaces.testing.conformance import check_run, difference, no_update_lost, replays, staleness_identity
from paceline.interfaces.testing.jobs import SPARSE_JOBS, bag
from paceline.interfaces.testing.killing import DiesInMidUpdate
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import RECIPES
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.trace import Kind
from paceline.training.parameters.layout import ParameterSpan as Span
from paceline.training.parameters.layout import ShardLayout
from paceline.training.parameters.rows import Journal, coalesced, outside
from paceline.training.parameters.shard_version import RowPartition, ShardVersion, StateField, VersionShape
from tests.each import each

# Rows: a room that caught up by rows is a room that was copied whole, whoever pushes and whoever is killed when.

HEIGHT, OTHER = 40, 24
LAYOUT = ShardLayout(
    (
        Span("table", (HEIGHT, 2), 0, 2 * HEIGHT),
        Span("dense", (3,), 80, 3),
        Span("other", (OTHER, 1), 96, OTHER),
    ),
    (),
    128,
)
BY_ROW, NUMBER = StateField((HEIGHT, 1), torch.float32, Tensor), StateField((), torch.float64, int)
SHAPE = VersionShape(LAYOUT, torch.float32, [{"sum": BY_ROW, "step": NUMBER}, {}, {}], [{}, {}, {}], (0, 2))

COMMITS, DIES_AT_ONCE, DIES_HALF_WAY, DIES_AT_THE_END = range(4)


class World:
    """Slots whose versions are copied by rows, and the newest version made without."""

    def __init__(self, workers: int) -> None:
        self.slots = VersionSlots(workers)
        self.state = [0] * self.slots.ints
        self.slots.init(self.state)
        self.copies = [ShardVersion(SHAPE, torch.zeros(SHAPE.size, dtype=torch.uint8)) for _ in range(self.slots.count)]
        ints = torch.zeros(Journal.size(SHAPE.heights, self.slots.count), dtype=torch.int64)
        self.journal = Journal(SHAPE.heights, self.slots.count, ints)
        self.partitions = [RowPartition(version) for version in self.copies]
        self.truth = ShardVersion(SHAPE, torch.zeros(SHAPE.size, dtype=torch.uint8))
        self.alive, self.version, self.whole = list(range(workers)), 0, 0

    def push(self, worker: int, touched: list[int], fate: int = COMMITS) -> None:
        draft, version = list(self.state), self.version + 1
        source, target = self.slots.move(draft, worker)
        missing, made = self.journal.begin(version, source, target), self.copies[target]
        others = [row for row in touched if row < OTHER]
        if fate != DIES_AT_ONCE:
            self.partitions[target].follow(self.partitions[source], missing)
            for table, rows in enumerate((touched, others)):
                self.journal.note(version, table, torch.tensor(rows, dtype=torch.int64))
                if fate == DIES_HALF_WAY:
                    break
            self._change(made, touched, others, -1e6 if fate != COMMITS else version)
        if fate != COMMITS:
            self.alive.remove(worker)
            return
        self.state, self.version = draft, version
        self.whole += sum(rows is None for rows in missing)
        self._change(self.truth, touched, others, version)
        assert torch.equal(made.raw, self.truth.raw), "what was copied by rows is not the newest version"

    @staticmethod
    def _change(version: ShardVersion, touched: list[int], others: list[int], by: float) -> None:
        table, dense, other = version.parameters
        table[touched] += by
        version.state.views[0]["sum"][touched] += by * by
        dense += by
        other[others] -= by
        version.state.views[0]["step"] += 1


def test_every_order_of_a_few_pushes_with_a_death_anywhere() -> None:
    for order in itertools.product(range(3), repeat=4):
        for death, fate in itertools.product(range(3), (DIES_AT_ONCE, DIES_HALF_WAY, DIES_AT_THE_END)):
            world = World(3)
            for number, worker in enumerate(order):
                if worker in world.alive:
                    world.push(worker, [number, 10 + worker], fate if number == death else COMMITS)


@pytest.mark.parametrize("seed", range(40))
def test_long_walks_with_few_and_many_rows_and_deaths(seed: int) -> None:
    chance = random.Random(seed)
    world = World(chance.choice([1, 2, 3, 6]))
    for _ in range(150):
        fate = COMMITS
        if len(world.alive) > 1 and chance.random() < 0.05:
            fate = chance.choice([DIES_AT_ONCE, DIES_HALF_WAY, DIES_AT_THE_END])
        rows = chance.sample(range(HEIGHT), chance.choice([0, 1, 1, 2, 5, 6, 30]))  # 5 are as many as are written down
        world.push(chance.choice(world.alive), rows, fate)


def test_tables_are_hardly_ever_copied_whole_while_few_rows_are_touched() -> None:
    world = World(2)
    for number in range(100):
        world.push(number % 2, [number % HEIGHT])
    assert world.whole == 0
    world.push(0, list(range(HEIGHT)))
    world.push(1, [1])
    assert world.whole == 2  # both tables


def test_what_lies_outside_of_some_tensors() -> None:
    raw = torch.arange(20, dtype=torch.uint8)

    def left(inner: Iterable[slice]) -> list[list[int]]:
        return [part.tolist() for part in outside(raw, [raw[piece] for piece in inner])]

    assert left([]) == [list(range(20))]
    assert left([slice(15, 20), slice(0, 3)]) == [list(range(3, 15))]
    assert left([slice(4, 18), slice(2, 4)]) == [[0, 1], [18, 19]]


def test_a_sparse_gradient_names_each_row_once() -> None:
    table = torch.nn.Embedding(9, 2, sparse=True)
    table(torch.tensor([7, 2, 7])).sum().backward()
    gradient = coalesced(table.weight.grad)
    assert gradient is not None
    assert gradient.indices().tolist() == [[2, 7]]
    assert gradient.values().tolist() == [[1, 1], [2, 2]]


SGD, ADAGRAD, SPARSE_ADAM = torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam
PLANS = {name: pl.Plan.parse(name) for name in RECIPES}
TAKES_SPARSE = [n for n, p in PLANS.items() if p.traits.takes_sparse and not isinstance(p.method, Pipeline)]
PIPELINES = ("layers", "gpipe", "one_f_one_b", "zero_bubble", "pipedream")


def sha(job: pl.Job, plan: str, engine: str = "virtual") -> str:
    return str(pl.train(job, plan, engine=engine, folder=None).summary()["parameters_sha256"])


@pytest.mark.parametrize("job", SPARSE_JOBS)
def test_downpour_with_one_worker_is_sequential_to_the_bit(job: str) -> None:
    made = SPARSE_JOBS[job]()
    assert sha(made, "downpour:workers=1") == sha(made, "sequential")


def test_downpour_with_one_real_worker_is_sequential_to_the_bit() -> None:
    made = SPARSE_JOBS["bag-adagrad"]()
    assert sha(made, "downpour:workers=1", "local") == sha(made, "sequential")


@pytest.mark.parametrize("plan", ["sequential", "downpour:workers=2", "downpour:workers=3,shards=2", "ssp:workers=3"])
@pytest.mark.parametrize(
    ("optimizer", "clip"),
    [
        (partial(SGD, lr=0.5), None),
        (partial(SGD, lr=0.5), 0.2),
        (partial(ADAGRAD, initial_accumulator_value=0.1), None),
    ],
)
def test_rows_give_the_numbers_of_whole_tables(plan: str, optimizer: Any, clip: float | None) -> None:
    runs = [
        pl.train(bag(optimizer, sparse).with_(gradient_clip_norm=clip), plan, engine="virtual", folder=None)
        for sparse in (True, False)
    ]
    assert difference(runs[0].model, runs[1].model) < 1e-12


REAL = [*itertools.product(["downpour"], SPARSE_JOBS, ["local"]), ("hogwild", "bag-adagrad", "local")]


@pytest.mark.parametrize(("plan", "job", "engine"), [*itertools.product(TAKES_SPARSE, SPARSE_JOBS, ["virtual"]), *REAL])
def test_every_run_keeps_its_invariants_and_replays(plan: str, job: str, engine: str) -> None:
    made = pl.Plan.parse(plan, 3)
    check_run(pl.train(SPARSE_JOBS[job](), made, engine=engine, folder=None, max_updates=20), made)


@pytest.mark.parametrize("job", ["bag-sgd", "bag-adagrad"])
@pytest.mark.parametrize("plan", PIPELINES)
def test_a_table_may_be_a_stage_of_a_pipeline(plan: str, job: str) -> None:
    made = pl.Plan.parse(plan, 2)
    check_run(pl.train(SPARSE_JOBS[job](), made, engine="virtual", folder=None, max_updates=20), made)


def test_only_rows_travel() -> None:
    def sent(sparse: bool, plan: str, engine: str) -> list[int]:
        run = pl.train(bag(partial(SGD, lr=0.5), sparse), plan, engine=engine, folder=None)
        return list(run.trace.of_kind(Kind.APPLY)["bytes"].tolist())

    whole = 900 * 5 * 8
    assert min(sent(False, "downpour:workers=2", "virtual")) >= 2 * whole
    assert max(sent(True, "downpour:workers=2", "virtual")) < whole / 2
    assert sent(True, "downpour:workers=1", "local") == sent(True, "downpour:workers=1", "virtual")


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_death_in_mid_update_leaves_no_torn_row(tmp_path: Path, optimizer: str) -> None:
    when = tmp_path / "die"
    when.touch()
    kind = DiesInMidUpdate if optimizer == "sgd" else AdagradThatDies
    made = bag(partial(kind, lr=0.05, when=str(when), spared=7)).with_(epochs=30)
    run = pl.train(made, "downpour:workers=3", folder=None)
    assert len(run.summary()["deaths"]) == 1
    assert all(p.abs().max() < 1e3 for p in run.model.parameters()), "the torn step was not taken back"
    no_update_lost(run)
    staleness_identity(run)
    replays(run)


class AdagradThatDies(torch.optim.Adagrad):
    """As DiesInMidUpdate, after spoiling rows of the table and what is remembered of them."""

    def __init__(self, params: Any, when: str, spared: int, **rest: Any) -> None:
        super().__init__(params, **rest)
        self.when, self.spared = when, spared

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.spared:
            self.spared -= 1
        elif Path(self.when).exists():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data[::3] = self.state[parameter]["sum"][::3] = 1e6
            DiesInMidUpdate.step(self, closure)  # type: ignore[arg-type]
        super().step(closure)


def test_a_batch_that_touches_most_rows_is_copied_whole() -> None:
    generator = torch.Generator().manual_seed(2)
    data = torch.randint(900, (61, 30), generator=generator), torch.randint(5, (61,), generator=generator)
    made = bag(partial(ADAGRAD, lr=0.1)).with_(data=data)
    run = pl.train(made, "downpour:workers=3", folder=None)
    check_run(run, pl.Plan.parse("downpour", 3))


class Sometimes(nn.Module):
    """The gradient of its table is sparse in one batch, dense in another, and missing in a third."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(64, 3, sparse=True), nn.Linear(3, 5)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        kind = (int(x.sum()) + 2) % 3 if self.training else 0  # 0 in the first batch
        rows = self.table(x[:, 0] % 64) if kind == 0 else self.table.weight[x[:, 0] % 64]
        result: Tensor = self.last(rows if kind < 2 else rows.detach())
        return result


def test_a_table_whose_gradient_is_not_always_sparse() -> None:
    made = bag(partial(SGD, lr=0.1)).with_(model=Sometimes, shuffle=False)
    words = made.data[0]
    assert {(int(words[start : start + 14].sum()) + 2) % 3 for start in range(0, 61, 14)} == {0, 1, 2}
    assert sha(made, "sequential") == sha(made, "downpour:workers=1,shards=2")
    replays(pl.train(made, "downpour:workers=3", folder=None))


@each("plan", [name for name, plan in PLANS.items() if not plan.traits.takes_sparse])
def test_plans_that_send_dense_vectors_refuse_sparse_gradients(plan: str) -> None:
    with pytest.raises(PlanError, match=rf"words\.weight gets a sparse .* plan {plan} exchanges dense ones"):
        pl.train(SPARSE_JOBS["bag-sgd"](), plan, workers=4 if plan == "cannon" else 2, folder=None)


def test_a_comparison_goes_on_without_a_plan_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "DEFAULT_PLANS", ("sequential", "ring"))
    found = pl.compare(SPARSE_JOBS["bag-sgd"](), seconds=0.1, folder=None)
    assert [row.plan for row in found.rows] == ["sequential"]
    (ring,) = found.failed
    assert ring.sentence.startswith("ring x2 failed: PlanError: parameter words.weight gets a sparse gradient")
    with pytest.raises(PlanError):
        pl.compare(SPARSE_JOBS["bag-sgd"](), ["ring"], folder=None)


@pytest.mark.parametrize("engine", ["cluster", "ray"])
def test_several_machines_refuse_sparse_gradients(engine: str) -> None:
    with pytest.raises(PlanError, match=r"words\.weight gets a sparse .* several machines exchange dense ones"):
        set_up(SPARSE_JOBS["bag-sgd"](), pl.Plan.parse("downpour:workers=2"), engine)


class DecaysAll(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.99)
        super().step(closure)


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (torch.optim.Adam, r"Adam does not take the sparse gradient of parameter words\.weight: .*Adagrad"),
        (partial(SGD, lr=0.1, weight_decay=0.1), r"SGD does not take the sparse gradient of parameter words\.weight"),
        (partial(SGD, lr=0.1, momentum=0.9), r"SGD keeps 'momentum_buffer' of parameter words\.weight as a sparse"),
        (partial(SPARSE_ADAM, lr=0.1), r"SparseAdam does not take the dense gradient of parameter head\.weight"),
        (partial(DecaysAll, lr=0.1), r"DecaysAll changes rows of parameter words\.weight that a batch did not touch"),
    ],
)
def test_optimizers_that_cannot_work_on_rows_are_refused_by_name(optimizer: Any, says: str) -> None:
    with pytest.raises(JobError, match=says):
        pl.train(bag(optimizer), "downpour", engine="virtual", folder=None)


@pytest.mark.parametrize("optimizer", [partial(SGD, lr=0.1, momentum=0.9), partial(DecaysAll, lr=0.1)])
def test_one_process_does_what_torch_does(optimizer: Any) -> None:
    assert pl.train(bag(optimizer), "sequential", engine="virtual", folder=None).summary()["train_loss"] > 0
    with pytest.raises(JobError, match=r"Adam does not take the sparse gradient"):
        pl.train(bag(torch.optim.Adam), "sequential", engine="virtual", folder=None)


@pytest.mark.parametrize("plan", ["downpour", "hogwild", "ring"])
def test_a_table_that_the_model_itself_changes_is_refused_where_others_look(plan: str) -> None:
    made = bag(partial(SGD, lr=0.1), sparse=False).with_(model=lambda: nn.EmbeddingBag(900, 5, max_norm=0.1).double())
    pl.train(made, "sequential", engine="virtual", folder=None, max_updates=1)
    with pytest.raises(PlanError, match=r"changes parameter weight while it computes"):
        pl.train(made, plan, engine="virtual", folder=None)


def large(plan: str, **changes: Any) -> None:
    made = bag(partial(SGD, lr=0.1)).with_(model=lambda: nn.EmbeddingBag(30_000, 5).double(), **changes)
    pl.train(made, plan, workers=2, engine="virtual", folder=None, max_updates=1)


def test_a_large_table_with_dense_gradients_is_advised_to_be_sparse() -> None:
    with pytest.warns(
        JobWarning, match=r"all 1\.2 MB of weight, .* about 2[0-9] of its 30000 rows\. Remedy: sparse=True"
    ):
        large("downpour")
    large("ring")  # a dense vector anyway
