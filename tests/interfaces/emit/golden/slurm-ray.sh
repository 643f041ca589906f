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
#SBATCH --exclusive
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --signal=B:TERM@60

set -euo pipefail

# If sbatch was not called in the environment that Paceline is installed in, activate it here.

# Slurm puts a preempted job into the queue again under the same number, so the job finds its run here again. To go on
# with the run of another job, submit this file with PACELINE_RUNS set to that job's folder.
runs=${PACELINE_RUNS:-runs/slurm-$SLURM_JOB_ID}
mkdir -p "$runs"
runs=$(cd "$runs" && pwd)

# The head is on the first node. Its port depends on the job, since jobs may share a node.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${hosts[0]}:$((6379 + SLURM_JOB_ID % 1000))"

# Only processes that know this token may use the Ray cluster.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$runs/.ray-token
if [ ! -s "$RAY_AUTH_TOKEN_PATH" ]; then
    (umask 077 && python3 -c 'import secrets; print(secrets.token_hex(32))' >"$RAY_AUTH_TOKEN_PATH")
fi
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300

set -- paceline train job.py --engine ray --address auto
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

# The signal before the time limit comes to this script. It goes on to the training, on this node, and not to Ray.
stop() { if [ -s "$runs/.driver" ]; then kill -TERM "$(cat "$runs/.driver")" 2>/dev/null || true; fi; }
trap stop TERM
rm -f "$runs/.driver"
set -- sh -c 'echo $$ >"$0" && exec "$@"' "$runs/.driver" "$@"

status=0
srun --mpi=none --no-kill --kill-on-bad-exit=0 --wait=0 --cpus-per-task=1 \
    ray symmetric-run --address "$head" --min-nodes 4 --num-cpus=1 --num-gpus=1 -- "$@" &
step=$!
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do
    status=0
    wait "$step" || status=$?
done
if ((status == 0)) && [ ! -s "$runs/.driver" ]; then
    echo "Ray did not start on the first node" >&2
    status=1
fi

if ((status)); then
    echo "The training ended with $status. To resume the run: PACELINE_RUNS=$runs sbatch FILE" >&2
fi
exit "$status"
