"""A RayJob for KubeRay, with the volume that keeps its runs.

KubeRay starts a cluster for the job, submits the training to it and removes it afterwards. A node that dies is
replaced; with the head the whole attempt is lost, and the next one, in a new cluster, resumes the run.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.interfaces.emit.pods import RUNS, WORK, Place, claim, container, metadata, pod
from paceline.interfaces.emit.shell import choose_run
from paceline.interfaces.emit.training import Training
from paceline.interfaces.emit.yaml_text import Value, documents

SCRIPT_FOLDER, SCRIPT = "/etc/paceline", "train.sh"
#: Further attempts, each with a new cluster.
RETRIES = 3
#: Seconds that a finished job's cluster stays, so that its logs can be read.
KEPT = 600


def ray_job(training: Training, place: Place, version: str) -> str:
    """Return the manifest; `version` is that of Ray in the image."""
    comment = [
        f"Trains {training.summary}.",
        "KubeRay, 1.6 or later, makes a cluster of Ray for it, and a token without which no one may use the cluster.",
        "    kubectl apply -f FILE",
        f"    kubectl logs -f -l job-name={training.name}",
    ]
    volume: Value = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(f"{training.name}-runs", training, place),
        "spec": claim(),
    }
    script: Value = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(f"{training.name}-script", training, place),
        "data": {SCRIPT: _script(training)},
    }
    return documents([volume, script, _job(training, place, version)], comment)


def _script(training: Training) -> str:
    lines = [
        "set -eu",
        f"cd {WORK}",
        f"runs={RUNS}",
        *choose_run(training, "exit 0"),
        'exec "$@"',
    ]
    return "\n".join(lines) + "\n"


def _job(training: Training, place: Place, version: str) -> Value:
    nodes: Value = {
        "groupName": "nodes",
        "replicas": training.nodes,
        "minReplicas": training.nodes,
        "maxReplicas": training.nodes,
        "rayStartParams": {"num-cpus": str(training.cpus)},
        "template": pod(training, [container("ray-worker", training, place, [])], [], restartPolicy="Always"),
    }
    cluster: Value = {
        "rayVersion": version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": _head(training, place)},
        "workerGroupSpecs": [nodes],
    }
    spec: Value = {
        "entrypoint": f"sh {SCRIPT_FOLDER}/{SCRIPT}",
        "backoffLimit": RETRIES,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": KEPT,
        "rayClusterSpec": cluster,
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata(training.name, training, place),
        "spec": spec,
    }


def _head(training: Training, place: Place) -> dict[str, Value]:
    """Return the pod of the head, which trains nothing itself: it runs the command, and keeps the run."""
    mounts: list[Value] = [
        {"name": "runs", "mountPath": RUNS},
        {"name": "script", "mountPath": SCRIPT_FOLDER, "readOnly": True},
    ]
    volumes: list[Value] = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": f"{training.name}-runs"}},
        {"name": "script", "configMap": {"name": f"{training.name}-script"}},
    ]
    ports: Value = [
        {"name": "gcs-server", "containerPort": 6379},
        {"name": "dashboard", "containerPort": 8265},
        {"name": "client", "containerPort": 10001},
    ]
    small = replace(training, cpus=1, gpus=0)
    # A head that is started again has lost its cluster: a further attempt has a new one.
    return pod(training, [container("ray-head", small, place, mounts, ports=ports)], volumes, restartPolicy="Never")
