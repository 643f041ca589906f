"""The commands `paceline compare` and `paceline verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from paceline.errors import UsageError
from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import console, print_json, saying

if TYPE_CHECKING:
    from paceline.interfaces.api.comparing.first_step import StepVerification
    from paceline.interfaces.api.comparing.result import Comparison
    from paceline.runtime.engines.replay.verify import Verification


def compare(
    job: options.JobOrNone = None,
    script: options.Script = None,
    plans: options.Plans = None,
    workers: options.Workers = None,
    compute: options.Compute = None,
    device: options.Device = None,
    seconds: options.TimedSeconds = None,
    link: options.LinkText = None,
    quality_limit: options.QualityLimit = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    runs: options.Runs = Path("runs"),
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train JOB by several plans and show them side by side.

    Each plan is compared with the best single process, and with its ceiling: as many workers that never communicate.
    The last line is the answer: a plan to use, one process, or that it is undecided, and what to do. A plan that fails
    has a line with its reason. Ctrl-C shows what was measured until then.

    With --link 100Mbit,1ms the workers are machines like this one with such a network. Their times are simulated, with
    computing as measured here, and so is the answer; the gradients are real. Each codec's bytes and seconds are shown.

    With --script 'train.py --its-own options' a script of yours is run unchanged by torchrun, alternately on gloo and
    on Paceline's backend. Of the other options only --workers, --quiet and --json apply to it.
    """
    changes = {"compute": compute, "device": device, "epochs": epochs, "batch_size": batch_size, "seed": seed}
    if script is not None:
        _refuse_beside_script(
            JOB=job, plans=plans, seconds=seconds, link=link, data_dir=data_dir, job_args=job_args,
            quality_limit=quality_limit, **changes,
        )  # fmt: skip
        compare_scripts(script, 2 if workers is None else workers, quiet, json)
        return
    if job is None:
        raise UsageError("give a JOB, or --script 'train.py ...' for a script that uses torch.distributed")
    from paceline.runtime.engines.workers.process import fork_early

    fork_early(ddp="ddp" in (plans or "ddp"))  # by default it is one of them
    from paceline.interfaces.api.comparing.compare import compare as run_comparison
    from paceline.interfaces.cli.comparison import progress_shown

    command = options.again("train", job, **changes, data_dir=data_dir, job_args=job_args)
    try:
        with progress_shown(quiet) as (say, progress):
            comparison = run_comparison(
                options.open_job(job, data_dir, job_args, **changes), None if plans is None else split_plans(plans),
                workers, seconds=seconds, link=link, quality_limit=quality_limit, folder=runs, say=say,
                progress=progress, command=command,
            )  # fmt: skip
    except KeyboardInterrupt as interrupt:
        for measured in interrupt.args:
            _show(measured, json)
        raise
    _show(comparison, json)


def _show(comparison: Comparison, json: bool) -> None:
    if json:
        print_json(comparison.as_dict())
        return
    from paceline.interfaces.cli.comparison import show_comparison

    show_comparison(comparison.table)


def compare_scripts(script: str, workers: int, quiet: bool, json: bool) -> None:
    """Run a script on gloo and on Paceline's backend, and show how long a step takes on each."""
    from paceline.interfaces.api.comparing.compare_scripts import ScriptComparison, compare_script
    from paceline.interfaces.cli.tables import show_scripts

    def show(comparison: ScriptComparison) -> None:
        print_json(comparison.as_dict()) if json else show_scripts(comparison)

    try:
        show(compare_script(script, workers, say=saying(quiet)))
    except KeyboardInterrupt as interrupt:
        for measured in interrupt.args:
            show(measured)
        raise


def _refuse_beside_script(**settings: object) -> None:
    """Raise UsageError for what concerns jobs alone."""
    words = [
        name if name.isupper() else f"--{name.replace('_', '-')}"
        for name, value in settings.items()
        if value is not None
    ]
    if words:
        raise UsageError(
            f"--script is run as it stands, without {', '.join(words)}; give either --script, with the script's own "
            "arguments in its quotes, or a job"
        )


def split_plans(text: str) -> list[str]:
    """Split a list of plans: `ring,downpour:workers=2,shards=3` is two, since `shards=3` belongs to the one before."""
    plans: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if "=" in word and ":" not in word.partition("=")[0] and plans:
            plans[-1] += "," + word
        else:
            plans.append(word)
    return plans


def verify(
    run: options.FirstRun = None,
    other: options.RunOrJob = None,
    script: options.ScriptToVerify = None,
    workers: options.ScriptWorkers = 2,
    timeout: options.ScriptTimeout = 120.0,
    plan: options.PlanOfJob = None,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    json: options.Json = False,
) -> None:
    """Compare a recorded run with another one, or with a job, bit by bit.

    Both are computed again side by side, and the first update, tensor and number at which they differ is named. With
    --script the first step of a script of torch.distributed is compared instead: the processes with each other, and
    with what one process would do with all of their samples. Exit code 0: the same; 1: they differ.
    """
    if (script is None) == (run is None or other is None) or (script is not None and run is not None):
        raise UsageError("give two runs, or a run and a job, or --script 'train.py'")
    verification: Verification | StepVerification
    if script is not None:
        from paceline.interfaces.api.comparing.first_step import verify_script

        verification = verify_script(script, workers, seconds=timeout)
    else:
        verification = _compared(run, other, plan, data_dir, job_args)
    if json:
        print_json(verification.as_dict())
    else:
        console.print(
            str(verification),
            style="green" if verification.same else "red",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    if not verification.same:
        raise typer.Exit(1)


def _compared(
    run: Path | None, other: str | None, plan: str | None, data_dir: str | None, job_args: str | None
) -> Verification:
    from paceline.runtime.engines.replay.verify import verify as compare
    from paceline.training.jobs.loading import load_job

    assert run is not None
    assert other is not None
    return compare(run, Path(other) if Path(other).is_dir() else load_job(other, data_dir, job_args), plan=plan)
