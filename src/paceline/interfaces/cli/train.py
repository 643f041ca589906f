"""The command `paceline train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import paceline
from paceline.instruction_sets import limit
from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import console, print_json

if TYPE_CHECKING:
    from paceline.runtime.runs.run import Run


def train(
    job: options.JobOrNone = None,
    plan: options.PlanOption = None,
    workers: options.Workers = None,
    engine: options.Engine = None,
    address: options.RayAddress = None,
    compute: options.Compute = None,
    device: options.Device = None,
    max_cpu_isa: options.MaxCpuIsa = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    max_updates: options.MaxUpdates = None,
    timeout: options.Timeout = 120.0,
    checkpoint_every: options.CheckpointEvery = None,
    resume: options.Resume = None,
    keys: options.Keys = None,
    trusted_network: options.TrustedNetwork = False,
    joinable: options.Open = False,
    backups: options.Backups = 1,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    runs: options.Runs = Path("runs"),
    logger: options.Loggers = None,
    early_stopping: options.EarlyStop = None,
    best_checkpoint: options.KeepBest = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train JOB by one plan and record the run in a folder.

    The folder holds the parameters, the trace and the job itself, so that `paceline replay` can run it again, bit for
    bit. Ctrl-C or SIGTERM writes a checkpoint and ends the run; --resume RUN continues it. SIGUSR1 writes a checkpoint
    and trains on. With --checkpoint-every even a run that was killed can be resumed. A second Ctrl-C stops at once.
    A run that is done continues with more epochs: --resume RUN --epochs N, in all.
    """
    _before_pytorch(engine, plan or "", max_cpu_isa)
    from paceline.concurrency.watcher.around import watched_run
    from paceline.interfaces.api.engines import KEEPING
    from paceline.interfaces.api.train import train as run_training
    from paceline.runtime.engines.joining.parcel import watch_files
    from paceline.runtime.engines.mpi import engine_of, rank_of

    watch_files(joinable)
    changes = {"compute": compute, "device": device, "batch_size": batch_size, "seed": seed}
    chosen = options.open_job_or_none(job, data_dir, job_args, resume, **changes, epochs=None if resume else epochs)
    engine = engine or ("cluster" if joinable else engine_of(chosen))
    rank = 0 if joinable else rank_of(engine)
    console.quiet = (quiet or rank > 0) and engine == "mpi"  # whose ranks all raise the same
    every = "0" if checkpoint_every is None and engine in KEEPING and not resume else checkpoint_every  # 0: at signals
    with watched_run(resume.parent if resume else runs):
        run = run_training(
            chosen, plan, workers, engine=engine, folder=runs, max_updates=max_updates, timeout=timeout,
            checkpoint_every=every, resume=resume, epochs=epochs if resume else None, loggers=logger or (),
            nodes=paceline.NodeOptions(keys, trusted_network, backups, address, joinable),
            callbacks=_callbacks(early_stopping, best_checkpoint, str(resume) if resume or not chosen else "", quiet),
        )  # fmt: skip
    report(run, json, rank)


def _before_pytorch(engine: str | None, plan: str, max_cpu_isa: str | None) -> None:
    """Do what has to come before PyTorch is imported: limit the instruction set, and fork the forkserver."""
    from paceline.runtime.engines.workers.process import fork_early

    if max_cpu_isa:
        limit(max_cpu_isa)
    if engine not in ("virtual", "mpi"):
        fork_early(ddp="ddp" in plan)


def _callbacks(early_stopping: str | None, best_checkpoint: str | None, title: str, quiet: bool) -> list[Any]:
    from paceline.interfaces.callbacks.loggers import named_callbacks
    from paceline.interfaces.callbacks.progress_bar import ProgressBar

    return [*named_callbacks(early_stopping, best_checkpoint), ProgressBar(title, quiet, console)]


def report(run: Run, json: bool = False, rank: int = 0) -> None:
    """Show what a run has come to."""
    if rank and run.path is None:
        return  # another rank leads, and reports for all
    if json:
        print_json(run.summary())
        return
    from paceline.interfaces.cli.tables import show_summary

    show_summary(run.summary())
    if run.path is not None:
        console.print(f"next     paceline report {run.path}, paceline replay {run.path}", style="dim", soft_wrap=True)
