"""The time of a call with one sample, beside ONNX Runtime, OpenVINO, emx-onnx-cgen and PyTorch, in turns in one run.

python benchmarks/compress/latency.py
python benchmarks/compress/latency.py LeNet --peers ../peers/bin      with OpenVINO and emx-onnx-cgen installed there

Everything is called by the same loop in Python, one thread, one sample: C files through ctypes, with pointers that were
made before, as ONNX Runtime's io_binding has its tensors. Beside it stands the same C file called from C. The networks
have their whole width and first weights, since time does not depend on them.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.compression.building import Built
from paceline.compression.emission.c_file import float_file, integer_file
from paceline.compression.emission.kernels import WIDE
from paceline.compression.integers import Precision, integers, ranges
from paceline.compression.network import Network
from paceline.compression.onnx_file import onnx_model
from paceline.compression.reading import read
from paceline.kernels.measure.networks import lenet
from paceline.training.jobs.built_ins import built_in

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import in_turn, write

HERE = Path(__file__).parent
NETWORKS = ("mnist-dnn", "mnist-cnn", "LeNet")
ROUNDS, CALLS, WARM = 30, 300, 30
Call = Callable[[], object]
#: Runs in the environment of OpenVINO: a line in, the times of so many calls out.
OPENVINO = """
import sys, time, numpy, openvino
model = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"})
request, x = model.create_infer_request(), numpy.load(sys.argv[2])
request.set_input_tensor(openvino.Tensor(x, shared_memory=True))
for line in sys.stdin:
    times = []
    for call in range(int(line)):
        begun = time.perf_counter_ns()
        request.infer()
        times.append(time.perf_counter_ns() - begun)
    print(*times, flush=True)
"""


def networks(name: str) -> tuple[nn.Module, Network, torch.Tensor]:
    torch.manual_seed(0)
    job = built_in("mnist-dnn" if name == "LeNet" else name)
    model = (lenet() if name == "LeNet" else job.make_model()).eval()
    x = job.data[0][:1000]
    return model, read(model, tuple(x.shape[1:])), x


def timed(call: Call, calls: int = CALLS) -> list[float]:
    """Microseconds of each call; the clock itself takes a twentieth of one."""
    times = []
    for _ in range(WARM + calls):
        begun = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun) / 1000)
    return times[WARM:]


def in_c(built: Built, x: torch.Tensor) -> list[float]:
    """The same calls, made and timed in C."""
    return built.times(x, CALLS)


def library_call(path: Path, function: str, x: np.ndarray, outputs: int) -> Call:
    """A call of a C function through ctypes, from and to memory that stays where it is."""
    library = ctypes.CDLL(str(path))
    run = getattr(library, function)
    run.restype = None
    found = np.empty(outputs, np.float32)
    given, into = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(found.ctypes.data)

    def call(keeps: Any = (library, x, found)) -> None:
        run(given, into)

    return call


def onnx_runtime(content: bytes, x: np.ndarray) -> dict[str, Call]:
    """A session called with an array, and with memory that was bound once."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    binding, given = session.io_binding(), {"input": x}
    binding.bind_ortvalue_input("input", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("output", onnxruntime.OrtValue.ortvalue_from_numpy(session.run(None, given)[0]))
    return {
        "": lambda: session.run(None, given),
        ", io_binding": lambda: session.run_with_iobinding(binding),
    }


def emx(folder: Path, peers: Path, onnx: Path, x: np.ndarray, outputs: int) -> Call:
    """What emx-onnx-cgen writes, compiled with the flags that our float32 file has."""
    source, made = folder / "emx.c", folder / "emx.so"
    subprocess.run([peers / "emx-onnx-cgen", "compile", onnx, source], check=True, capture_output=True)
    flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, source, "-o", made, "-lm"], check=True)
    library = ctypes.CDLL(str(made))
    if hasattr(library, "model_load"):
        library.model_load(str(folder / "model.bin").encode())
    return library_call(made, "model", x, outputs)


class OpenVino:
    """A process in another environment that times its own calls."""

    def __init__(self, folder: Path, peers: Path, onnx: Path, x: np.ndarray) -> None:
        np.save(folder / "x.npy", x)
        self.process = subprocess.Popen(
            [peers / "python", "-c", OPENVINO, onnx, folder / "x.npy"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def times(self) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(WARM + CALLS, file=self.process.stdin, flush=True)
        return [int(each) / 1000 for each in self.process.stdout.readline().split()][WARM:]

    def end(self) -> None:
        self.process.communicate()


def measure(name: str, peers: Path | None, folder: Path) -> dict[str, Any]:
    """All ways to compute one network, in turns."""
    import onnx

    model, network, x = networks(name)
    one, outputs = np.ascontiguousarray(x[:1].numpy()), network.numbers_out
    whole = integers(network, ranges(network, x), Precision(8))
    ways: dict[str, Callable[[], list[float]]] = {}
    for form, file in (("int8", integer_file(whole, WIDE, x)), ("float32", float_file(network, x))):
        built = Built(file, network.numbers_in, outputs)
        call = library_call(built.library, "net_run", one, outputs)
        ways[f"Paceline, {form}"] = lambda call=call: timed(call)  # type: ignore[misc]
        ways[f"Paceline, {form}, from C"] = lambda built=built: in_c(built, x[:1])  # type: ignore[misc]
    for form, content in (("float32", onnx_model(network)), ("int8", onnx_model(network, whole))):
        for how, call in onnx_runtime(content, one).items():
            ways[f"ONNX Runtime, {form}{how}"] = lambda call=call: timed(call)  # type: ignore[misc]
    eager = torch.inference_mode()(lambda: model(x[:1]))
    ways["PyTorch, eager"] = lambda: timed(eager)
    other: OpenVino | None = None
    if peers is not None:
        fixed = onnx.load_from_string(onnx_model(network))
        for value in (*fixed.graph.input, *fixed.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(fixed, folder / "net.onnx")
        call = emx(folder, peers, folder / "net.onnx", one, outputs)
        ways["emx-onnx-cgen, float32"] = lambda call=call: timed(call)  # type: ignore[misc]
        other = OpenVino(folder, peers, folder / "net.onnx", one)
        ways["OpenVINO, float32"] = other.times
    taken = in_turn(ways, ROUNDS)
    if other is not None:
        other.end()
    return summary(name, taken)


def summary(name: str, taken: dict[str, list[list[float]]]) -> dict[str, Any]:
    """p50 and p99 of all calls, the range of the rounds' medians, and the ratio to ONNX Runtime's best."""
    found: dict[str, Any] = {}
    for way, rounds in taken.items():
        medians, whole = [float(np.median(each)) for each in rounds], np.concatenate(rounds)
        p50, p99 = (float(np.percentile(whole, q)) for q in (50, 99))
        found[way] = {"p50_us": p50, "p99_us": p99, "medians_us": [min(medians), max(medians)]}
    best = {q: min(each[q] for way, each in found.items() if way.startswith("ONNX")) for q in ("p50_us", "p99_us")}
    for way, each in found.items():
        each |= {f"{q[:3]}_of_onnx_runtimes_best": each[q] / best[q] for q in best}
        print(
            f"{name:10} {way:38} p50 {each['p50_us']:7.2f} ({each['p50_of_onnx_runtimes_best']:4.2f})  "
            f"p99 {each['p99_us']:8.2f} ({each['p99_of_onnx_runtimes_best']:4.2f})",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NETWORKS)
    parser.add_argument("--peers", type=Path, help="the bin folder of an environment with openvino and emx-onnx-cgen")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {}
    for name in given.names:
        with tempfile.TemporaryDirectory() as folder:
            load = Path("/proc/loadavg").read_text().split()[0]
            found[name] = {"load_before": float(load), **measure(name, given.peers, Path(folder))}
    write({"rounds": ROUNDS, "calls": CALLS, "latency": found}, "latency.json")


if __name__ == "__main__":
    main()
