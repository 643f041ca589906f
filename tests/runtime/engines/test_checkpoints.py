"""Runs that are killed and resumed: a few by SIGKILL to the whole process tree, the others by an exception in the
parent, which kills the workers at once. benchmarks/resuming kills more often, and at random moments.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import load_file
from torch import nn

import paceline as pl
from paceline.errors import CheckpointWarning, PlanError, RunFolderError, RunStopped, UsageError
from paceline.interfaces.testing.conformance import each_sample_once, no_update_lost, replays, staleness_identity
from paceline.interfaces.testing.jobs import bag
from paceline.interfaces.testing.killing import kill_tree
from paceline.runtime.engines import checkpoint_manager, checkpoints
from paceline.runtime.runs.progress import Progress
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind

JOB = """
import time
from functools import partial
from pathlib import Path
import torch
from torch import nn
import paceline as pl

torch.set_num_threads(1)
x = torch.randn(600, 12, generator=torch.Generator().manual_seed(0))
y = torch.randint(4, (600,), generator=torch.Generator().manual_seed(1))

slowly = Path(__file__).with_name("slowly")

class Pause(nn.Module):
    rows = 0

    def forward(self, x):
        rows = len(x)  # cannot be traced, so that the layer stays whole, whether the file is there or not
        if self.training and slowly.exists():
            Pause.rows += rows
            time.sleep(0.02 if Pause.rows < 600 else float(slowly.read_text()))
        return x

def net():
    return nn.Sequential(Pause(), nn.Linear(12, 24), nn.Tanh(), nn.BatchNorm1d(24), nn.Dropout(0.1), nn.Linear(24, 4))

job = pl.Job(
    model=net, data=(x, y), test=(x[:100], y[:100]), loss=nn.CrossEntropyLoss(), batch_size=12, epochs=2, seed=3,
    optimizer=partial(torch.optim.Adam, lr=0.005), evaluate_every=40,
    lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995),
)
"""
UPDATES = 100
EVERY = 20


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("job") / "small.py"
    file.write_text(JOB)
    return file


def job_of(file: Path) -> pl.Job:
    from paceline.training.jobs.loading import load_job

    return load_job(str(file))


@contextlib.contextmanager
def slowly(file: Path, later: float = 1.0) -> Iterator[None]:
    """Slow a run down, so that the event that a test waits for happens before it ends.

    A pass takes so many seconds `later`, from about the 50th update on: a disk may need long for a checkpoint.
    """
    flag = file.with_name("slowly")
    flag.write_text(str(later))
    try:
        yield
    finally:
        flag.unlink()


def paceline(*arguments: object) -> subprocess.Popen[str]:
    """Start a command in its own process, which a test may kill."""
    command = [sys.executable, "-W", "ignore", "-m", "paceline", "train", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def newest(runs: Path) -> int:
    """Return the number of the newest complete checkpoint; 0 before there is one."""
    return max((int(p.name) for p in runs.glob("*/checkpoints/*") if p.name.isdigit()), default=0)


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 300
    while not condition() and process.poll() is None:
        assert time.monotonic() < end, "this did not happen in five minutes"
        time.sleep(0.002)


def killed_and_resumed(file: Path, runs: Path, plan: str, workers: tuple[int, ...]) -> Run:
    """End every part but the last by SIGKILL to the whole tree, after two checkpoints and then one more."""
    *first, last = workers
    for part, count in enumerate(first):
        begun = ["--resume", *runs.iterdir()] if part else [file, "--plan", plan, "--runs", runs]
        with slowly(file):
            process = paceline(*begun, "-w", count, "--checkpoint-every", EVERY)
            enough = newest(runs) + (EVERY if part else 2 * EVERY)
            until(lambda: newest(runs) >= enough, process)  # noqa: B023
            kill_tree(psutil.Process(process.pid))
            _, said = process.communicate()
        assert process.returncode == -signal.SIGKILL, said
    (folder,) = runs.iterdir()
    return pl.train(resume=folder, workers=last)


class Interrupted(Exception):
    pass


def interrupted_and_resumed(file: Path, runs: Path, plan: str, workers: tuple[int, ...]) -> Run:
    """End every part but the last by an exception in the parent, after two checkpoints and then one more."""
    *first, last = workers
    for part, count in enumerate(first):
        enough = newest(runs) + (EVERY if part else 2 * EVERY)

        def poll(_: Progress, enough: int = enough) -> None:
            if newest(runs) >= enough:
                raise Interrupted

        begun = (
            partial(pl.train, resume=next(runs.iterdir()))
            if part
            else partial(pl.train, job_of(file), plan, folder=runs)
        )
        with slowly(file), pytest.raises(Interrupted):
            begun(workers=count, progress=poll, checkpoint_every=EVERY)
    (folder,) = runs.iterdir()
    return pl.train(resume=folder, workers=last)


def ends_with_the_bits_of_the_undisturbed(run: Run, file: Path) -> None:
    whole = pl.train(job_of(file), run.record.plan, folder=None)
    assert run.summary()["parameters_sha256"] == whole.summary()["parameters_sha256"]
    assert [h["updates"] for h in run.history] == [h["updates"] for h in whole.history]
    assert [h["test_loss"] for h in run.history] == [h["test_loss"] for h in whole.history]
    assert len(run.record.lives) > 1
    each_sample_once(run)


def has_a_valid_history(run: Run) -> None:
    assert len(run.record.lives) > 1
    each_sample_once(run)
    no_update_lost(run)
    staleness_identity(run)
    replays(run)


def test_killed_where_workers_keep_step(job_file: Path, tmp_path: Path) -> None:
    run = killed_and_resumed(job_file, tmp_path, "ring", (2, 2))
    ends_with_the_bits_of_the_undisturbed(run, job_file)
    assert pl.replay(run).matches


@pytest.mark.soak
def test_killed_twice_where_there_is_a_server(job_file: Path, tmp_path: Path) -> None:
    has_a_valid_history(killed_and_resumed(job_file, tmp_path, "downpour:shards=3", (3, 1, 4)))


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("ceiling", marks=pytest.mark.soak),
        "easgd:every=5",
        pytest.param("diloco:every=9", marks=pytest.mark.soak),
        pytest.param("diloco:every=9,fragments=4,codec=onebit", marks=pytest.mark.soak),
        "diloco:every=9,fragments=2,overlap=4,codec=onebit",
        "gossip",
        "sandblaster:memory=3",
        "ddp",
        "backup:backups=0",
        "one_f_one_b",
        "tensor",
        "zero",
    ],
)
@pytest.mark.filterwarnings("ignore:plan sandblaster:paceline.errors.JobWarning")
def test_a_plan_that_keeps_step_ends_with_the_bits_of_the_undisturbed_run(
    plan: str, job_file: Path, tmp_path: Path
) -> None:
    ends_with_the_bits_of_the_undisturbed(interrupted_and_resumed(job_file, tmp_path, plan, (2, 2)), job_file)


AT_SERVER = [
    ("downpour:shards=3", (3, 1, 4)),
    ("ssp:bound=1,shards=2", (3, 2)),
    ("backup", (3, 4)),
    ("dc_asgd:mode=adaptive", (2, 3)),
    ("easgd:mode=asynchronous,every=4", (2, 3, 1)),
    pytest.param("gossip:mode=asynchronous", (3, 3), marks=pytest.mark.soak),
    ("gossip:mode=asynchronous", (2, 3)),
    ("parallel_sgd:mode=map_reduce,parts=10", (2, 3)),
]


@pytest.mark.parametrize(("plan", "workers"), AT_SERVER)
def test_a_plan_with_a_server_ends_with_a_valid_history(
    plan: str, workers: tuple[int, ...], job_file: Path, tmp_path: Path
) -> None:
    has_a_valid_history(interrupted_and_resumed(job_file, tmp_path, plan, workers))


def test_hogwild_goes_on_without_losing_or_doubling_a_batch(job_file: Path, tmp_path: Path) -> None:
    run = interrupted_and_resumed(job_file, tmp_path, "hogwild", (2, 3))
    applied = sorted(run.trace.of_kind(Kind.APPLY)["update"].tolist())
    assert applied == list(range(UPDATES))
    each_sample_once(run)


def test_a_replay_stops_on_the_way_also_after_a_resumption(job_file: Path, tmp_path: Path) -> None:
    run = interrupted_and_resumed(job_file, tmp_path, "downpour", (2, 3))
    begins = run.record.lives[1].updates
    for update in (begins - 5, begins + 5):
        stopped = pl.replay(run, until=update)
        assert stopped.updates == update
        assert stopped.guilty_samples is not None


def waiting(output: torch.Tensor, target: torch.Tensor, *, stopped: Path) -> torch.Tensor:
    """A loss that is slow in workers until the run was stopped, so that it does not end before."""
    if multiprocessing.parent_process() is not None and not stopped.exists():
        time.sleep(0.01)
    return nn.functional.cross_entropy(output, target)


@pytest.mark.parametrize("plan", ["downpour:workers=2", "sequential"])
def test_embedding_tables_are_resumed(plan: str, tmp_path: Path) -> None:
    def stop(state: Progress) -> None:
        if state.updates > 50 and not stopped.exists():
            stopped.touch()
            os.kill(os.getpid(), signal.SIGTERM)

    stopped, runs = tmp_path / "stopped", tmp_path / "runs"
    rows = bag(partial(torch.optim.Adagrad, lr=0.1)).with_(epochs=60, loss=partial(waiting, stopped=stopped))
    with pytest.raises(RunStopped):
        pl.train(rows, plan, folder=runs, checkpoint_every=0, progress=stop)
    (folder,) = runs.iterdir()
    run = pl.train(resume=folder)
    assert len(run.record.lives) == 2
    replays(run)


# --- when --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["ring", pytest.param("easgd:mode=asynchronous", marks=pytest.mark.soak)])
def test_sigterm_to_all_processes_has_a_checkpoint_written_and_ends_the_run(
    plan: str, job_file: Path, tmp_path: Path
) -> None:
    with slowly(job_file):
        process = paceline(job_file, "--plan", plan, "--runs", tmp_path, "--checkpoint-every", 0)
        until(lambda: any(p.stat().st_size > 5000 for p in tmp_path.glob("*/trace.arrow")), process)
        root = psutil.Process(process.pid)
        for each in [root, *root.children(recursive=True)]:  # as a cluster does before it takes a machine away
            each.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 143, said
    (folder,) = tmp_path.iterdir()
    assert f"paceline train --resume {folder}" in " ".join(said.split())
    assert json.loads((folder / "run.json").read_text())["status"] == "stopped"
    assert newest(tmp_path) > 0


def test_sigterm_ends_a_run_that_no_longer_moves(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_ever(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if multiprocessing.parent_process() is not None:
            threading.Event().wait()
        return nn.functional.cross_entropy(output, target)

    def stop(_: Progress) -> None:
        if not told:
            told.append(os.kill(os.getpid(), signal.SIGTERM))

    told: list[None] = []
    monkeypatch.setattr(checkpoint_manager, "PATIENCE", 2.0)
    with pytest.raises(RunStopped, match=r"no update was finished in .* it has no checkpoint yet") as stopped:
        pl.train(
            job_of(job_file).with_(loss=wait_for_ever), "ring", 2, folder=tmp_path, progress=stop, checkpoint_every=0
        )
    assert stopped.value.exit_code == 143


@pytest.mark.parametrize("plan", ["parallel_sgd", "downpour:shards=2"])
def test_sigusr1_has_one_written_and_the_run_goes_on(plan: str, job_file: Path, tmp_path: Path) -> None:
    def ask(state: Progress) -> None:
        if state.updates > 10 and not asked:
            asked.append(os.kill(os.getpid(), signal.SIGUSR1))

    asked: list[None] = []
    with slowly(job_file, later=0.02):
        pl.train(job_of(job_file), plan, 2, folder=tmp_path, checkpoint_every=0, progress=ask)
    kept = {int(path.name) for path in tmp_path.glob("*/checkpoints/*")}
    assert UPDATES in kept  # every run that keeps checkpoints has one of its end
    assert any(0 < updates < UPDATES for updates in kept)


def test_by_seconds(job_file: Path, tmp_path: Path) -> None:
    with slowly(job_file, later=0.02):
        pl.train(job_of(job_file), "ring", 2, folder=tmp_path, checkpoint_every="0.1s")
    assert any(0 < int(path.name) < UPDATES for path in tmp_path.glob("*/checkpoints/*"))  # one of the end is kept


# --- what is kept ------------------------------------------------------------------------------------------------


def stopped(file: Path, folder: Path, plan: str = "ring", job: pl.Job | None = None) -> Path:
    """Return a run that was stopped before its end."""

    def stop(state: Progress) -> None:
        if state.updates > 30 and not told:
            told.append(os.kill(os.getpid(), signal.SIGTERM))

    told: list[None] = []
    with slowly(file), pytest.raises(RunStopped):
        pl.train(job or job_of(file), plan, 2, folder=folder, progress=stop, checkpoint_every=0)
    (run,) = folder.iterdir()
    return run


@pytest.mark.parametrize("plan", ["ring", "downpour:shards=2", "gossip:mode=asynchronous"])
def test_weights_are_safetensors_of_the_model_as_a_replay_has_it_then(
    plan: str, job_file: Path, tmp_path: Path
) -> None:
    path = stopped(job_file, tmp_path, plan)
    place = path / "checkpoints" / str(newest(tmp_path))
    pl.train(resume=path)
    model = job_of(job_file).make_model()
    model.load_state_dict(load_file(place / "model.safetensors"))
    if plan != "downpour:shards=2":  # whose shards stand at different versions when it is cut
        then = pl.replay(path, until=int(place.name)).model
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), then.state_dict().values(), strict=True)
        )
    assert load_file(place / "state.safetensors")


def test_tied_weights_are_there_under_both_names(job_file: Path, tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(12, 12), nn.Linear(12, 12)
            self.other.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.other(torch.tanh(self.one(x)))
            return result

    x = torch.randn(100, 12, generator=torch.Generator().manual_seed(0))
    job = pl.Job(Tied, (x, x), nn.MSELoss(), optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=10, epochs=200)
    path = stopped(job_file, tmp_path, job=job)
    Tied().load_state_dict(load_file(path / "checkpoints" / str(newest(tmp_path)) / "model.safetensors"))


def test_a_checkpoint_that_was_being_written_is_passed_over(job_file: Path, tmp_path: Path) -> None:
    path = stopped(job_file, tmp_path)
    place = path / "checkpoints" / str(newest(tmp_path))
    half = place.with_name("99999.new")
    shutil.copytree(place, half)
    (half / "checkpoint.json").write_text("{")
    found = checkpoints.newest(path)
    assert found is not None
    assert found.updates == int(place.name)


def test_a_checkpoint_of_format_1_is_read(job_file: Path, tmp_path: Path) -> None:
    path = stopped(job_file, tmp_path)
    place = path / "checkpoints" / str(newest(tmp_path))
    now = checkpoints.newest(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is only one process
        torch.distributed.checkpoint.save(load_file(place / "state.safetensors"), checkpoint_id=place)
    (place / "state.safetensors").unlink()
    record = json.loads((place / "checkpoint.json").read_text())
    (place / "checkpoint.json").write_text(json.dumps(record | {"format": 1}))
    then = checkpoints.newest(path)
    assert now is not None
    assert then is not None
    assert now.holders.keys() == then.holders.keys()
    for one, other in zip(now.workers(), then.workers(), strict=True):
        assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    for later in (1, 2):  # the second one overwrites the folder of format 1
        checkpoints.write(path, replace(then, updates=then.updates + later), {})
    place = place.with_name(str(then.updates + 2))
    assert {each.name for each in place.iterdir()} == {"checkpoint.json", "model.safetensors", "state.safetensors"}


class Killed(BaseException):
    pass


def test_whatever_call_the_writer_is_killed_at_the_last_good_one_stays(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stopped(job_file, tmp_path)
    first = checkpoints.newest(path)
    assert first is not None
    module: dict[str, torch.Tensor] = job_of(job_file).make_model().state_dict()
    calls = ("fsync", "fdatasync", "ftruncate", "rename", "open", "write", "replace")
    survived = 0
    for number in range(1, 200):
        left = [number]

        def counted(call: Any, left: list[int] = left) -> Any:
            def wrapper(*arguments: Any, **rest: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return call(*arguments, **rest)

            return wrapper

        before = checkpoints.newest(path)
        assert before is not None
        with monkeypatch.context() as patch:
            for call in calls:
                patch.setattr(os, call, counted(getattr(os, call)))
            try:
                checkpoints.write(
                    path, checkpoints.Checkpoint(first.updates + number, 1, [], None, first.holders), module
                )
            except Killed:
                survived += 1
        after = checkpoints.newest(path)
        assert after is not None
        assert after.updates in (before.updates, first.updates + number)
        assert torch.equal(after.holders["worker.0"].many("values")[0], first.holders["worker.0"].many("values")[0])
        if left[0] > 0:
            break
    assert survived > 5


@pytest.mark.filterwarnings("ignore:a checkpoint could not be written:paceline.errors.CheckpointWarning")
def test_a_run_goes_on_where_none_can_be_written(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write", full)
    run = pl.train(job_of(job_file), "ring", 2, folder=tmp_path, checkpoint_every=50)
    assert run.record.status == "done"


# --- what is refused ---------------------------------------------------------------------------------------------


def test_what_cannot_go_on_is_refused_by_name(job_file: Path, tmp_path: Path) -> None:
    job = job_of(job_file)
    with pytest.raises(UsageError, match="folder"):
        pl.train(job, folder=None, checkpoint_every=10)
    with pytest.raises(UsageError, match="engine='local'"):
        pl.train(job, engine="virtual", folder=tmp_path, checkpoint_every=10)
    with pytest.raises(UsageError, match="neither a number of updates"):
        pl.train(job, folder=tmp_path, checkpoint_every="often")
    with pytest.raises(UsageError, match="no job is given"):
        pl.train()
    with pytest.raises(RunFolderError, match="cannot be opened"):
        pl.train(resume=tmp_path / "nothing")
    with pytest.raises(RunFolderError, match="is not a run's folder"):
        pl.train(resume=tmp_path)
    done = pl.train(job, "sequential", folder=tmp_path / "done")
    with pytest.raises(UsageError, match="is done"):
        pl.train(resume=done)


def test_a_run_that_kept_none_is_not_begun_again_in_silence(job_file: Path, tmp_path: Path) -> None:
    def stop(_: Progress) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        pl.train(job_of(job_file), folder=tmp_path, progress=stop)
    (folder,) = tmp_path.iterdir()
    with pytest.raises(UsageError, match="begun without --checkpoint-every"):
        pl.train(resume=folder)


def test_another_number_of_workers_is_refused_where_it_would_be_another_training(
    job_file: Path, tmp_path: Path
) -> None:
    job = job_of(job_file)
    ring = stopped(job_file, tmp_path / "ring")
    with pytest.raises(PlanError, match="2 workers and cannot be resumed with 3: plan ring cuts each batch"):
        pl.train(resume=ring, workers=3)
    with pytest.raises(PlanError, match="begun by plan ring"):
        pl.train(resume=ring, plan="downpour")
    with pytest.raises(UsageError, match="begun with max_updates=None; it cannot be resumed with max_updates=7"):
        pl.train(resume=ring, max_updates=7)
    with pytest.raises(UsageError, match="seed=3; it cannot be resumed with 4"):
        pl.train(job.with_(seed=4), resume=ring)
    with pytest.raises(RunFolderError, match="fingerprints differ"):
        pl.train(job.with_(data=(job.data[0] + 1, job.data[1])), resume=ring)
    local = stopped(job_file, tmp_path / "local", "local_sgd")
    with pytest.raises(PlanError, match="each worker holds something of its own"):
        pl.train(resume=local, workers=3)


def test_a_run_that_is_still_going_on_is_left_alone(job_file: Path, tmp_path: Path) -> None:
    def poll(_: Progress) -> None:
        with pytest.raises(RunFolderError, match="not over"):
            pl.train(resume=next(tmp_path.iterdir()))

    pl.train(job_of(job_file), folder=tmp_path, progress=poll, checkpoint_every=50)


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(job_file: Path, tmp_path: Path) -> None:
    def stop(state: Progress) -> None:
        if state.updates > 30:
            raise Interrupted

    with slowly(job_file), pytest.raises(Interrupted):
        pl.train(job_of(job_file), "ring", 2, folder=tmp_path, checkpoint_every=95, progress=stop)
    (folder,) = tmp_path.iterdir()
    with pytest.warns(CheckpointWarning, match="begins again"):
        run = pl.train(resume=folder)
    whole = pl.train(job_of(job_file), "ring", 2, folder=None)
    assert run.summary()["parameters_sha256"] == whole.summary()["parameters_sha256"]
    each_sample_once(run)


def test_a_checkpoint_of_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints" / "40"
    place.mkdir(parents=True)
    (place / "checkpoint.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(RunFolderError, match=r"checkpoint.json has format 9; this paceline reads up to 2; install"):
        checkpoints.newest(tmp_path)
