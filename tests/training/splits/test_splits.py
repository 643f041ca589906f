"""Split layers compute what one process does, are refused by name before anything starts, and send what is derived."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.splits import Mesh
from paceline.algorithms.splits.derivation import ProgramStep
from paceline.algorithms.splits.movements import movements_of_update
from paceline.errors import JobError, PlanError
from paceline.interfaces.api.train import train
from paceline.interfaces.testing.conformance import PLANS, difference, replays, same_numbers
from paceline.interfaces.testing.jobs import JOBS, OPTIMIZERS
from paceline.plans.methods.split_layers import SplitLayers
from paceline.plans.plan import Plan, make
from paceline.runtime.engines.arithmetic.splits import SplitArithmetic
from paceline.runtime.engines.dividing import chunks_each
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.trace import Kind
from paceline.training.jobs.job import Job
from paceline.training.splits import planning
from paceline.training.splits.exchanging import Request, move_together
from paceline.training.splits.planning import peaks_of_parts
from paceline.training.splits.slicing import sliced
from paceline.training.stages.planning import examples_of
from tests.training.splits.networks import random_job, random_plan

# --- The memory of workers with parts of layers: derived before the start, and what processes take in fact ------------

WIDTH = 1024


def job() -> Job:
    parts = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))
    adam = partial(torch.optim.Adam, lr=1e-3)
    return Job(nn.Sequential(*parts), (x, x), nn.MSELoss(), optimizer=adam, batch_size=32, epochs=2, device="cpu")


def derived(made: Job, plan: Plan) -> list[int]:
    setup = set_up(made, plan, "virtual")
    assert setup.split is not None
    example, chunks = examples_of(setup.job, setup.source, setup.agenda)[0], chunks_each(plan, setup.agenda)
    return peaks_of_parts(setup.job, setup.module, setup.split, example, chunks)


@pytest.mark.parametrize("plan", ["tensor:workers=2", "zero:workers=2", "zero:workers=2,stage=1"])
def test_processes_take_what_is_derived(plan: str) -> None:
    parsed = Plan.parse(f"{plan},memory=512")
    run, wanted = train(job(), parsed, folder=None), derived(job(), parsed)
    assert run.summary()["peak_memory"] == pytest.approx(wanted, rel=0.15)


def test_more_workers_and_higher_stages_take_less() -> None:
    found = [max(derived(job(), Plan.parse(f"zero:stage={stage},workers=4"))) for stage in (1, 2, 3)]
    assert found[0] > found[1] > found[2]
    assert max(derived(job(), Plan.parse("tensor:workers=4"))) < max(derived(job(), Plan.parse("tensor:workers=2")))


def test_a_bound_that_is_too_small_is_refused_before_the_start() -> None:
    with pytest.raises(PlanError, match=r"worker 0 would take \d+ MiB for its tensors, and memory=8; all workers"):
        train(job(), "tensor:workers=2,memory=8", folder=None)


# --- Generated code under ZeRO: the numbers of one process by the same code, and refused where no network is whole ----


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 5)
    ).double()


def fused_job() -> Job:
    x = torch.randn(45, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data, adam = (x, torch.arange(45) % 5), partial(torch.optim.Adam, lr=0.01)
    return JOBS["mlp"]().with_(model=model, data=data, optimizer=adam, batch_size=16, compute="fused")


@pytest.mark.parametrize(
    ("plan", "engine"),
    [
        ("zero:stage=1,workers=3", "virtual"),
        ("zero:stage=2,workers=2", "local"),
        ("zero:stage=1,workers=4,data=2", "virtual"),
    ],
)
def test_fused_same_numbers(plan: str, engine: str) -> None:
    same_numbers(fused_job(), Plan.parse(plan), engine, updates=6)


def test_a_replay_has_the_same_bits() -> None:
    replays(train(fused_job(), "zero:stage=2,workers=2", folder=None, max_updates=4))


@pytest.mark.parametrize("plan", ["zero", "tensor", "one_weird_trick"])
def test_splits_without_a_whole_network_are_refused(plan: str) -> None:
    with pytest.raises(PlanError, match="takes a whole network; zero:stage=1 and zero:stage=2 have it whole"):
        train(fused_job(), plan, engine="virtual", folder=None)


SPLIT = [plan for member in PLANS for plan in member.plans() if isinstance(plan.method, SplitLayers)]
UPDATES = 7  # an epoch, whose last batch is smaller, and two batches of the next
#: More workers or replicas of plans that another row runs on every job.
FURTHER = ("tensor:workers=3", "tensor:data=2", "redundant:workers=3", "zero:workers=5", "zero:data=2")
EQUAL = [
    pytest.param(plan, job, marks=[] if kept else [pytest.mark.soak], id=f"{plan}-{job}")
    for row, plan in enumerate(SPLIT)
    for number, job in enumerate(JOBS)
    for kept in (not str(plan).startswith(FURTHER) or (row + number) % len(JOBS) in (0, 2),)
    if job != "lstm" or plan.name != "per_layer"
]
SWEPT = [
    pytest.param(f"{plan}:workers={workers}", job, optimizer, marks=[] if kept else [pytest.mark.soak])
    for plan in ("tensor", "one_weird_trick", "per_layer:ways=*:samples")
    for workers in range(2, 9)
    for number, job in enumerate(JOBS)
    for place, optimizer in enumerate(("momentum", "adam", "adagrad"))
    for kept in ((workers + number) % 3 == place and workers in (2, 3, 5),)
]


@cache
def oracle(job: str, optimizer: str, chunks: int) -> nn.Module:
    made = JOBS[job]().with_(optimizer=OPTIMIZERS[optimizer])
    plan = make("sequential", chunks=chunks)
    return train(made, plan, engine="virtual", folder=None, max_updates=UPDATES).model


@pytest.mark.parametrize(("plan", "job"), EQUAL)
def test_same_numbers(plan: Plan, job: str) -> None:
    run = train(JOBS[job](), plan, engine="virtual", folder=None, max_updates=UPDATES)
    assert difference(oracle(job, "momentum", plan.parts), run.model) <= 1e-9


@pytest.mark.parametrize("number", range(24))
def test_random_tables(number: int) -> None:
    assert tried(number) in ("equal", "refused")


@pytest.mark.soak
def test_300_random_tables() -> None:
    found = Counter(tried(number) for number in range(300))
    assert found["equal"] > 200, found


def tried(number: int) -> str:
    """Train a random table on a random network; it must equal one process, or be refused before anything starts."""
    job = random_job(number)
    plan = Plan.parse(random_plan(job, number))
    try:
        set_up(job, plan, "virtual")
    except PlanError as refusal:
        if "cannot be split by" not in str(refusal):
            raise
        return "refused"
    same_numbers(job, plan, "virtual", updates=UPDATES)
    return "equal"


@pytest.mark.parametrize("plan", ["tensor:workers=3", "one_weird_trick", "tensor:workers=4,data=2"])
def test_bytes_are_those_that_are_derived(plan: str, tmp_path: Path) -> None:
    job, parsed = JOBS["residual"](), Plan.parse(plan)
    run = train(job, parsed, folder=tmp_path, max_updates=5)
    setup = set_up(job, parsed, "virtual", 5)
    assert setup.split is not None
    assert isinstance(parsed.method, SplitLayers)
    mesh, rows = parsed.method.mesh(parsed.workers), run.trace.of_kind(Kind.COLLECTIVE)
    programs = {shapes[0][0]: program for shapes, program in setup.split.programs.items()}
    for worker in range(parsed.workers):
        place, replica = mesh.coordinate(worker, "inside"), mesh.coordinate(worker, "data")
        for update in range(5):
            chunks = setup.agenda.mine(update, replica)
            derived = sum(8 * sum(programs[c.samples].numbers(place).values()) for c in chunks)
            mine = rows[(rows["worker"] == worker) & (rows["update"] == update)]
            assert int(mine["bytes"].tolist()[0]) == derived


def test_what_a_worker_holds_is_its_part() -> None:
    """Parameters of split layers, with the optimizer's state and their gradients, are a share of the model's."""
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    job = JOBS["mlp"]().with_(
        model=module, data=(torch.randn(40, 64), torch.randint(5, (40,))), optimizer=OPTIMIZERS["adam"]
    )
    setup = set_up(job, make("tensor", workers=4), "virtual")
    assert setup.split is not None
    whole = sum(p.numel() for p in setup.module.parameters())
    for place in range(4):
        held = sum(p.numel() for p in sliced(setup.module, setup.split.stored, place).parameters())
        assert held / whole == pytest.approx(1 / 4, rel=0.1)


def test_refusals_name_what_is_wrong() -> None:
    job = JOBS["mlp"]()
    cases = {
        "per_layer:ways=9:columns": "the model has no layer '9'",
        "per_layer:ways=0:column": "no way 'column' to split 0; did you mean 'columns'",
        "per_layer:ways=columns": "is not layer:way",
        "per_layer:ways=1:columns": "1 cannot be split by columns: only linear layers and embeddings",
        "per_layer:ways=6:columns,workers=6": "6 cannot be split by columns: it has 5 outputs, too few for 6 workers",
        "tensor:workers=3,data=2": "3 workers cannot be 2 replicas",
    }
    for plan, says in cases.items():
        with pytest.raises(PlanError, match=says):
            train(job, plan, engine="virtual", folder=None)
    with pytest.raises(PlanError, match="cannot honour gradient_clip_norm"):
        train(job.with_(gradient_clip_norm=1.0), "tensor", folder=None)
    with pytest.raises(JobError, match="parts of a layer are computed on the CPU"):
        train(job.with_(device="cuda"), "tensor", folder=None)


def test_a_last_batch_too_small_for_the_grid_is_refused() -> None:
    samples = torch.rand(9, 8), torch.rand(9, 8)
    sgd = partial(torch.optim.SGD, lr=0.1)
    body = partial(nn.Sequential, nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))
    few = Job(model=body, data=samples, loss=nn.MSELoss(), optimizer=sgd, batch_size=4)
    with pytest.raises(JobError, match="a batch of 1, the last of an epoch, has too few samples"):
        train(few, "cannon:workers=4", engine="virtual", folder=None)


def test_an_optimizer_that_looks_at_whole_matrices_is_refused() -> None:
    module = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    job = JOBS["mlp"]().with_(model=module, optimizer=partial(torch.optim.Adafactor, lr=0.01))
    with pytest.raises(PlanError, match="Adafactor steps each number by others"):
        train(job, "tensor", engine="virtual", folder=None)


@pytest.mark.filterwarnings("ignore::paceline.errors.JobWarning")
def test_a_model_that_hides_what_it_does_is_refused_before_anything_starts() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.calls = nn.Linear(12, 16), [0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls[0] += 1
            return self.first(x) * (1.0 + 0.1 * self.calls[0])

    job = JOBS["mlp"]().with_(model=lambda: Odd().double())
    with pytest.raises(JobError, match="Odd computes something else: a loss of"):
        train(job, "tensor", engine="virtual", folder=None)


def test_inputs_of_other_sizes_are_refused() -> None:
    class Set(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 30

        def __getitem__(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.ones(3, 12, dtype=torch.float64), torch.tensor(n % 5)

    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5)).double()
    step = _ragged
    job = JOBS["mlp"]().with_(model=model, data=Set(), loss=None, step=step)
    with pytest.raises(JobError, match="the model was split for inputs of"):
        train(job, "tensor", engine="virtual", folder=None)


def _ragged(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cut sequences to lengths that come with later batches."""
    x, y = batch
    length = 3 if 0 in y[:2].tolist() or random.Random(int(y.sum())).random() < 0.4 else 2
    return nn.functional.cross_entropy(model(x[:, :length]).mean(1), y)


@pytest.mark.parametrize(("plan", "job", "optimizer"), SWEPT)
def test_the_whole_table_of_equalities(plan: str, job: str, optimizer: str) -> None:
    if plan.startswith("per_layer") and job == "lstm":
        return
    parsed = Plan.parse(plan.replace(":workers", ",workers") if "ways" in plan else plan)
    small = JOBS[job]().with_(optimizer=OPTIMIZERS[optimizer])
    try:
        run = train(small, parsed, engine="virtual", folder=None, max_updates=UPDATES)
    except PlanError as refusal:
        if "cannot be split by" not in str(refusal):
            raise
        return
    assert difference(oracle(job, optimizer, 1), run.model) <= 1e-9


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_keeps_a_share_of_what_its_stage_says(stage: int) -> None:
    """Optimizer state, and in stage 3 gradients and parameters, as they lie between updates."""
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).double()
    x = torch.randn(40, 64, dtype=torch.float64)
    job = JOBS["mlp"]().with_(model=module, data=(x, torch.randint(5, (40,))), optimizer=OPTIMIZERS["adam"])
    setup = set_up(job, make("zero", workers=4, stage=stage), "virtual")
    assert isinstance(setup.plan.method, SplitLayers)
    sums = SplitArithmetic(setup, setup.plan.method)
    shares = sums.compute(0, 0)
    whole = sum(p.nbytes for p in module.parameters())
    for place, part in enumerate(sums.parts):
        assert part.shares is not None
        assert not part.shares.gathered, "nothing is gathered between updates"
        assert not part.shares.unscattered
        gradients = sum(g.nbytes for g in shares[place].gradients if g is not None)
        assert gradients / whole == pytest.approx(1 / 4, rel=0.1)
    sums.step(0, 1, shares)
    for part, store in zip(sums.parts, sums.stores, strict=True):
        state = sum(v.nbytes for each in store.optimizer.state.values() for v in each.values() if v.dim())
        assert state / (2 * whole) == pytest.approx(1 / 4, rel=0.1)
        assert sum(p.nbytes for p in part.replica.parameters) / whole == pytest.approx(1 / 4, rel=0.1)


@pytest.mark.parametrize("plan", ["zero", "zero:stage=2", "zero:stage=1", "tensor"])
def test_the_explorer_walks_the_movements_that_workers_make(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an update of two chunks; under ZeRO one worker has no samples in the second."""

    def chunks(method: SplitLayers, mesh: Mesh, agenda: Agenda, update: int, worker: int) -> list[Chunk]:
        first = agenda.chunks(update)[0]
        return [first, first._replace(stop=first.start) if method.stage and worker else first]

    def recorded(requests: Sequence[Request]) -> list[torch.Tensor]:
        steps.append(requests[0].step)
        return move_together(requests)

    setup = set_up(JOBS["mlp"](), Plan.parse(plan, 2), "virtual")
    assert isinstance(setup.plan.method, SplitLayers)
    assert setup.split is not None
    steps: list[ProgramStep] = []
    monkeypatch.setattr(SplitLayers, "chunks", chunks)
    monkeypatch.setattr(planning, "move_together", recorded)
    SplitArithmetic(setup, setup.plan.method).compute(0, 0)
    assert steps == list(movements_of_update(setup.split.program, setup.split.stage, chunks=2))


@pytest.mark.parametrize("plan", ["zero", "zero:stage=2", "zero:stage=1"])
def test_zero_sends_what_the_paper_says(plan: str) -> None:
    """2 N (P-1)/P numbers for an update in stages 1 and 2, 3 N (P-1)/P in stage 3."""
    setup = set_up(JOBS["mlp"](), Plan.parse(plan, 4), "virtual")
    assert setup.split is not None
    program, count = setup.split.program, sum(p.numel() for p in setup.module.parameters())
    sent = sum(sum(program.numbers(place).values()) for place in range(4))
    assert sent == (3 if setup.split.stage == 3 else 2) * count * 3


def test_rounding_in_float32_is_no_reason_to_refuse() -> None:
    """Split sums round otherwise: here a maximum is another one, and the gradient differs by more than rounding."""

    def model() -> nn.Module:
        blocks = [part for _ in range(4) for part in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
        ends = nn.MaxPool2d(4), nn.Flatten(), nn.Linear(1024, 10)
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), *blocks, *ends)

    generator = torch.Generator().manual_seed(0)
    data = torch.randn(32, 3, 32, 32, generator=generator), torch.randint(10, (32,), generator=generator)
    job = JOBS["mlp"]().with_(model=model, data=data, batch_size=16, seed=0)
    assert set_up(job, make("tensor", workers=2), "virtual").split is not None
