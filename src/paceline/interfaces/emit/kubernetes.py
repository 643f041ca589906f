"""Manifests for Kubernetes, one per roster."""

from __future__ import annotations

from paceline.interfaces.emit.names import image as image_name
from paceline.interfaces.emit.names import namespace as namespace_name
from paceline.interfaces.emit.pods import Place
from paceline.interfaces.emit.ray_job import ray_job
from paceline.interfaces.emit.stateful_set import stateful_set
from paceline.interfaces.emit.training import Training

#: The version of Ray that manifests name where Ray is not installed here.
RAY = "2.60.0"


def manifest(training: Training, image: str | None = None, namespace: str | None = None, ray: str = RAY) -> str:
    """Return the manifest for `kubectl apply`; without `image`, the image is called as the training is.

    `ray` is the version of Ray in the image, which KubeRay must know.
    """
    chosen = image_name(image) if image else f"{training.name}:latest"
    place = Place(chosen, namespace_name(namespace) if namespace else None)
    return ray_job(training, place, ray) if training.roster == "ray" else stateful_set(training, place)
