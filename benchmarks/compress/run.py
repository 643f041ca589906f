"""Compression after training: size, latency beside ONNX Runtime, a Cortex-M4, and the promised bound on test data.

python benchmarks/compress/run.py make       trains and compresses the three networks, here and for a Cortex-M4
python benchmarks/compress/run.py time       times what was made beside ONNX Runtime and PyTorch, in turns
(promise.py, bits.py, cortex.py and precisions.py measure the rest)
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import paceline as pl
from paceline.compression.building import STRICT, Built, compiler, libraries
from paceline.compression.emission.c_file import CFile, float_file, integer_file
from paceline.compression.emission.kernels import PLAIN, SMALL, WIDE
from paceline.compression.integers import Precision, integers
from paceline.compression.onnx_file import onnx_model
from paceline.compression.reading import read
from paceline.compression.reference import IntegerModel
from paceline.compression.search import WIDTHS
from paceline.compression.values import ranges
from paceline.jobs.built_ins import built_in, mnist
from paceline.jobs.job import Job
from paceline.kernels.measure.networks import lenet, tabular

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import write

HERE = Path(__file__).parent
NETWORKS = ["mnist-dnn", "mnist-cnn", "LeNet"]
WITHIN, ROUNDS, CALLS = 0.5, 30, 200
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


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
        found = {}
        figures: dict[str, Any] = {}
        for target in ("here", "cortex-m4"):
            made = pl.compress(run, within=WITHIN, target=target, epochs=4, widths=widths, say=print)
            found[target] = made
            within = [p for p in made.points if not made.bounds.faults(p)]
            smallest = min(within, key=lambda p: p.size)
            figures[target] = made.as_dict() | {"smallest_within": smallest.as_dict(), "points_made": len(made.points)}
        figures["checks"] = checks(job, run.model)
        write(HERE, figures, f"{name}.json")
        chosen = found["here"].chosen
        made = forms(job, run.model, None if chosen is None else chosen.file)
        (HERE / f"{name}.pickle").write_bytes(pickle.dumps(made))


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
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "net.c", Path(folder) / "net"
        source.write_text(file.text)
        command = [*compiler(), *STRICT, *file.flags, *SANITIZERS, str(source), "-o", str(program), *libraries(file)]
        subprocess.run(command, check=True)
        done = subprocess.run([program], capture_output=True, text=True)
        return done.returncode == 0 and not done.stderr


def forms(job: Job, model: nn.Module, chosen: CFile | None) -> dict[str, Any]:
    """What is timed: the chosen file, the whole width in float32 and int8, and the same network as ONNX."""
    x = job.data[0][:2000]
    network = read(model, tuple(x.shape[1:]))
    whole = integers(network, ranges(network, x), Precision(8))
    files = {"float32, whole width": float_file(network, x), "int8, whole width": integer_file(whole, WIDE, x)}
    return {
        "files": files if chosen is None else {"chosen": chosen, **files},
        "onnx": {"float32": onnx_model(network), "int8": onnx_model(network, whole)}, "model": model, "x": x[:64],
    }  # fmt: skip


# --- timed ----------------------------------------------------------------------------------------------------


def timings(names: list[str]) -> None:
    """Time everything in turns, one thread, one sample at a time."""
    torch.set_num_threads(1)
    for name in names:
        kept, job = HERE / f"{name}.pickle", job_of(name)
        # Time does not depend on the weights: a network that was not made yet is timed untrained, at its whole width.
        given = pickle.loads(kept.read_bytes()) if kept.exists() else forms(job, job.make_model().eval(), None)
        x = given["x"]
        built = {key: Built(file, prod(x.shape[1:]), 10) for key, file in given["files"].items()}
        ways: dict[str, Callable[[], list[float]]] = {
            f"paceline, {key}": partial(_in_c, each, x) for key, each in built.items()
        }
        for key, content in given["onnx"].items():
            session = _session(content)
            ways[f"ONNX Runtime, {key}"] = partial(_called, partial(_run, session), x)
            ways[f"ONNX Runtime, {key}, io_binding"] = partial(_called, _bound(session, x), x)
        ways["PyTorch, eager"] = partial(_called, _eager(given["model"]), x)
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, measure in ways.items():
                taken[way] += measure()
        figures = {way: _percentiles(times) for way, times in taken.items()}
        best = min(value["p50_us"] for way, value in figures.items() if way.startswith("ONNX"))
        for way, value in figures.items():
            value["of_onnx_runtimes_best"] = value["p50_us"] / best
            print(
                f"{name:10} {way:38} {value['p50_us']:8.2f} {value['p99_us']:8.2f} "
                f"{value['of_onnx_runtimes_best']:6.2f}"
            )
        write(HERE, {"network": name, "rounds": ROUNDS, "calls": CALLS, "latency": figures}, f"{name}-latency.json")


def _in_c(built: Built, x: torch.Tensor) -> list[float]:
    """Calls as C makes them."""
    found = built.latency(x, CALLS)
    return [found.p50] * 99 + [found.p99]  # the percentiles of this round


def _session(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _run(session: Any, sample: np.ndarray) -> None:
    session.run(None, {"input": sample})


def _bound(session: Any, x: torch.Tensor) -> Callable[[np.ndarray], None]:
    """Input and output stay in memory that was bound once."""
    import onnxruntime

    value = onnxruntime.OrtValue.ortvalue_from_numpy(x[:1].numpy())
    binding = session.io_binding()
    binding.bind_ortvalue_input("input", value)
    binding.bind_ortvalue_output(
        "output", onnxruntime.OrtValue.ortvalue_from_numpy(session.run(None, {"input": x[:1].numpy()})[0])
    )

    def run(sample: np.ndarray) -> None:
        session.run_with_iobinding(binding)

    return run


def _eager(model: nn.Module) -> Callable[[np.ndarray], None]:
    def run(sample: np.ndarray) -> None:
        with torch.inference_mode():
            model(torch.from_numpy(sample))

    return run


def _called(run: Callable[[np.ndarray], None], x: torch.Tensor) -> list[float]:
    """Calls as Python makes them; the clock itself takes a twentieth of a microsecond."""
    samples, times = [sample[None].numpy() for sample in x], []
    for call in range(CALLS):
        sample = samples[call % len(samples)]
        begun = time.perf_counter_ns()
        run(sample)
        times.append((time.perf_counter_ns() - begun) / 1000)
    return times


def _percentiles(times: list[float]) -> dict[str, float]:
    return {"p50_us": float(np.percentile(times, 50)), "p99_us": float(np.percentile(times, 99))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("make", "time"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.what == "make":
        make(given.names or NETWORKS, [float(width) for width in given.widths.split(",")])
    else:
        timings(given.names or NETWORKS)


if __name__ == "__main__":
    main()
