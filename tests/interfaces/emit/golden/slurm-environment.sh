#!/bin/bash
# Trains job.py by ring:workers=4: 4 workers on 4 nodes.
#SBATCH --job-name=job
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --gpus-per-node=1
#SBATCH --mem=16G
#SBATCH --time=1:00:00
#SBATCH --partition=gpu
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --signal=TERM@60

set -euo pipefail

# If sbatch was not called in the environment that Paceline is installed in, activate it here.

# Slurm puts a preempted job into the queue again under the same number, so the job finds its run here again. To go on
# with the run of another job, submit this file with PACELINE_RUNS set to that job's folder.
runs=${PACELINE_RUNS:-runs/slurm-$SLURM_JOB_ID}
mkdir -p "$runs"
runs=$(cd "$runs" && pwd)

# The head is on the first node. Its port depends on the job, since jobs may share a node.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export PACELINE_HEAD="${hosts[0]}:$((29471 + SLURM_JOB_ID % 1000))"

# The keys that `paceline keys` made for this run, in a folder that every node can read and other users cannot.
export PACELINE_KEYS=${PACELINE_KEYS:-$HOME/.paceline/keys}

set -- paceline train job.py
# A run that was stopped or killed goes on from its newest checkpoint. Names of runs begin with the time.
latest=
for record in "$runs"/*/run.json; do
    if [ -e "$record" ]; then latest=${record%/run.json}; fi
done
if [ -z "$latest" ]; then
    set -- "$@" --plan ring:workers=4 --checkpoint-every 60s --runs "$runs"
elif grep -q '^ "status": "done"' "$latest/run.json"; then
    echo "$latest is done"; exit 0
else
    set -- "$@" --resume "$latest"
fi

status=0
srun --mpi=none --no-kill --kill-on-bad-exit=0 --wait=0 --cpus-per-task=1 "$@" || status=$?

if ((status)); then
    echo "The training ended with $status. To resume the run: PACELINE_RUNS=$runs sbatch FILE" >&2
fi
exit "$status"
