"""What is to be trained, on how many nodes, and how its processes find each other."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from paceline.errors import PlanError, UsageError, suggest
from paceline.plans.plan import Plan, check_method

ROSTERS = ("ray", "environment")
#: A node that is lost with its memory costs at most so much of the training.
CHECKPOINT_EVERY = "60s"


@dataclass(frozen=True)
class Training:
    """A training on several nodes, with what each node must have."""

    #: As the command line names it; the file is not read, and may exist on the cluster only.
    job: str
    plan: Plan
    #: A DNS-1035 label.
    name: str
    nodes: int
    #: Of each node.
    cpus: int
    gpus: int
    #: GiB of each node; None leaves it to the scheduler.
    memory: int | None
    #: "ray": Ray places, starts and replaces processes; "environment": the launcher starts one per node.
    roster: str
    #: The arguments of the job's Python file, as in a shell.
    job_args: str | None = None

    @property
    def trains(self) -> list[str]:
        """The words that name the job and the cluster; without those of `begins` they resume a run."""
        return ["paceline", "train", *job_words(self.job, self.job_args), *self.engine]

    @property
    def begins(self) -> list[str]:
        """The words after `paceline train JOB` that begin a run."""
        words = ["--plan", str(self.plan)]
        if self.plan.workers > 1 and "workers" not in self.plan.options:  # the plan's default, which may change
            words += ["--workers", str(self.plan.workers)]
        return words + (["--checkpoint-every", CHECKPOINT_EVERY] if self.resumable else [])

    @property
    def engine(self) -> list[str]:
        """The words that join Ray's cluster; under the other roster the environment says enough."""
        return ["--engine", "ray", "--address", "auto"] if self.roster == "ray" else []

    @property
    def together(self) -> bool:
        """Whether the nodes form a cluster; the environment's roster of one node is the engine of one machine."""
        return self.roster == "ray" or self.nodes > 1

    @property
    def resumable(self) -> bool:
        """Whether the plan keeps checkpoints on these nodes."""
        return not self.plan.traits.no_checkpoints

    @property
    def summary(self) -> str:
        workers = f"{self.plan.workers} worker{'s' * (self.plan.workers != 1)}"
        return f"{self.job} by {self.plan}: {workers} on {self.nodes} node{'s' * (self.nodes != 1)}"


def training(
    job: str,
    plan: str,
    workers: int | None = None,
    *,
    nodes: int | None = None,
    cpus: int | None = None,
    gpus: int = 0,
    memory: int | None = None,
    roster: str = "ray",
    name: str | None = None,
    job_args: str | None = None,
) -> Training:
    """Check what was asked for. By default every worker has a node, and a node as many CPUs as its workers' threads."""
    chosen = _plan(printable(plan, "plan"), workers)
    nodes = chosen.workers if nodes is None else nodes
    if not 1 <= nodes <= chosen.workers:
        raise UsageError(f"--nodes {nodes}: give 1 to {chosen.workers}, since each node has at least one worker")
    cpus = -(-chosen.workers // nodes) * chosen.threads if cpus is None else cpus
    for option, value, least in (("--cpus", cpus, 1), ("--gpus", gpus, 0), ("--memory", memory, 1)):
        if value is not None and value < least:
            raise UsageError(f"{option} {value}: give a whole number from {least}, for each node")
    if roster not in ROSTERS:
        raise UsageError(f"--roster {roster!r}: {suggest(roster, ROSTERS)}")
    job_words(job, job_args)  # refuses what a line cannot hold
    called = job_name(job) if name is None else label(name)
    description = Training(job, chosen, called, nodes, cpus, gpus, memory, roster, job_args)
    _check_nodes(description)
    return description


def _plan(text: str, workers: int | None) -> Plan:
    plan = Plan.parse(text, workers)
    if workers not in (None, plan.workers):
        raise PlanError(
            f"--workers {workers}: plan {plan} has {plan.workers}; plans of several are downpour, ring, ..."
        )
    return plan


def _check_nodes(chosen: Training) -> None:
    """Refuse what `paceline train` would refuse on these nodes."""
    if not chosen.together:
        return
    try:
        check_method(chosen.plan)
    except PlanError as error:
        raise PlanError(f"{error}. For one node give --roster environment --nodes 1") from None
    workers = chosen.plan.workers
    if chosen.roster == "environment" and chosen.nodes != workers:
        raise UsageError(
            f"--nodes {chosen.nodes}: under --roster environment each node has one worker, and plan {chosen.plan} has "
            f"{workers}; leave --nodes out, give --nodes 1, or let Ray divide the workers (--roster ray)"
        )


# The lines of shell that begin a run, or resume the one that a killed or stopped process left.

#: The beginning of `"status": "done"` as `runs.schema` writes it, at the top level of run.json.
DONE = '^ "status": "done"'


def quoted(words: Sequence[str]) -> str:
    """Return words as a shell reads them back."""
    return " ".join(shlex.quote(word) for word in words)


def choose_run(training: Training, when_done: str, only_if: str = "") -> list[str]:
    """Return lines that set "$@" to the command that begins a run in $runs, or resumes the newest one there.

    `when_done` is what happens instead if that run is done. Where the condition `only_if` is false, none is resumed.
    """
    train = quoted(training.trains)
    begin = f'{quoted(training.begins)} --runs "$runs"'
    if not training.resumable:
        return [
            f"# Plan {training.plan.name} keeps no checkpoints, so a new run begins each time.",
            f"set -- {train} {begin}",
        ]
    poll = [
        'for record in "$runs"/*/run.json; do',
        '    if [ -e "$record" ]; then latest=${record%/run.json}; fi',
        "done",
    ]
    return [
        f"set -- {train}",
        "# A run that was stopped or killed goes on from its newest checkpoint. Names of runs begin with the time.",
        "latest=",
        *([f"if {only_if}; then", *(f"    {line}" for line in poll), "fi"] if only_if else poll),
        'if [ -z "$latest" ]; then',
        f'    set -- "$@" {begin}',
        f'elif grep -q {shlex.quote(DONE)} "$latest/run.json"; then',
        f'    echo "$latest is done"; {when_done}',
        "else",
        '    set -- "$@" --resume "$latest"',
        "fi",
    ]


# Names and words that other programs accept.

#: What Kubernetes and KubeRay append to a name must still fit into 63 characters.
LONGEST_NAME = 47
JOB_FILES = (".py", ".toml")


def label(text: str) -> str:
    """Return the DNS-1035 label nearest to `text`: small letters, digits and hyphens, and a letter first."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if not words or words[0].isdigit():
        words = f"job-{words}"
    return words[:LONGEST_NAME].strip("-")


def job_name(job: str) -> str:
    """Return a name for a job: of `experiments/My net.py:big`, `my-net-big`."""
    path, _, variable = job.partition(":")
    stem = PurePosixPath(path).name.removesuffix(".py")
    return label(f"{stem}-{variable}" if variable else stem)


def namespace(text: str) -> str:
    """Return the name of a namespace as it was given, if it is one."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise UsageError(
            f"--namespace {text!r} is no name of a namespace: small letters, digits and hyphens, at most 63"
        )
    return text


def image(text: str) -> str:
    """Return the name of an image as it was given, if it can be one."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.:/@-]*", text, re.ASCII):
        raise UsageError(f"--image {text!r} is no name of an image, as in example.org/team/digits:1")
    return text


def partition(text: str) -> str:
    """Return the names of Slurm's partitions as they were given, if they can be some."""
    if not re.fullmatch(r"[\w.,-]+", text, re.ASCII):
        raise UsageError(f"--partition {text!r} is no name of a partition; several are separated by commas")
    return text


def time_limit(text: str) -> str:
    """Return a limit of time as it was given, if Slurm understands it."""
    if not re.fullmatch(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}", text, re.ASCII):
        raise UsageError(f"--time {text!r} is no limit of Slurm: give minutes, H:MM:SS or D-HH, as in 1:30:00 or 2-12")
    return text


def one_line(text: str, what: str, instead: str) -> str:
    """Return `text`, which a line of a file will contain, if it fits on a line."""
    if not text or not text.isprintable():
        raise UsageError(f"{what} {text!r} is empty or contains a line break or a control character; {instead}")
    return text


def printable(text: str, what: str) -> str:
    """Return `text`, which will be a word of a line, if it fits on a line and is no option."""
    if text.startswith("-"):
        raise UsageError(f"{what} {text!r} would be read as an option; write ./{text}")
    return one_line(text, what, "rename it")


def job_words(job: str, job_args: str | None) -> list[str]:
    """Return the words of a command that name a job, and its arguments if it has some."""
    words = [printable(job, "JOB")]
    if job_args is None:
        return words
    if not job.partition(":")[0].endswith(JOB_FILES):
        raise UsageError(f"--job-args is for Python files, and JOB {job} is a built-in job; leave --job-args out")
    try:
        shlex.split(one_line(job_args, "--job-args", "put it into a file that the job reads"))
    except ValueError as error:
        raise UsageError(
            f"--job-args {job_args!r}: {error}; quote it as in --job-args \"--name 'two words'\""
        ) from error
    return [*words, "--job-args", job_args]
