"""Manifests for Kubernetes, one per roster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from paceline.interfaces.emit.training import Training, choose_run
from paceline.interfaces.emit.training import image as image_name
from paceline.interfaces.emit.training import namespace as namespace_name

# What the manifests for Kubernetes have in common: names, volumes, and containers without any privilege.

#: The user and the folder of images that `paceline emit docker` describes.
USER, WORK = 1000, "/work"
RUNS = "/runs"
#: GiB that a node gets unless told otherwise, and that the volume for runs has.
MEMORY, STORAGE = 4, 10
#: Seconds between SIGTERM and SIGKILL: enough to write a checkpoint.
GRACE = 60


@dataclass(frozen=True)
class ClusterPlace:
    """Where in a cluster a training runs, and from which image."""

    image: str
    namespace: str | None = None


def metadata(name: str, training: Training, place: ClusterPlace) -> dict[str, Value]:
    """Return the metadata of an object."""
    where: dict[str, Value] = {"namespace": place.namespace} if place.namespace else {}
    return {"name": name, **where, "labels": labels(training)}


def labels(training: Training) -> dict[str, Value]:
    """Return the labels of everything that belongs to a training."""
    return {"app.kubernetes.io/name": training.name, "app.kubernetes.io/managed-by": "paceline"}


def container(
    name: str, training: Training, place: ClusterPlace, mounts: Sequence[Value], **more: Value
) -> dict[str, Value]:
    """Return a container that may do nothing but compute."""
    requests = {"cpu": str(training.cpus), "memory": f"{training.memory or MEMORY}Gi"}
    gpus: dict[str, Value] = {"nvidia.com/gpu": str(training.gpus)} if training.gpus else {}
    resources: dict[str, Value] = {"requests": {**requests, **gpus}, "limits": {"memory": requests["memory"], **gpus}}
    return {
        "name": name,
        "image": place.image,
        "workingDir": WORK,
        **more,
        "resources": resources,
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def pod(training: Training, containers: Sequence[Value], volumes: Sequence[Value], **more: Value) -> dict[str, Value]:
    """Return the template of a pod; pods of a training are spread over machines where there are enough."""
    spread: Value = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": training.name}},
    }
    security: Value = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec: dict[str, Value] = {
        **more,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service called master would set MASTER_PORT
        "terminationGracePeriodSeconds": GRACE,
        "topologySpreadConstraints": [spread],
        "securityContext": security,
        "containers": containers,
        **({"volumes": volumes} if volumes else {}),
    }
    return {"metadata": {"labels": labels(training)}, "spec": spec}


def claim(storage: int = STORAGE) -> dict[str, Value]:
    """Return what is asked of a volume for runs: one pod at a time writes it."""
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{storage}Gi"}}}


# A StatefulSet with its headless Service: pods with stable names, which are the ranks.
# The ordinal of a pod is its rank (`algorithms.cluster.launchers`). A StatefulSet starts again whatever ends, so a pod
# whose training is done notes that in its volume, and waits to be deleted.

PORT = 29471
#: Where the run's keys are; PACELINE_KEYS names the folder.
KEYS = "/etc/paceline/keys"
#: Octal 0440: the keys may be read by the process and by no one else.
KEYS_MODE = 0o440

#: A signal to the pod goes to its first process alone, which is the shell. `wait` also returns when a signal has been
#: handled.
WATCH = """\
    child= stopped=
    stop() { stopped=yes; if [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null || true; fi; }
    trap stop TERM
    "$@" &
    child=$!
    if [ -n "$stopped" ]; then stop; fi
    status=0
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do
        status=0
        wait "$child" || status=$?
    done
    trap - TERM
    if [ "$status" -ne 0 ]; then exit "$status"; fi
    : >"$runs/done"
fi
echo "the training is done; its run is in $runs on the volume of rank 0"
exec sleep infinity
"""


def stateful_set(training: Training, place: ClusterPlace) -> str:
    """Return the manifest."""
    name = training.name
    comment = [
        f"Trains {training.summary}.",
        "The keys that `paceline keys` made for this run are needed first:",
        f"    kubectl create secret generic {name}-keys --from-file=KEYS_FOLDER"
        + (f" --namespace={place.namespace}" if place.namespace else ""),
        "    kubectl apply -f FILE",
        f"    kubectl logs -f {name}-0",
        "A StatefulSet does not end on its own: delete it when the training is done. The volumes with the runs stay.",
    ]
    service: Value = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, training, place),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks find each other before all of them are ready
            "selector": labels(training),
            "ports": [{"name": "head", "port": PORT}],
        },
    }
    return documents([service, _set(training, place)], comment)


def _set(training: Training, place: ClusterPlace) -> Value:
    name = training.name
    environment: Value = [
        {"name": "PACELINE_NODES", "value": str(training.nodes)},
        {"name": "PACELINE_HEAD", "value": f"{name}-0.{name}:{PORT}"},
        {"name": "PACELINE_KEYS", "value": KEYS},
    ]
    mounts: list[Value] = [
        {"name": "runs", "mountPath": RUNS},
        {"name": "keys", "mountPath": KEYS, "readOnly": True},
    ]
    volumes: list[Value] = [{"name": "keys", "secret": {"secretName": f"{name}-keys", "defaultMode": KEYS_MODE}}]
    command: Value = ["/bin/sh", "-c", _pod_script(training)]
    train = container(
        "train",
        training,
        place,
        mounts,
        command=command,
        env=environment,
        ports=[{"name": "head", "containerPort": PORT}],
    )
    spec: Value = {
        "serviceName": name,
        "replicas": training.nodes,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels(training)},
        # As process 1 of its own namespace, `sleep` would ignore SIGTERM.
        "template": pod(training, [train], volumes, restartPolicy="Always", shareProcessNamespace=True),
        "volumeClaimTemplates": [{"metadata": {"name": "runs"}, "spec": claim()}],
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata(name, training, place), "spec": spec}


def _pod_script(training: Training) -> str:
    """Return what each pod runs. Rank 0 alone keeps the run, so it alone looks for one to resume."""
    chosen = choose_run(training, "set -- true", only_if='[ "${HOSTNAME##*-}" = 0 ]')
    lines = [
        "set -eu",
        f"cd {WORK}",
        f"runs={RUNS}",
        'if [ ! -e "$runs/done" ]; then',
        *(f"    {line}" for line in chosen),
    ]
    return "\n".join(lines) + "\n" + WATCH


# A RayJob for KubeRay, with the volume that keeps its runs.
# KubeRay starts a cluster for the job, submits the training to it and removes it afterwards. A node that dies is
# replaced; with the head the whole attempt is lost, and the next one, in a new cluster, resumes the run.

SCRIPT_FOLDER, SCRIPT = "/etc/paceline", "train.sh"
#: Further attempts, each with a new cluster.
RETRIES = 3
#: Seconds that a finished job's cluster stays, so that its logs can be read.
KEPT = 600


def ray_job(training: Training, place: ClusterPlace, version: str) -> str:
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


def _job(training: Training, place: ClusterPlace, version: str) -> Value:
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


def _head(training: Training, place: ClusterPlace) -> dict[str, Value]:
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


#: The version of Ray that manifests name where Ray is not installed here.
RAY = "2.60.0"


def manifest(training: Training, image: str | None = None, namespace: str | None = None, ray: str = RAY) -> str:
    """Return the manifest for `kubectl apply`; without `image`, the image is called as the training is.

    `ray` is the version of Ray in the image, which KubeRay must know.
    """
    chosen = image_name(image) if image else f"{training.name}:latest"
    place = ClusterPlace(chosen, namespace_name(namespace) if namespace else None)
    return ray_job(training, place, ray) if training.roster == "ray" else stateful_set(training, place)


# YAML of plain data: mappings, lists, texts, whole numbers and truth values.
# Any text comes back as it was: what could be read as something else is quoted, and a text of several lines becomes a
# literal block where that keeps it exactly.

Value: TypeAlias = "Mapping[str, Value] | Sequence[Value] | str | int | bool"

#: Words that are texts to every reader; all others are quoted. A digit in front could begin a number or a date, but
#: for an amount such as 10Gi.
PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*([ :][A-Za-z0-9_./-]+)*|[0-9]+Gi")
#: What readers of YAML 1.1 or 1.2 take for something other than a text.
NOT_TEXTS = {"y", "yes", "n", "no", "true", "false", "on", "off", "null", "~"}


def documents(values: Sequence[Value], comment: Sequence[str] = ()) -> str:
    """Return several documents as one text, below lines of comment."""
    head = "".join(f"# {line}\n" for line in comment)
    return head + "---\n".join("\n".join(_lines(value)) + "\n" for value in values)


def _lines(value: Value) -> list[str]:
    """Return the lines of a mapping or a list that is not empty, or the one line of anything else."""
    if isinstance(value, Mapping) and value:
        return [line for key, part in value.items() for line in _entry(f"{_text(key)}:", part)]
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [line for part in value for line in _item(part)]
    return [_scalar(value)]


def _entry(key: str, part: Value) -> list[str]:
    if isinstance(part, str) and _fits_a_block(part):
        return [f"{key} |", *map(_indented, part[:-1].split("\n"))]
    if isinstance(part, str) or not isinstance(part, Mapping | Sequence) or not part:
        return [f"{key} {_scalar(part)}"]
    return [key, *map(_indented, _lines(part))]


def _item(part: Value) -> list[str]:
    if isinstance(part, str) and _fits_a_block(part):
        return _entry("-", part)
    first, *rest = _lines(part)
    return [f"- {first}", *map(_indented, rest)]


def _indented(line: str) -> str:
    return f"  {line}" if line else ""


def _fits_a_block(text: str) -> bool:
    """Whether a literal block holds the text exactly: it ends with one line break and begins without a space."""
    lines = text.split("\n")
    return (
        len(lines) > 1
        and lines[-1] == ""
        and lines[-2] != ""
        and lines[0][:1] not in ("", " ")
        and all(line.isprintable() for line in lines)
    )


def _scalar(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    return "{}" if isinstance(value, Mapping) else "[]"


def _text(text: str) -> str:
    if PLAIN.fullmatch(text) and text.lower() not in NOT_TEXTS:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
