"""What the manifests for Kubernetes have in common: names, volumes, and containers without any privilege."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.interfaces.emit.training import Training
from paceline.interfaces.emit.yaml_text import Value

#: The user and the folder of images that `paceline emit docker` describes.
USER, WORK = 1000, "/work"
RUNS = "/runs"
#: GiB that a node gets unless told otherwise, and that the volume for runs has.
MEMORY, STORAGE = 4, 10
#: Seconds between SIGTERM and SIGKILL: enough to write a checkpoint.
GRACE = 60


@dataclass(frozen=True)
class Place:
    """Where in a cluster a training runs, and from which image."""

    image: str
    namespace: str | None = None


def metadata(name: str, training: Training, place: Place) -> dict[str, Value]:
    """Return the metadata of an object."""
    where: dict[str, Value] = {"namespace": place.namespace} if place.namespace else {}
    return {"name": name, **where, "labels": labels(training)}


def labels(training: Training) -> dict[str, Value]:
    """Return the labels of everything that belongs to a training."""
    return {"app.kubernetes.io/name": training.name, "app.kubernetes.io/managed-by": "paceline"}


def container(name: str, training: Training, place: Place, mounts: Sequence[Value], **more: Value) -> dict[str, Value]:
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
