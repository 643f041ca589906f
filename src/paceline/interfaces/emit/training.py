"""What is to be trained, on how many nodes, and how its processes find each other."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import PlanError, UsageError, suggest
from paceline.interfaces.emit.names import job_name, job_words, label, printable
from paceline.plans.clusters import check_method
from paceline.plans.plan import Plan

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


# --- The lines of shell that begin a run, or resume the one that a killed or stopped process left ---------------------

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
