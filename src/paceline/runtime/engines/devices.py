"""Placement: where each worker computes, where its parameters are stored, and what sums gradients.

    device=       GPUs       parameters are stored         gradients are summed
    cpu           any        in shared memory              by table
    auto, cuda    one each   on the GPU                    by NCCL's all_reduce, in plans whose table adds all up
    auto, cuda    shared     in shared memory; the module  by table, or at the server
                             computes on the GPU

Plans with a server, and plans whose workers mix with neighbours or follow a coordinator, always store parameters in
shared memory. Workers that exchange nothing store them where they compute. Stages of a pipeline compute on the CPU.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from paceline.errors import JobError
from paceline.plans.plan import Plan
from paceline.training.gradients.device_gradients import DeviceGradients, ScaledAutograd
from paceline.training.gradients.fused_replica import FusedGradients
from paceline.training.gradients.replica import AUTOGRAD, CPU, GradientMethod, Replica
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import trainable


@dataclass(frozen=True)
class Placement:
    """The devices of a plan's workers."""

    #: The device of each worker.
    devices: tuple[torch.device, ...]
    #: Whether parameters are stored on the device that computes with them.
    on_device: bool
    #: The library that sums gradients if no table does: nccl or gloo.
    library: str = ""

    def stored_on(self, worker: int) -> torch.device:
        """Return the device that a worker's parameters are stored on."""
        return self.devices[worker] if self.on_device else CPU

    def replica(self, worker: int, job: Job, module: nn.Module, moving: tuple[str, ...]) -> Replica:
        """Return a worker's replica, whose gradients are computed on its device."""
        device = self.devices[worker]
        make_deterministic(device)
        if self.on_device:
            return _replica_on(device, job, module, moving)
        host = list(trainable(module).values())
        device_replica = _replica_on(device, job, copy.deepcopy(module), moving)
        return Replica(job, module, moving, gradients=DeviceGradients(host, device_replica))

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(map(str, self.devices)))


def _replica_on(device: torch.device, job: Job, module: nn.Module, moving: tuple[str, ...]) -> Replica:
    module = module.to(device)
    gradients: GradientMethod = AUTOGRAD
    if job.compute == "fused":
        gradients = FusedGradients(job, module)
    elif job.precision == "16-mixed":
        gradients = ScaledAutograd()
    replica = Replica(job, module, moving, device, gradients)
    if job.compile_options is not None:
        replica.compile(job.compile_options)
    return replica


ON_CPU = {"stages": "stages of a pipeline", "parts": "parts of a layer"}


def place(job: Job, plan: Plan, together: bool = False) -> Placement:
    """Place the workers of a plan: `cuda` distributes the GPUs, `cuda:1` is for all workers, `auto` takes GPUs if any.

    With `together` one process computes for all workers, with the arithmetic of workers that share a GPU.
    """
    kind = plan.traits.devices
    device = _of_parts(job.device, ON_CPU[kind]) if kind in ON_CPU else _wanted(job.device)
    if device.type == "cpu":
        return Placement((CPU,) * plan.workers, on_device=True, library="gloo" if kind == "native" else "")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise JobError(f"device={job.device!r}: this machine has {count} GPU{'s' * (count > 1)}, from cuda:0")
    numbers = [0 if together else n % count for n in range(plan.workers)] if device.index is None else None
    devices = tuple(torch.device("cuda", n) for n in numbers or [device.index or 0] * plan.workers)
    one_each = len(set(devices)) == plan.workers > 1
    if kind == "native":
        return Placement(devices, True, "nccl" if one_each else "gloo")
    if kind == "summed" and one_each and plan.codec is None and not plan.canonical:
        return Placement(devices, True, "nccl")
    return Placement(devices, on_device=kind == "alone")


def _of_parts(name: str, what: str) -> torch.device:
    """Return the CPU, since what workers exchange goes through shared memory; raise for any other device."""
    if name not in ("auto", "cpu"):
        raise JobError(f"device={name!r}: {what} are computed on the CPU; give device='cpu', or 'auto'")
    return CPU


def _wanted(name: str) -> torch.device:
    """Return the device that the job names, if this machine has it."""
    if name == "auto":
        return torch.device("cuda") if torch.cuda.is_available() else CPU
    try:
        device = torch.device(name)
    except RuntimeError:
        raise JobError(f"device={name!r} is no device; give cpu, cuda, cuda:1 and so on, or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise JobError(f"device={name!r}: Paceline trains on the CPU and on CUDA's GPUs; give cpu, cuda, or auto")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise JobError(f"device={name!r}: this PyTorch finds no GPU here; device='cpu', or 'auto'")
    return device


def make_deterministic(device: torch.device) -> None:
    """Make a GPU compute the same numbers each time, as near to the CPU's as its float32 is."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
