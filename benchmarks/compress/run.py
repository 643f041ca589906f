"""Compression after training: sizes within the bound, the frontier, and every bit of 10,000 test images.

python benchmarks/compress/run.py                     mnist-dnn, mnist-cnn and LeNet, here and for a Cortex-M4
python benchmarks/compress/run.py mnist-dnn           one of them
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.compression.building import STRICT, Built, compiler, libraries
from paceline.compression.emission.c_file import CFile, integer_file
from paceline.compression.emission.kernels import PLAIN, SMALL, WIDE
from paceline.compression.integers import IntegerModel, Precision, integers, ranges
from paceline.compression.reading import read
from paceline.compression.search import WIDTHS
from paceline.kernels.measure.networks import lenet, tabular
from paceline.training.jobs.built_ins import built_in, mnist
from paceline.training.jobs.job import Job

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

HERE = Path(__file__).parent
NETWORKS = ["mnist-dnn", "mnist-cnn", "LeNet"]
WITHIN, ROUNDS, CALLS = 0.5, 30, 200
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


def job_of(name: str, seed: int = 0) -> Job:
    """The jobs whose networks are compressed; every one is trained until it is nearly done."""
    if name == "LeNet":
        train, test = mnist(None)
        optimizer = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
        made = Job(lenet, train, nn.CrossEntropyLoss(), optimizer=optimizer, test=test, epochs=4, name=name)
    elif name == "tabular":
        made = Job(
            tabular, _rows(8000, 0), nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.05),
            test=_rows(4000, 1), epochs=4, name=name,
        )  # fmt: skip
    else:
        made = built_in(name).with_(epochs={"mnist-dnn": 10, "mnist-cnn": 8, "digits": 2}[name])
    return made.with_(seed=seed, evaluate_every=None, compute="auto")


def _rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of 64 numbers in ten classes that overlap."""
    means = torch.randn(10, 64, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (count,), generator=generator)
    return means[y] + 3.0 * torch.randn(count, 64, generator=generator), y


# --- made and checked -------------------------------------------------------------------------------------------------


def make(names: list[str], widths: list[float]) -> None:
    """Train and compress each network, here and for a Cortex-M4, and check the chosen files."""
    for name in names:
        job = job_of(name)
        run = pl.train(job, folder=None)
        figures: dict[str, Any] = {}
        for target in ("here", "cortex-m4"):
            made = pl.compress(run, within=WITHIN, target=target, epochs=4, widths=widths, say=print)
            within = [p for p in made.points if not made.bounds.faults(p)]
            smallest = min(within, key=lambda p: p.size)
            figures[target] = made.as_dict() | {"smallest_within": smallest.as_dict(), "points_made": len(made.points)}
        figures["checks"] = checks(job, run.model)
        write(figures, f"{name}.json")


def checks(job: Job, model: nn.Module) -> dict[str, Any]:
    """10,000 test images in C and in PyTorch, and the sanitizers on the self-check."""
    x = job.test[0][:10_000]
    network = read(model, tuple(x.shape[1:]))
    seen = ranges(network, job.data[0][:2000])
    compared, different, clean = 0, 0, True
    for precision in (Precision(8), Precision(4), Precision(8, True), Precision(4, True)):
        made = integers(network, seen, precision)
        expected = IntegerModel(made)(x)
        for kernel in (SMALL, PLAIN, WIDE):
            file = integer_file(made, kernel, x)
            with Built(file, prod(network.inputs), prod(network.last.shape)) as built:
                different += int((built.run(x) != expected).any(1).sum())
                compared += len(x)
            clean = clean and sanitized(file)
    return {"images_compared": compared, "images_different": different, "sanitizers_clean": clean}


def sanitized(file: CFile) -> bool:
    """Whether the file's own check passes under the address and undefined-behaviour sanitizers."""
    flags = [flag for flag in file.flags if not flag.startswith("-O")]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "net.c", Path(folder) / "net"
        source.write_text(file.text)
        command = [*compiler(), *STRICT, *flags, *SANITIZERS, str(source), "-o", str(program), *libraries(file)]
        subprocess.run(command, check=True)
        done = subprocess.run([program], capture_output=True, text=True)
        return done.returncode == 0 and not done.stderr


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NETWORKS)
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    make(given.names, [float(width) for width in given.widths.split(",")])


if __name__ == "__main__":
    main()
