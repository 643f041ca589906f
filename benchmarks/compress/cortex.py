"""Instructions and memory of whole networks on a Cortex-M4 in QEMU: first weights, no pruning.

python benchmarks/compress/cortex.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from paceline.compression.integers import IntegerModel, Precision, integers, ranges
from paceline.compression.reading import read
from paceline.compression.search import Candidate, CortexM4, Made
from paceline.kernels.measure.networks import lenet
from paceline.training.jobs.built_ins import built_in

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

HERE = Path(__file__).parent
AIMS = {"784-64-64-10": {"instructions": 110_000}, "LeNet": {"instructions": 1_300_000, "memory": 7_000}}


def measured(name: str) -> list[dict[str, Any]]:
    """Every kernel and precision for one network; each file checks its samples in QEMU."""
    torch.manual_seed(0)
    job = built_in("mnist-dnn")
    model = (lenet() if name == "LeNet" else job.make_model()).eval()
    x = job.data[0][:500]
    network = read(model, tuple(x.shape[1:]))
    made: list[Made] = []
    names: list[str] = []
    target = CortexM4()
    for precision in (Precision(8), Precision(8, True), Precision(4), Precision(4, True)):
        whole = integers(network, ranges(network, x), precision)
        for kernel, file in target.files(Candidate(1.0, network, whole, model), x):
            made.append(Made(kernel, file, network, IntegerModel(whole)))
            names.append(str(precision))
    rows = []
    for precision_name, one, needs in zip(names, made, target.measure(made, x), strict=True):
        memory = one.file.memory + needs.stack
        rows.append({"precision": precision_name, "kernel": one.kernel, "instructions": needs.instructions,
                     "memory_with_stack": memory, "size": needs.size})  # fmt: skip
        print(f"{name:14} {precision_name:15} {one.kernel:8} {needs.instructions:>10,} {memory:>6,} {needs.size:>7,}")
    return rows


if __name__ == "__main__":
    write({"networks": {name: measured(name) for name in AIMS}, "aims": AIMS}, "cortex.json")
