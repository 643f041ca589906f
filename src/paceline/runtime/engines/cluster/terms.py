"""What all nodes of a run must agree on before they train together."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256

import torch
from torch.nn import functional

from paceline.instruction_sets import VARIABLE
from paceline.kernels.machine import vector
from paceline.runtime.engines.record import first_record
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.record import JobRecord
from paceline.runtime.runs.schema import to_dict
from paceline.training.parameters.layout import state_tensors


@dataclass(frozen=True)
class Terms:
    """The terms of one node: two nodes with the same ones compute the same training."""

    nodes: int
    paceline: str
    torch: str
    plan: str
    table: str
    compute: str
    limit: int | None
    #: The settings of the job, without those that may differ between machines.
    job: JobRecord
    data_fingerprint: str
    #: Of the names, shapes and types of what a model consists of.
    tensors_sha256: str
    #: Of the parameters before the first update. A node that has others takes those of rank 0.
    initial_sha256: str
    #: Where all machines have to compute the same bits: the newest instruction set, the bytes of a vector in generated
    #: code, and the SHA-256 of what `arithmetic_sha256` computes.
    max_cpu_isa: str
    vector: int
    arithmetic: str

    @staticmethod
    def of(setup: Setup, nodes: int) -> Terms:
        """Return the terms of a job and a plan as this node has them."""
        record = first_record(setup, kept=False)
        made_by, canonical = record.machine, setup.plan.canonical
        job = replace(record.job, device="", origin="", arguments=(), test_samples=0, evaluate_every=None)
        tensors = [(name, tuple(value.shape), str(value.dtype)) for name, value in state_tensors(setup.module).items()]
        return Terms(
            nodes,
            made_by.paceline,
            made_by.torch,
            record.plan,
            record.table,
            record.compute,
            record.limit,
            job,
            record.data_fingerprint,
            sha256(repr(tensors).encode()).hexdigest(),
            record.initial_sha256,
            made_by.max_cpu_isa if canonical else "",
            vector()[0] if canonical and record.compute == "fused" else 0,
            arithmetic_sha256() if canonical else "",
        )

    @property
    def sha256(self) -> bytes:
        """The hash by which connections recognise the same training."""
        return sha256(json.dumps(to_dict(self), sort_keys=True, default=str).encode()).digest()


def arithmetic_sha256() -> str:
    """Return the SHA-256 of some products, convolutions and functions, whose bits depend on processor and libraries."""
    generator = torch.Generator().manual_seed(0)
    x, weight, images, kernels = (
        torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        for shape in ((37, 67), (67, 41), (2, 3, 11, 11), (5, 3, 3, 3))
    )
    computed = [x @ weight, functional.conv2d(images, kernels), x.exp(), x.tanh(), x.softmax(1), x.sum(0)]
    return sha256(b"".join(each.numpy().tobytes() for each in computed)).hexdigest()


#: What is said of fields whose values say nothing to a reader.
WORDS = {
    "data_fingerprint": "other data than rank 0 (random ones need a fixed seed)",
    "tensors_sha256": "another model than rank 0",
    "arithmetic": "other bits than rank 0 in the same products and functions, so canonical= cannot keep its promise",
    "max_cpu_isa": "another limit of instruction sets than rank 0",
    "vector": "vectors of another width than rank 0 in generated code, so canonical= cannot keep its promise",
    "nodes": "another number of nodes than rank 0",
}


def difference(head: Terms, other: Terms, rank: int) -> str:
    """Describe how a node differs from the head; empty if it trains the same once it has the head's parameters."""
    ours, theirs = to_dict(head), to_dict(replace(other, initial_sha256=head.initial_sha256))
    ours, theirs = {**ours.pop("job"), **ours}, {**theirs.pop("job"), **theirs}
    for key, value in ours.items():
        if theirs[key] != value:
            what = WORDS.get(key, f"{key}={theirs[key]}, and rank 0 has {key}={value}")
            return f"rank {rank} has {what}: {_advice(key, head)}"
    return ""


def _advice(key: str, head: Terms) -> str:
    """Say what to do about nodes that differ in a field, or that nothing can be done."""
    if key == "max_cpu_isa":
        return f"set {VARIABLE} alike on all nodes"
    if key not in ("vector", "arithmetic"):
        return "start all nodes with the same command and the same files"
    if head.max_cpu_isa:
        return f"they cannot compute the same bits, though limited to {head.max_cpu_isa}; train without canonical="
    return f"set {VARIABLE}=avx2 on all nodes, or train without canonical="
