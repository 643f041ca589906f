"""Cutting models, tables of one's own, drawings of runs, and what jobs may ask of pipelines."""

from __future__ import annotations

import random
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.algorithms.schedules.proof import prove_table
from paceline.algorithms.schedules.user_table import UserTable, read
from paceline.errors import JobError, NotFinite, PlanError, RunFolderError, UsageError, WorkerFailed
from paceline.interfaces.api.train import train
from paceline.interfaces.testing.conformance import ENGINES, check_run, difference, same_numbers
from paceline.interfaces.testing.jobs import JOBS, SAMPLES
from paceline.planning.explain.drawing import draw, draw_page, draw_run, open_run
from paceline.planning.explain.proving import prove_plan
from paceline.planning.explain.timetable import MOVES, measured, summary_line
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan, make
from paceline.runtime.engines.replay.replay import replay
from paceline.runtime.engines.setup import memory_line, set_up
from paceline.training.data.source import Reader
from paceline.training.stages import memory_estimate
from paceline.training.stages.memory_estimate import OPERATION, Live, weigh_all
from tests.training.stages.cuttable import job_of


def pipeline_of(plan: Plan) -> Pipeline:
    assert isinstance(plan.method, Pipeline)
    return plan.method


# --- jobs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_clipping_and_skipping_see_the_whole_gradient(engine: str) -> None:
    job = JOBS["residual"]()
    x, y = job.data
    x = x.clone()
    x[5] = float("nan")
    spoilt = job.with_(
        data=(x, y), on_nan="skip", gradient_clip_norm=0.1, loss_denominator=lambda batch: float(len(batch[1]))
    )
    for plan in (make("interleaved", micro_batches=3), make("one_f_one_b", workers=3)):
        same_numbers(job.with_(gradient_clip_norm=0.05, accumulate_grad_batches=2), plan, engine)
        same_numbers(spoilt, plan, engine)


def test_pipelines_without_a_flush_refuse_what_needs_the_whole_gradient() -> None:
    for change in ({"gradient_clip_norm": 1.0}, {"on_nan": "skip"}):
        with pytest.raises(PlanError, match="never has the gradient of the whole model"):
            train(JOBS["mlp"]().with_(**change), "pipedream", engine="virtual", folder=None)
    with pytest.raises(PlanError, match="keeps no checkpoints"):
        train(JOBS["mlp"](), "spectrain", folder="unused", checkpoint_every=5)
    job = JOBS["mlp"]().with_(optimizer=partial(torch.optim.SGD, lr=0.1))
    with pytest.raises(PlanError, match="SGD has none"):
        train(job, "spectrain", engine="virtual", folder=None)
    with pytest.raises(PlanError, match="micro_batches=3 or more"):
        Plan.parse("pipedream:workers=3,mode=two_buffers,micro_batches=2")


def test_a_loss_that_is_not_finite_stops_the_run_with_its_samples() -> None:
    job = JOBS["mlp"]()
    x, y = job.data
    x = x.clone()
    x[7] = float("inf")
    bad = job.with_(data=(x, y))
    with pytest.raises(NotFinite, match="7"):
        train(bad, "one_f_one_b", engine="virtual", folder=None)
    with pytest.raises(WorkerFailed, match="worker 1 failed first: the loss is nan"):
        train(bad, "one_f_one_b", folder=None)


def test_loaders_read_ahead_what_each_worker_needs(tmp_path: Path) -> None:
    class Set(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            noise = torch.randn(12, dtype=torch.float64) * 0.1
            return torch.full((12,), float(index % 5), dtype=torch.float64) + noise, torch.tensor(index % 5)

    job = JOBS["mlp"]().with_(data=Set())
    ahead = train(job.with_(num_workers=1), "interleaved:cuts=1+3+5", folder=tmp_path, max_updates=6)
    alone = train(job, "interleaved:cuts=1+3+5", engine="virtual", folder=None, max_updates=6)
    assert difference(ahead.model, alone.model) == 0.0


def test_evaluation_on_the_way_is_of_one_version_of_all_stages() -> None:
    job = JOBS["mlp"]()
    job = job.with_(test=job.data, evaluate_every=4)
    for plan in ("one_f_one_b:workers=3,cuts=2+4", "pipedream:workers=3,cuts=2+4", "interleaved:cuts=1+2+3"):
        runs = [train(job, plan, engine=engine, folder=None, max_updates=12) for engine in ENGINES]
        losses = [[(h["updates"], h["test_loss"]) for h in run.history] for run in runs]
        assert losses[0] == losses[1]
        assert [updates for updates, _ in losses[0]] == [4, 8, 12]
        short = train(job, plan, engine="virtual", folder=None, max_updates=4)
        assert short.history[-1]["test_loss"] == losses[0][0][1], "as if the training had ended there"


def test_stages_compute_on_the_cpu() -> None:
    with pytest.raises(JobError, match="stages of a pipeline are computed on the CPU"):
        train(JOBS["mlp"]().with_(device="cuda"), "gpipe", folder=None)


def test_one_worker_is_one_process() -> None:
    job = JOBS["residual"]()
    for plan in ("gpipe:workers=1", "pipedream:workers=1"):
        found = train(job, plan, engine="virtual", folder=None, max_updates=9)
        chunks = Plan.parse(plan).parts
        alone = train(job, make("sequential", chunks=chunks), engine="virtual", folder=None, max_updates=9)
        assert difference(found.model, alone.model) < 1e-12


# --- tables of one's own --------------------------------------------------------------------------------------------

STASHING = """
# two updates, then all is quiet
keeps 2 1
worker 0   F0  F1  .   B0U F2    B1U   F3   .    B2U  B3U
worker 1   .   F0  B0U F1  B1U   F2    B2U  F3   B3U
"""


def table_file(folder: Path, text: str) -> str:
    file = folder / "mine.txt"
    file.write_text(text)
    return f"table:file={file}"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_of_ones_own_is_proved_drawn_and_run(engine: str, tmp_path: Path) -> None:
    reversed_backwards = "worker 0 F0 F1 F2 B2 B1 B0U\nworker 1: F0 F1 F2 B2 B1 B0U\n"
    plan = Plan.parse(table_file(tmp_path, reversed_backwards))
    assert (plan.workers, plan.parts) == (2, 3)
    assert "worker 1   .   F0  F1  F2  B2  B1  B0U ." in draw(plan)
    same_numbers(JOBS["residual"](), plan, engine)
    check_run(train(JOBS["residual"](), plan, engine=engine, folder=None, max_updates=12), plan)


def test_a_table_may_hold_several_updates_and_stale_weights(tmp_path: Path) -> None:
    plan = table_file(tmp_path, STASHING) + ",cuts=3"
    runs = [train(JOBS["mlp"](), plan, engine=engine, folder=None, max_updates=10) for engine in ENGINES]
    assert difference(runs[0].model, runs[1].model) == 0.0
    check_run(runs[0], Plan.parse(plan))
    rows = runs[0].trace.rows
    stale = [int(r["version"] - 1 - r["base"]) for r in rows if r["kind"] == 3 and r["shard"] == 0]
    assert stale == [0, 1, 1, 1, 0, 1, 1, 1, 0, 1]  # quiet after every four


def test_a_run_keeps_its_table_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    run = train(JOBS["mlp"](), table_file(tmp_path, STASHING) + ",cuts=3", folder=tmp_path / "runs", max_updates=10)
    picture = draw(Plan.recorded(run.record.plan, run.record.table))
    table_file(tmp_path, "worker 0 F0 B0U\nworker 1 F0 B0U\n")
    assert run.path is not None
    assert replay(run.path).matches
    (tmp_path / "mine.txt").unlink()
    assert replay(run.path).matches
    assert picture in draw_run(open_run(run.path))


def test_what_drawing_prints_can_be_handed_in_again() -> None:
    for plan in ("one_f_one_b:workers=3", "interleaved:workers=2", "zero_bubble:workers=4", "spectrain:workers=2"):
        picture = [line for line in draw(Plan.parse(plan)).splitlines() if line.startswith("worker")]
        text = "\n".join([*picture, *(["predicts"] if "spec" in plan else [])])
        parsed = Plan.parse(plan)
        method = pipeline_of(parsed)
        expected = method.table(parsed.workers, (method.micro_batches,) * (method.schedule.span or 8))
        assert read(text).lines == expected.lines
        assert read(text).stage_to_worker == expected.stage_to_worker
        prove_table(read(text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "each worker must have a line"),
        ("worker 0 F0 B0 U\nworker 2 F0 B0 U", r"numbered from 0; there are \[0, 2\]"),
        ("worker 0 F0 X0 U", "line 1: 'X0' is no work"),
        ("workers 0 F0 B0 U", "line 1: 'workers 0 F0 B0 U' is neither"),
        ("worker 0 F0 B0 U\nworker 1 F0.0 B0.0 U.0", "workers 0 and 1 both work on stage 0"),
        ("worker 0 F0.0 F0.2 B0.2 B0.0 U.2 U.0", "numbered from 0 without a gap"),
        ("keeps 1\nworker 0 F0 B0 U\nworker 1 F0 B0 U", "keeps has 1 numbers, and there are 2 stages"),
        ("worker 0 F0 F1 B0 B1 U F2 B2 U", "of as many micro-batches each, and are of 2, 1"),
        ("worker 0 F0 B0\nworker 1 F0 B0U", "stage 0 makes no update; write U after its last backward"),
        ("worker 0 F0 B0U\nworker 1 F0 B1U", "no update of micro-batch 1: it needs a B1, then U"),
    ],
)
def test_a_wrong_text_is_told_by_its_line(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        assert UserTable(text, "mine.txt").span


def test_a_wrong_table_is_refused_before_anything_starts(tmp_path: Path) -> None:
    plan = table_file(tmp_path, "worker 0 F0 F1 B0 B1 U\nworker 1 F1 F0 B0 B1 U\n")
    with pytest.raises(PlanError, match="it wants micro-batch 1, and 0 is what comes next"):
        train(JOBS["mlp"](), plan, folder=None)
    with pytest.raises(UsageError, match="cannot be read"):
        Plan.parse("table:file=/nowhere/mine.txt")


# --- pictures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["zero_bubble:workers=2", "pipedream:workers=2", "interleaved:workers=2"])
def test_a_run_is_drawn_as_it_was_measured_under_its_table(plan: str, tmp_path: Path) -> None:
    run = train(JOBS["mlp"](), plan, engine="virtual", folder=tmp_path, max_updates=20)
    assert run.path is not None
    said = draw_run(open_run(run.path))
    assert said.startswith(draw(Plan.parse(run.record.plan)))
    below = said.partition("As it ran")[2]
    lines = [line for line in below.splitlines() if line.startswith("worker")]
    assert len(lines) == 2
    assert all("F" in line and ("B" in line or "I" in line) for line in lines)
    assert {len(line) for line in lines} == {120}
    page = draw_page(open_run(run.path))
    assert page.count("<svg") == 2
    assert page.count("<rect") > 40
    assert all(f">{name}</span>" in page for name in ("update", "waits"))
    assert draw_page(Plan.parse(plan)).count("<svg") == 1


def test_what_a_worker_neither_works_nor_waits_it_moves_messages(tmp_path: Path) -> None:
    """Of real processes, which copy them."""
    run = train(JOBS["mlp"](), "gpipe:workers=2", folder=tmp_path, max_updates=4)
    assert run.path is not None
    spans = measured(run.trace.rows, pipeline_of(Plan.parse(run.record.plan)).table(2, (4,)))
    moving = [span for span in spans if span.what == MOVES]
    assert moving
    for worker in range(2):
        mine = [span for span in spans if span.worker == worker]
        assert all(one.end <= other.start for one, other in pairwise(mine))
    assert "moved messages for" in summary_line(spans, 2)
    assert ">messages</span>" in draw_page(open_run(run.path))
    assert "~    moves messages" in draw_run(open_run(run.path))


def test_a_picture_for_a_job_tells_the_memory_of_its_workers() -> None:
    line = memory_line(set_up(JOBS["mlp"](), Plan.parse("gpipe:workers=2"), "virtual"))
    assert re.fullmatch(r"For .+, workers take at most \d+, \d+ MiB for their tensors\.", line)
    assert draw(Plan.parse("gpipe:workers=2"), more=[line]).endswith(line)


def test_colours_are_for_terminals() -> None:
    plain, coloured = draw(Plan.parse("gpipe")), draw(Plan.parse("gpipe"), colours=True)
    assert "\x1b" not in plain
    assert coloured.count("\x1b[34mF0\x1b[0m") == 3  # two workers and the legend


# --- memory ---------------------------------------------------------------------------------------------------------


def test_what_is_weighed_is_what_a_stage_is_made_of() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 5))
    job = job_of(model, 64, optimizer=partial(torch.optim.Adam, lr=0.01), batch_size=56)
    setup = set_up(job, make("gpipe", cuts="2"), "virtual")
    assert setup.blueprint is not None
    chunk = max(setup.agenda.filled(0), key=lambda chunk: chunk.samples)
    reader = Reader(setup.source, setup.order(), 0, lambda _: None)
    first, last = weigh_all(setup.job, setup.module, setup.blueprint, reader, chunk)
    weights = 8 * (64 * 256 + 256)
    assert (first.gradients, first.always // weights) == (weights, 3)  # the weights, and Adam's two
    inputs = 8 * 14 * (64 + 256)  # the input of each of its layers, and what goes on
    assert inputs < first.kept < inputs + 8 * OPERATION
    assert first.forward >= first.kept
    assert first.later.most > first.kept + weights / 2  # a gradient, before it is added to the others
    assert first.later.left == 0
    assert first.first.left == weights
    assert last.kept > 8 * 14 * (256 + 64)


@pytest.mark.parametrize("recompute", ["none", "all"])
def test_what_a_stage_keeps_is_without_what_it_has_sent(recompute: str) -> None:
    layers = [part for _ in range(4) for part in (nn.Linear(128, 128), nn.ReLU())]
    job = job_of(nn.Sequential(*layers, nn.Linear(128, 5)), 128, batch_size=56)
    setup = set_up(job, make("gpipe", cuts="4", recompute=recompute), "virtual")
    assert setup.blueprint is not None
    chunk = max(setup.agenda.filled(0), key=lambda chunk: chunk.samples)
    reader = Reader(setup.source, setup.order(), 0, lambda _: None)
    first, last = weigh_all(setup.job, setup.module, setup.blueprint, reader, chunk)
    tensor, room = 8 * 14 * 128, 40 * OPERATION
    if recompute == "all":
        assert tensor <= first.kept < tensor + 200  # its input
        assert 2 * tensor <= last.kept < 2 * tensor + 200  # and the last one the batch, for its targets
        assert first.later.most > first.kept + 2 * tensor
    else:
        assert 3 * tensor <= first.kept < 3 * tensor + room


def test_of_a_workspace_counts_what_is_written() -> None:
    """Also where the heap has room left between what others keep."""
    chance, sizes = random.Random(0), (10_000, 100_000, 300_000, 700_000, 1_500_000, 3_000_000)
    for _ in range(12):
        keeps = [torch.ones(chance.choice(sizes)) for _ in range(60)]
        chance.shuffle(keeps)
        del keeps[::2]
        kept, result, asked = _of_an_lstm()
        if asked is not None:  # where oneDNN computes it
            assert 0.2 * asked < kept - result < 0.6 * asked
        del keeps


def _of_an_lstm() -> tuple[int, int, int | None]:
    """(bytes that it keeps, of its result, and what it asks for as a workspace)"""
    lstm, x = nn.LSTM(64, 64, batch_first=True), torch.randn(64, 50, 64)
    with Live() as live:
        result = lstm(x)[0]
        kept = live.bytes
        result.sum().backward()
    asked: list[int] = []

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if func is memory_estimate.FORWARD:
                asked.append(found[memory_estimate.PLACE].nbytes)
            return found

    with Sees():
        lstm(x)
    return kept, result.nbytes, asked[0] if asked else None


def test_what_does_not_fit_is_refused_before_anything_starts_and_fits_when_it_is_cut() -> None:
    layers = [part for _ in range(4) for part in (nn.Linear(600, 600), nn.ReLU())]
    job = job_of(nn.Sequential(*layers, nn.Linear(600, 5)), 600)
    with pytest.raises(PlanError, match=r"worker 0 would take 3[0-9] MiB for its tensors, and memory=24"):
        train(job, "layers:workers=1,memory=24", folder=None)
    run = train(job, "one_f_one_b:memory=24,balance=memory", folder=None, max_updates=3)
    assert len(run.summary()["peak_memory"]) == 2
    assert all(each > 8 << 20 for each in run.summary()["peak_memory"])


def test_a_number_in_a_table_takes_no_more_room_than_it_can_use(tmp_path: Path) -> None:
    text = "keeps 99999999999 1\nslots 99999999999\nworker 0 F0 F7 B0 B7U\nworker 1 F0 F7 B0 B7U\n"
    plan = Plan.parse(table_file(tmp_path, text))
    table = plan.method.table(plan.workers, (2,))
    assert (table.versions, table.slots) == ((2, 1), 2)
    same_numbers(JOBS["residual"](), plan, "local")


def test_what_is_said_of_stages_is_said_of_stages_that_there_are() -> None:
    for text, says in (
        ("gpipe:cuts=a+b+c", r"3 cuts \(a\+b\+c\) make 4 stages, and the plan has 2"),
        ("gpipe:recompute=7", "stages from 0 to 1"),
        ("interleaved:recompute=0+x", "stages from 0 to 3"),
        ("mine.txt", "for a table of your own in mine.txt write table:file=mine.txt"),
    ):
        with pytest.raises(PlanError, match=says):
            Plan.parse(text)


def test_a_table_that_is_too_large_to_be_walked_is_refused_at_once() -> None:
    for text, says in (
        ("gpipe:micro_batches=1000000000", r"would have [\d,]+ cells.*at most 200,000 are proved"),
        ("one_f_one_b:workers=1000000", "Prove at most 128"),
    ):
        with pytest.raises(PlanError, match=says):
            prove_plan(Plan.parse(text))


def test_a_wrong_table_is_a_proof_that_failed(tmp_path: Path) -> None:
    found = prove_plan(Plan.parse(table_file(tmp_path, "worker 0 F0 F1 B0 B1 U\nworker 1 F1 F0 B0 B1 U\n")))
    assert found.holds is False
    assert found.says[-1] == "  => it wants micro-batch 1, and 0 is what comes next"


def test_a_folder_that_is_no_run_or_a_damaged_one_is_told(tmp_path: Path) -> None:
    run = train(JOBS["mlp"](), "gpipe:workers=2", engine="virtual", folder=tmp_path / "runs", max_updates=3)
    assert run.path is not None
    with pytest.raises(RunFolderError, match=r"has no run.json.*table:file="):
        open_run(tmp_path)
    (run.path / "trace.arrow").write_text("xx")
    with pytest.raises(RunFolderError, match="cannot be drawn, something of the run is missing or damaged"):
        open_run(run.path)
    for text in ("{", "[]", "{}"):
        (run.path / "run.json").write_text(text)
        with pytest.raises(RunFolderError, match="damaged"):
            open_run(run.path)
