"""A batch script for Slurm, which `sbatch` takes."""

from __future__ import annotations

from paceline.interfaces.emit.training import Training, choose_run, time_limit
from paceline.interfaces.emit.training import partition as partition_name

#: Ports that a job may get for its head, from the first one on; by the job's number, since jobs may share a node.
PORTS = {"ray": 6379, "environment": 29471}
SPREAD = 1000

#: A node that fails ends neither the job nor the step: the rest of the run goes on without it.
SURVIVE = "--no-kill --kill-on-bad-exit=0 --wait=0"

OPENING = """\
set -euo pipefail

# If sbatch was not called in the environment that Paceline is installed in, activate it here.

# Slurm puts a preempted job into the queue again under the same number, so the job finds its run here again. To go on
# with the run of another job, submit this file with PACELINE_RUNS set to that job's folder.
runs=${PACELINE_RUNS:-runs/slurm-$SLURM_JOB_ID}
mkdir -p "$runs"
runs=$(cd "$runs" && pwd)
"""

CLOSING = """\
if ((status)); then
    echo "The training ended with $status. To resume the run: PACELINE_RUNS=$runs sbatch FILE" >&2
fi
exit "$status"
"""

KEYS = """\
# The keys that `paceline keys` made for this run, in a folder that every node can read and other users cannot.
export PACELINE_KEYS=${PACELINE_KEYS:-$HOME/.paceline/keys}
"""

TOKEN = """\
# Only processes that know this token may use the Ray cluster.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$runs/.ray-token
if [ ! -s "$RAY_AUTH_TOKEN_PATH" ]; then
    (umask 077 && python3 -c 'import secrets; print(secrets.token_hex(32))' >"$RAY_AUTH_TOKEN_PATH")
fi
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
"""

#: Slurm sends its signals to Ray's own processes too, which would end before a checkpoint is written. So the signal
#: before the time limit goes to the script, which passes it on to the training alone. It runs on this node, the first.
DRIVER = """\
# The signal before the time limit comes to this script. It goes on to the training, on this node, and not to Ray.
stop() { if [ -s "$runs/.driver" ]; then kill -TERM "$(cat "$runs/.driver")" 2>/dev/null || true; fi; }
trap stop TERM
rm -f "$runs/.driver"
set -- sh -c 'echo $$ >"$0" && exec "$@"' "$runs/.driver" "$@"
"""

#: `wait` also returns when a signal has been handled.
WAIT = """\
step=$!
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do
    status=0
    wait "$step" || status=$?
done
"""

#: `ray symmetric-run` ends with 0 where it could not start Ray.
STARTED = """\
if ((status == 0)) && [ ! -s "$runs/.driver" ]; then
    echo "Ray did not start on the first node" >&2
    status=1
fi
"""


def batch_script(training: Training, time: str | None = None, partition: str | None = None) -> str:
    """Return the script; its options may be changed in the file, or on sbatch's command line."""
    ray = training.roster == "ray"
    parts = [
        "\n".join(["#!/bin/bash", f"# Trains {training.summary}.", *_options(training, time, partition)]),
        OPENING,
        _head(training),
        TOKEN if ray else KEYS,
        "\n".join(choose_run(training, "exit 0")) + "\n",
        *([DRIVER] if ray else []),
        _step(training),
        CLOSING,
    ]
    return "\n".join(part if part.endswith("\n") else part + "\n" for part in parts)


def _options(training: Training, time: str | None, partition: str | None) -> list[str]:
    """Return the lines for sbatch."""
    # Ray refuses to start beside another Ray, and `ray symmetric-run` ends with every Ray of the user on the node.
    ray = training.roster == "ray"
    options = [
        f"--job-name={training.name}",
        f"--nodes={training.nodes}",
        f"--ntasks={training.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={training.cpus}",
        *([f"--gpus-per-node={training.gpus}"] if training.gpus else []),
        *([f"--mem={training.memory}G"] if training.memory else []),
        *([f"--time={time_limit(time)}"] if time else []),
        *([f"--partition={partition_name(partition)}"] if partition else []),
        *(["--exclusive"] if ray else []),
        "--output=%x-%j.out",
        "--open-mode=append",
        "--requeue",
        "--no-kill",
        f"--signal={'B:' if ray else ''}TERM@60",
    ]
    return [f"#SBATCH {option}" for option in options]


def _head(training: Training) -> str:
    port = f"$(({PORTS[training.roster]} + SLURM_JOB_ID % {SPREAD}))"
    first = "# The head is on the first node. Its port depends on the job, since jobs may share a node."
    hosts = 'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'
    name = "head" if training.roster == "ray" else "export PACELINE_HEAD"
    return f'{first}\n{hosts}\n{name}="${{hosts[0]}}:{port}"\n'


def _step(training: Training) -> str:
    """Return the lines that start the training on all nodes and wait for its end."""
    # A plugin for MPI would set its variables, and the ranks would look as if mpiexec had started them. srun does
    # not inherit the number of CPUs that sbatch was given.
    srun = f"status=0\nsrun --mpi=none {SURVIVE} --cpus-per-task={training.cpus}"
    if training.roster != "ray":
        return f'{srun} "$@" || status=$?\n'
    resources = f"--num-cpus={training.cpus} --num-gpus={training.gpus}"
    return (
        f"{srun} \\\n"
        f'    ray symmetric-run --address "$head" --min-nodes {training.nodes} {resources} -- "$@" &\n{WAIT}{STARTED}'
    )
