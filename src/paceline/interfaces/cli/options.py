"""The arguments and options of the commands, each declared once, and what several commands make of them."""

from __future__ import annotations

import enum
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.training.jobs.job import Job


def writable(param: typer.CallbackParam, file: Path | None) -> Path | None:
    """Refuse an output file that could not be written, before the work begins rather than after it."""
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        why = "it is a folder" if file.is_dir() else f"{file.parent} does not exist or is not writable"
        raise UsageError(f"{param.opts[0]} {file}: {why}; name a file in a writable folder")
    return file


class Rank(str, enum.Enum):
    """How much the findings of a family of rules are worth."""

    high = "high"
    medium = "medium"
    low = "low"


class CheckFormat(str, enum.Enum):
    """The output formats of `paceline check`."""

    text = "text"
    concise = "concise"
    json = "json"
    sarif = "sarif"
    github = "github"
    ruff = "ruff"


# What is trained or looked at.
JobOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="A Python file with a module-level `job` (or file.py:name), a TOML file, or a built-in job.",
    ),
]
PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan's name and options, as in hierarchical:workers=6,groups=3.")
]
PlanOrRun = Annotated[
    str, typer.Argument(metavar="PLAN|RUN", help="A plan's name and options, as in ring:workers=3, or a run folder.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
FirstRun = Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]
ScriptToVerify = Annotated[
    str | None,
    typer.Option("--script", help="A script of torch.distributed with its arguments, whose first step is compared."),
]
ScriptWorkers = Annotated[int, typer.Option("--workers", help="The processes of the script.")]
ScriptTimeout = Annotated[
    float, typer.Option("--timeout", min=1.0, help="Seconds that the script may take until its first step.")
]
RunOrJob = Annotated[
    str | None, typer.Argument(metavar="RUN-OR-JOB", help="Another run folder, or a job as `paceline train` takes it.")
]
PlanOfJob = Annotated[str | None, typer.Option("--plan", help="The plan of the job; that of the run if not given.")]
RunArguments = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders that contain some, such as runs.")
]
Paths = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATH", help="Files or folders to check.", show_default="the current folder"),
]
Script = Annotated[
    str | None, typer.Option(help="Instead of JOB: a script that uses torch.distributed, with its arguments.")
]

# How a job is trained.
PlanOption = Annotated[
    str | None,
    typer.Option(
        "--plan",
        "-p",
        envvar="PACELINE_PLAN",
        show_default="sequential",
        help="A plan's name and options, as in downpour:workers=4; `paceline plans` lists all. auto: what `paceline "
        "choose` chooses.",
    ),
]
Plans = Annotated[
    str | None,
    typer.Option(
        "--plans",
        "--plan",
        help="Plans to compare, separated by commas.",
        show_default="sequential,ddp,ring,downpour, or with --link some with codecs",
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", "-w", min=1, envvar="PACELINE_WORKERS", help="Number of workers.")
]
ProvedMachines = Annotated[
    int | None,
    typer.Option(
        "--machines", min=2, help="Prove the protocol of a plan with shard servers on N machines.", metavar="N"
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_ENGINE",
        help="local: processes on this machine; virtual: simulated time; cluster: the nodes of a launcher; ray: nodes "
        "that Ray places; mpi: the ranks of mpiexec, in generated code.",
        show_default="local, or what the launcher asks for",
    ),
]
Compute = Annotated[
    str | None,
    typer.Option(help="How gradients are computed: autograd (PyTorch), fused (generated code), or auto: the faster."),
]
Device = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_DEVICE",
        help="Where gradients are computed: auto, cpu, cuda, cuda:1. Overrides the job's device.",
    ),
]
MaxCpuIsa = Annotated[
    str | None,
    typer.Option(
        "--max-cpu-isa",
        envvar="PACELINE_MAX_CPU_ISA",
        help="The newest instruction set that may compute, avx2 or avx512: the same bits on processors that differ.",
        show_default="the processor's own",
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the data. Overrides the job's epochs.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples per batch. Overrides the job's batch size.")]
Seed = Annotated[int | None, typer.Option(help="Random seed. Overrides the job's seed.")]
DrawSeed = Annotated[int, typer.Option("--seed", help="Random seed of what is drawn here; the job keeps its own.")]
MaxUpdates = Annotated[int | None, typer.Option(min=1, help="Stop after this many updates.")]
Timeout = Annotated[
    float, typer.Option(envvar="PACELINE_TIMEOUT", help="Seconds that a worker may wait for another one.")
]
Keys = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Engine cluster: keys of `paceline keys`; TLS between machines. [PACELINE_KEYS]"),
]
TrustedNetwork = Annotated[
    bool,
    typer.Option("--trusted-network", help="Engine cluster: recognise nodes by PACELINE_TOKEN, without encryption."),
]
Open = Annotated[
    bool,
    typer.Option(
        "--open",
        help="Let other machines join by a code that is printed here; `paceline join` on each. --workers: how many may "
        "take part at once, 8 if it is not given.",
    ),
]
Code = Annotated[
    list[str],
    typer.Argument(metavar="CODE", help="What the other machine shows: a code, or HOST:PORT and a code."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Run the code of the other machine without asking.")]
DoctorTo = Annotated[
    str | None,
    typer.Option(metavar="HOST", help="Also look at the way to this machine, where `paceline doctor --listen` runs."),
]
DoctorListen = Annotated[
    bool, typer.Option("--listen", help="Answer one other machine that looks at the way to this one.")
]
Backups = Annotated[
    int,
    typer.Option(min=0, help="Engine cluster, plans with servers: servers that hold each shard besides its primary."),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Write a checkpoint every N updates, or every so many seconds, as in 30s.",
        show_default="only on a signal",
    ),
]
Resume = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Continue the run in this folder from its newest checkpoint.")
]
DataDir = Annotated[str | None, typer.Option(help="Folder with MNIST-format IDX files, for the mnist jobs.")]
JobArgs = Annotated[
    str | None,
    typer.Option(metavar="'ARGS'", help="The arguments that JOB, a Python file, has as sys.argv[1:]; as in a shell."),
]
Runs = Annotated[Path, typer.Option(envvar="PACELINE_RUNS", help="Folder in which run folders are created.")]
TimedSeconds = Annotated[
    float | None, typer.Option(help="Seconds to time each plan, divided over interleaved rounds of about three.")
]

QualityLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="What a recommended plan may lose: of test accuracy, or without one, of test loss.",
        show_default="0.05 of accuracy, 0.1 of loss",
    ),
]

Loggers = Annotated[
    list[str] | None,
    typer.Option(
        "--logger",
        metavar="NAME[:OPTION=VALUE,...]",
        help="Log while it runs: csv, tensorboard, wandb or mlflow, as in wandb:project=digits. May be repeated.",
    ),
]
EarlyStop = Annotated[
    str | None,
    typer.Option(
        "--early-stopping",
        metavar="METRIC[:OPTION=VALUE,...]",
        help="Stop when a figure of the evaluations no longer improves, as in test_loss:patience=5.",
    ),
]
KeepBest = Annotated[
    str | None,
    typer.Option(
        "--best-checkpoint",
        metavar="METRIC[:OPTION=VALUE,...]",
        help="Keep the model of the best evaluation as best.pt, as in test_accuracy or f1:mode=max.",
    ),
]

# Replay, draw, report, bench.
Until = Annotated[
    str | None,
    typer.Option(
        help="Stop after this update; `nan`: before the first update that is not finite; `failure`: where a worker "
        "failed."
    ),
]
Save = Annotated[
    Path | None, typer.Option(callback=writable, help="Write the model, and the batch that comes next, to this file.")
]
MemoryJob = Annotated[
    str | None,
    typer.Option(metavar="JOB", help="Of workers with a part of the model: also report the memory for JOB."),
]
Page = Annotated[
    Path | None, typer.Option(metavar="FILE", callback=writable, help="For a pipeline: also write the picture as HTML.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="File or folder to write.", show_default="report.html in the folder of the run"
    ),
]
ReportFormat = Annotated[
    str, typer.Option("--format", help="html, json, csv, tensorboard (event files) or perfetto (a trace).")
]
Live = Annotated[
    bool, typer.Option("--live", help="Serve a page that follows the runs while they go on, to this machine only.")
]
LivePort = Annotated[int, typer.Option("--port", help="The port of --live; 0: any that is free.", min=0, max=65535)]
# Check.
CheckFormatOption = Annotated[CheckFormat, typer.Option("--format", "--output-format", help="Output format.")]
Select = Annotated[str | None, typer.Option(help="Rules to run, by prefixes of their codes: PC1,PC501.")]
Ignore = Annotated[str | None, typer.Option(help="Rules to skip, by prefixes of their codes.")]
MinRank = Annotated[
    Rank | None, typer.Option(help="Report no finding of a family of rules that is ranked lower.", show_default="low")
]
Everything = Annotated[
    bool | None, typer.Option("--everything", help="Report what the checker doubts, too.", show_default="off")
]
Confidence = Annotated[
    float | None, typer.Option(help="Deprecated: use --min-rank, or --everything for 0.", hidden=True)
]
Baseline = Annotated[str | None, typer.Option(help="Report only findings that are not in this baseline file.")]
WriteBaseline = Annotated[
    Path | None, typer.Option(callback=writable, help="Write the findings to this baseline file and exit with 0.")
]
Feedback = Annotated[str | None, typer.Option(help="File of verdicts, true or false, by which findings are ordered.")]
CheckBudget = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="LINES",
        help="Walk at most so many lines, the most promising files first; what is left out is counted.",
        show_default="all",
    ),
]
Cached = Annotated[
    bool | None, typer.Option("--cache/--no-cache", help="Cache findings by file content.", show_default="cache")
]
Jobs = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Processes.", show_default="one per CPU in a large tree")
]
CheckExplore = Annotated[
    bool, typer.Option("--explore", help="Run the project's own scripts and tests in many orders to confirm findings.")
]
CheckExploreSeconds = Annotated[
    float, typer.Option("--explore-seconds", min=0.0, help="With --explore: for the findings of one file.")
]
LanguageServer = Annotated[
    bool, typer.Option("--lsp", help="Serve diagnostics to an editor on standard input and output (LSP).")
]
Explain = Annotated[str | None, typer.Option(metavar="RULE", help="Explain a rule with an example, and exit.")]

# Output.
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress, only the result.")]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]


def refuse_existing(force: bool, **files: Path | None) -> None:
    """Refuse output files that exist, before the work begins; `force` lets them be replaced."""
    for name, file in files.items():
        if file is not None and file.exists() and not force:
            raise UsageError(f"--{name} {file}: the file exists; give --force to replace it, or another name")


def open_job_or_none(
    where: str | None, data_dir: str | None, job_args: str | None, resume: Path | None, **changes: Any
) -> Job | None:
    """The job, or None where a resumed run brings its own; an option that would change a missing job is an error."""
    if where is not None:
        if resume is not None and job_args is None:
            from paceline.runtime.runs.record import read_record

            job_args = read_record(resume).job.job_args  # those that it was begun with
        return open_job(where, data_dir, job_args, **changes)
    option_names = [
        name for name, value in {**changes, "data_dir": data_dir, "job_args": job_args}.items() if value is not None
    ]
    if option_names:
        raise UsageError(
            f"--{option_names[0].replace('_', '-')} changes a job, but no JOB is given; name the JOB as well"
        )
    return None


def open_job(where: str, data_dir: str | None, job_args: str | None = None, **changes: Any) -> Job:
    """The job, with the settings given on the command line."""
    from paceline.training.jobs.loading import load_job

    job = load_job(where, data_dir, job_args)
    overrides = {key: value for key, value in changes.items() if value is not None}
    return job.with_(**overrides) if overrides else job


def again(command: str, job: str, **settings: object) -> str:
    """A command line with this job and these options, to be copied into a shell."""
    words = ["paceline", command, job]
    for name, value in settings.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Parse positive whole numbers that are separated by commas."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"{option}={text!r}: give positive whole numbers separated by commas, as in 1,2,4")
    return tuple(int(part) for part in parts)


# Many machines.
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="auto|HOST:PORT",
        help="With --engine ray: the Ray cluster to train on.",
        show_default="one that is started on this machine for the run",
    ),
]
KeyFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to be made, or that has an authority.")]
Hosts = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="Names or addresses of the machines, as the others dial them."),
]
Days = Annotated[int, typer.Option(min=1, help="Days for which the certificates are valid.")]

# The planner.
JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="A Python file with a module-level `job` (or file.py:name), or a built-in job."),
]
CardFile = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", callback=writable, help="File for the card.", show_default="where `choose` looks for it"
    ),
]
CardInput = Annotated[
    Path | None, typer.Option("--card", metavar="FILE", help="A machine's card.", show_default="this machine's")
]
CalibrationSeconds = Annotated[float, typer.Option(help="Seconds to measure for.")]
ClusterFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A cluster.toml: nodes, links, prices.", show_default="this machine"),
]
LinkText = Annotated[
    str | None,
    typer.Option("--link", metavar="RATE,LATENCY", help="Machines like this one, with such a network: 100Mbit,1ms."),
]
Goal = Annotated[str, typer.Option(help="What to minimize: time, cost or memory.")]
PlannerPage = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE", callback=writable, help="Also write a page with pictures."),
]
Level = Annotated[
    str, typer.Option(help="profiled: measure a few steps of this model; calibrated: use the card alone.")
]
Learning = Annotated[
    str,
    typer.Option(help="same: plans that learn as one process does; any: also asynchronous ones and averaged replicas."),
]
MostWorkers = Annotated[
    int | None,
    typer.Option("--workers", "-w", min=1, help="Largest number of workers.", show_default="the machine's cores"),
]
SimulatedPlan = Annotated[str, typer.Option("--plan", "-p", help="A plan's name and options, as in ssp:bound=4.")]
Arithmetic = Annotated[
    bool, typer.Option("--arithmetic", help="Compute gradients, too, to predict learning; as slow as a training.")
]
PriceFile = Annotated[
    Path | None,
    typer.Option(
        "--prices", metavar="FILE", help="Prices (CSV) for sku= in the cluster file.", show_default="built in"
    ),
]
CheckedPlans = Annotated[
    str | None,
    typer.Option(help="Plans to check, separated by commas.", show_default="the best, one process, two at random"),
]
Rounds = Annotated[int, typer.Option(min=2, help="How often each plan is measured.")]
RoundSeconds = Annotated[float, typer.Option(min=0.05, help="Seconds of each round.")]
