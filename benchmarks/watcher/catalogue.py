"""The families of programs.txt, what their programs do, and how one is started: `python -m programs FAMILY NAME`.

Which families the classifier learns from, which the watcher was developed with, and which are held out was fixed before
any program of them had been run.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import unpack

HERE = Path(__file__).parent
QUIET = subprocess.DEVNULL
UNPACKED = tempfile.TemporaryDirectory(prefix="watched-")
os.environ["REPOSITORY"] = str(HERE.parents[1])  # of which some programs run the tests

#: What the programs of a family do in the end.
DEADLOCKED = (
    "locks", "pipes", "files", "event_loops", "queues", "sockets", "processes", "shared", "executors", "polling",
    "subprocesses", "forks", "partial", "native", "futures", "primitives", "file_locks", "spawned", "loaders",
    "heartbeats", "collectives", "ddp", "mpi", "reported", "reported_ranks", "pollers", "stuck",
    "applications", "everyday", "integrations", "deployments", "machines", "foreign", "beginnings", "later",
)  # fmt: skip
WAITING = (
    "sleepers", "servers", "signals", "parents", "pools", "slow_peers", "services", "timers", "helpers", "trainings",
    "mpi_works", "idlers", "steady", "routines", "tending", "operations", "upkeep", "workday", "databases",
    "connections", "terminals", "workshop", "experiments", "plumbing", "virtual_machines",
)  # fmt: skip
BUSY = ("computing", "builds", "crunching")
LIVELOCKED = ("politeness",)
STOPPED = ("stops",)

VERDICT = {
    **dict.fromkeys(DEADLOCKED, "deadlocked"), **dict.fromkeys(WAITING, "waiting"), **dict.fromkeys(BUSY, "busy"),
    **dict.fromkeys(LIVELOCKED, "livelocked"), **dict.fromkeys(STOPPED, "stopped"),
}  # fmt: skip
LEARNED = frozenset({"locks", "pipes", "files", "event_loops", "sleepers", "servers", "signals", "computing",
                     "politeness", "stops", "workday", "databases", "connections"})  # fmt: skip
#: The rules were developed with these; their figures show what was fitted.
DEVELOPED = frozenset(
    {"shared", "collectives", "subprocesses", "forks", "partial", "native", "mpi", "mpi_works", "timers", "pollers",
     "idlers", "applications", "routines", "integrations", "operations", "machines", "plumbing", "trainings"}
)  # fmt: skip
#: Rebuilt from public reports; counted by themselves.
REPORTED = frozenset({"reported", "reported_ranks"})
TORCHRUN, MPIEXEC = frozenset({"collectives", "ddp", "trainings", "reported_ranks"}), frozenset({"mpi", "mpi_works"})

#: The processes that hold each other or are elsewhere than the others: all of the program, but in these programs.
#: Of a pool whose workers die, the root, which starts them again.
CAUSE = {
    "processes.forked_with_a_lock": "children", "shared.circle": "children", "shared.held_by_the_dead": "children",
    "shared.one_missing": "children", "stops.child": "children", "collectives.skipped": "rank 1",
    "collectives.receives_first": "ranks", "subprocesses.end_inherited_by_a_sibling": "children",
    "forks.pool_with_a_held_lock": "children",
    "forks.process_with_a_held_lock": "children", "mpi.never_sent": "rank 0", "mpi.barrier_without_one": "rank 1",
    "mpi.all_send_first": "ranks", "mpi.other_tag": "rank 0, rank 1",
    "file_locks.held_by_a_stopped_process": "children", "file_locks.three_orders": "children",
    "spawned.locks_in_two_orders": "children", "spawned.event_never_set": "children",
    "spawned.task_reads_its_own_pipe": "children", "loaders.worker_forked_with_a_lock": "children",
    "loaders.worker_reads_a_pipe": "children", "loaders.spawned_rank_skips": "rank 1", "ddp.all_receive": "ranks",
    "reported.pytorch_75147": "children", "reported.pytorch_130610": "children", "reported.pytorch_2245": "children",
    "reported.pytorch_3619": "children", "reported.pytorch_17199": "children", "reported.pytorch_41197": "children",
    "reported.pytorch_91547": "children", "reported_ranks.pytorch_109401": "rank 0, rank 1",
    "reported_ranks.nccl_479": "ranks", "reported_ranks.pytorch_132003": "ranks",
    "reported_ranks.pippy_969": "rank 0, rank 1", "reported_ranks.ray_56997": "rank 0",
    "reported_ranks.neuron_sp_80": "rank 0", "reported_ranks.horovod_498": "others",
    "reported_ranks.snowfall_152": "rank 0", "reported_ranks.pytorch_54059": "rank 0",
    "integrations.managed_queues_full_on_both_sides": "children", "deployments.xmlrpc_server_calls_back": "children",
    "deployments.services_that_ask_each_other": "children", "deployments.coprocess_whose_input_stays_open": "children",
    "deployments.pool_whose_workers_die_at_their_start": "root", "beginnings.pool_whose_workers_exit": "root",
    "later.pool_whose_later_workers_fail": "root", "later.pool_of_ending_workers_beside_a_heartbeat": "root",
    "beginnings.pool_whose_workers_crash": "root", "beginnings.unordered_results_of_refused_workers": "root",
    "beginnings.pool_of_spawned_workers_that_are_killed": "root",
    "beginnings.pool_that_is_joined_before_any_worker_lives": "root",
    "beginnings.workers_that_import_what_is_missing": "children",
    "beginnings.pool_of_torch_without_its_device": "children", "beginnings.three_read_what_none_writes": "children",
    "beginnings.shell_that_reads_what_a_failed_command_was_to_write": "children",
    "beginnings.shells_that_open_two_named_pipes_crosswise": "children",
    "deployments.worker_of_node_is_never_notified": "children",
    "deployments.monitors_of_java_in_two_orders": "children",
    "stuck.child_logs_after_a_fork": "children", "applications.barrier_broken_worker_dies": "children",
    "applications.fcntl_lockf_two_files": "children", "everyday.filelock_two_files_two_processes": "children",
}  # fmt: skip
#: Families whose programs only start others: those are the cause.
STARTERS = frozenset({"machines", "foreign", "later"})
VARIANTS = 5


def split_of(family: str) -> str:
    """Return which figures a family counts in."""
    if family in REPORTED:
        return "reported"
    return "learned" if family in LEARNED else "developed" if family in DEVELOPED else "held out"


def cause_of(program: str, ranks: int, variant: int) -> str:
    """Return which processes are the cause of a hang."""
    if program.startswith(("ddp.", "reported_ranks.")) and program not in CAUSE:
        return f"rank {1 + variant % (ranks - 1)}"
    return CAUSE.get(program, "children" if program.partition(".")[0] in STARTERS else "all")


@cache
def folder() -> Path:
    """Return the folder in which `-m programs` finds the programs."""
    return unpack(HERE / "programs.txt", Path(UNPACKED.name))


@cache
def names_of(family: str) -> tuple[str, ...]:
    """Return the names of a family's programs."""
    if str(folder()) not in sys.path:
        sys.path.insert(0, str(folder()))
    return tuple(importlib.import_module(f"programs.{family}").PROGRAMS)


def size_of(variant: int) -> int:
    """Return how many ranks a variant has."""
    return (3, 4, 2, 3, 4)[variant % 5]


def command_of(family: str, name: str, variant: int, python: str = sys.executable) -> list[str]:
    """Return what starts a program, in its folder."""
    program = ["-m", "programs", family, name]
    if family in TORCHRUN:
        launcher = ["torch.distributed.run", "--nproc-per-node", str(size_of(variant)), "--standalone"]
        command = [python, "-m", *launcher, *program]
    elif family in MPIEXEC:
        command = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(3 + variant % 2), python, *program]
    else:
        command = [python, *program]
    return ["sh", "-c", '"$@"; true', "sh", *command] if variant % 5 == 3 else command


def start(family: str, name: str, variant: int, variables: dict[str, str], python: str) -> subprocess.Popen[bytes]:
    """Start a program in its folder, without input and output."""
    command = command_of(family, name, variant, python)
    return subprocess.Popen(command, cwd=folder(), env=variables, stdin=QUIET, stdout=QUIET, stderr=QUIET)
