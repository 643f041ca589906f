"""The tuner takes the best way to convolve; what the ways lose; fixed point's accuracy; the wavefront's gain."""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import paceline as pl
from paceline.kernels.library import ALGORITHMS, Lstm, Shape, fixed
from paceline.kernels.library.convolution import measured, timed
from paceline.kernels.library.native import long, native, pointer
from paceline.kernels.library.recurrent import ORDERS, Stack
from paceline.training.jobs.job import Job
from paceline.training.jobs.loading import load_job

import sys  # isort: skip

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import read, write

Ways = dict[str, Any]
STACKS = ((2, 1, 64), (3, 1, 64), (4, 1, 64), (2, 1, 128), (4, 1, 128), (4, 1, 256), (2, 8, 128), (4, 32, 128))


def shapes(count: int, chance: random.Random) -> list[Shape]:
    """As layers of small and middling networks have them."""
    found: list[Shape] = []
    while len(found) < count:
        r = chance.choice((1, 3, 3, 3, 5, 7, 11))
        image, batch = chance.choice((7, 12, 14, 28, 32, 56)), chance.choice((1, 4, 16, 64))
        c, k = chance.choice((1, 3, 8, 16, 32, 64)), chance.choice((6, 16, 32, 64))
        shape_flop = 2 * batch * c * k * image * image * r * r
        if r <= image and shape_flop < 2e9:
            found.append(
                Shape(batch, c, image, image, k, r, r, chance.choice((1, 1, 1, 2)), chance.choice((0, r // 2)))
            )
    return found


def tuner(count: int, seed: int) -> dict[str, Any]:
    """Each shape is judged anew, by a second measurement of all ways, after the tuner chose."""
    torch.set_num_threads(2)
    behind, chosen, torch_ratio = [], Counter[str](), []
    for number, shape in enumerate(shapes(count, random.Random(seed))):
        choice = measured(shape, threads=2)
        again = measured(shape, threads=2).seconds
        x, filters = torch.randn(shape.n, shape.c, shape.h, shape.w), torch.randn(shape.k, shape.c, shape.r, shape.s)
        other = timed({"torch": partial(functional.conv2d, x, filters, stride=shape.stride, padding=shape.pad)})
        behind.append(again[choice.algorithm] / min(again.values()) - 1)
        torch_ratio.append(other["torch"] / again[choice.algorithm])
        chosen[choice.algorithm] += 1
        print(f"{number + 1}: {shape}: {choice.algorithm}, {behind[-1]:.1%} behind the best", flush=True)
    return {
        "shapes": count,
        "within_5%": sum(b <= 0.05 for b in behind),
        "behind_the_best": {"median": round(statistics.median(behind), 4), "worst": round(max(behind), 4)},
        "chosen": dict(chosen),
        "times_as_fast_as_torch": [round(q, 2) for q in statistics.quantiles(torch_ratio, n=4)],
    }


def errors() -> dict[str, Any]:
    """Of the largest output, against float64, on shapes that all ways can do."""
    torch.manual_seed(0)
    found: dict[str, float] = {}
    for channels in (1, 16, 64, 256):
        shape = Shape(4, channels, 30, 30, 16, 3, 3, 1, 1)
        x, filters = torch.randn(shape.n, shape.c, 30, 30), torch.randn(shape.k, shape.c, 3, 3)
        exact = functional.conv2d(x.double(), filters.double(), padding=1)
        for name, algorithm in ALGORITHMS.items():
            error = float((algorithm.run(shape, x, filters, 1) - exact).abs().max() / exact.abs().max())
            found[name] = max(found.get(name, 0.0), error)
    return {name: float(f"{error:.1e}") for name, error in found.items()}


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def fixed_point() -> dict[str, Any]:
    torch.set_num_threads(2)
    cnn = load_job("mnist-cnn").with_(epochs=3)
    jobs: dict[str, Job] = {"mnist-cnn": cnn}
    jobs["LeNet-5"] = cnn.with_(model=lenet, optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9), batch_size=64)
    found: dict[str, Any] = {}
    for name, job in jobs.items():
        model = pl.train(job, folder=None).model.eval()
        x, y = job.test
        whole = fixed(model, job.data[0][:500])
        with torch.no_grad():
            right = [float((net(x).argmax(1) == y).float().mean()) for net in (model, whole)]
            batch = x[:256].contiguous()
            seconds = timed({"float32": partial(model, batch), "fixed": partial(whole, batch)})
        found[name] = {
            "accuracy": [round(r, 4) for r in right],
            "points_lost": round(100 * (right[0] - right[1]), 2),
            "microseconds_of_256_samples": {way: round(s * 1e6, 1) for way, s in seconds.items()},
        }
        print(name, found[name], flush=True)
    return found | {"linear layers": layers(), "convolutions": convolutions()}


def convolutions() -> dict[str, Any]:
    """Beside PyTorch's float32 and oneDNN's int8."""
    found: dict[str, Any] = {}
    for images, channels, pixels, filters, size in ((256, 1, 28, 6, 5), (256, 6, 14, 16, 5), (16, 32, 32, 64, 3)):
        layer, x = nn.Conv2d(channels, filters, size), torch.randn(images, channels, pixels, pixels)
        whole = fixed(nn.Sequential(layer), x)
        ways: Ways = {"float32": partial(layer, x), "fixed": partial(whole, x)}
        if "onednn" in torch.backends.quantized.supported_engines:
            ways["oneDNN int8"] = partial(_quantized(layer, x), x)
        with torch.no_grad():
            name = f"{images} of {channels} x {pixels} x {pixels}, {filters} filters of {size} x {size}"
            found[name] = {way: round(s * 1e6, 1) for way, s in timed(ways).items()}
    return found


def layers() -> dict[str, Any]:
    """512 x 512 beside PyTorch's float32 and oneDNN's int8 (torch.ops.quantized)."""
    found: dict[str, Any] = {}
    layer = nn.Linear(512, 512)
    whole = fixed(nn.Sequential(layer), torch.randn(512, 512))
    for rows in (1, 16, 256):
        x = torch.randn(rows, 512)
        ways: Ways = {"float32": lambda x=x: layer(x), "fixed": lambda x=x: whole(x)}
        if "onednn" in torch.backends.quantized.supported_engines:
            ways["oneDNN int8"] = partial(_quantized(layer, x), x)
        with torch.no_grad():
            found[str(rows)] = {way: round(s * 1e6, 1) for way, s in timed(ways).items()}
    return found


def _quantized(layer: nn.Linear | nn.Conv2d, x: Tensor) -> Any:
    torch.backends.quantized.engine = "onednn"
    flat, nothing = layer.weight.detach().flatten(1), torch.zeros(len(layer.weight), dtype=torch.long)
    weights = torch.quantize_per_channel(layer.weight.detach(), flat.abs().amax(1) / 127, nothing, 0, torch.qint8)
    ops = torch.ops.quantized
    if isinstance(layer, nn.Linear):
        packed, product = ops.linear_prepack(weights, layer.bias.detach()), ops.linear
    else:
        packed, product = ops.conv2d_prepack(weights, layer.bias.detach(), [1, 1], [0, 0], [1, 1], 1), ops.conv2d
    step = float(x.max() - x.min()) / 255
    zero = round(-float(x.min()) / step)

    def run(given: Tensor) -> Tensor:
        bytes_of = torch.quantize_per_tensor(given, step, zero, torch.quint8)
        out: Tensor = product(bytes_of, packed, 0.1, 128).dequantize()
        return out

    return run


def _weights(given: nn.LSTM) -> list[Tensor]:
    return [getattr(given, name).detach() for name in given._flat_weights_names]


def _bare(stack: Stack, x: Tensor, seed: Tensor, order: str) -> Tensor:
    """Forwards and backwards in compiled code, with nothing of PyTorch's around."""
    wave = long(order == "wavefront")
    dx, found, rooms = stack.way_back()
    native().lstm(stack.sizes(), stack.layers(), pointer(x), wave, long(2))
    native().lstm_back(
        stack.sizes(), stack.layers(), pointer(x), pointer(seed), *map(ctypes.c_void_p, rooms), wave, long(2)
    )
    del dx, found  # were written to until now
    return stack.out


def wavefront() -> dict[str, Any]:
    """Forwards and backwards, two threads; PyTorch beside it at its best number of threads."""
    found: dict[str, Any] = {}
    for count, batch, units in STACKS:
        given, x = nn.LSTM(units, units, count), torch.randn(50, batch, units)
        seed = torch.randn(50, batch, units)

        def both(net: Any, threads: int = 2, x: Tensor = x, seed: Tensor = seed) -> None:
            torch.set_num_threads(threads)
            out = net(x)
            (out[0] if isinstance(out, tuple) else out).backward(seed)

        ways: Ways = {order: partial(both, Lstm(given, order, 2)) for order in ("layers", "wavefront")}
        ways |= {f"torch, {n} thread{'s' * (n > 1)}": partial(both, given, n) for n in (1, 2)}
        seconds = timed(ways)
        bare = timed({order: partial(_bare, Stack(x, _weights(given)), x, seed, order) for order in ORDERS})
        name = f"{count} layers of {units}, batch {batch}"
        found[name] = {way: round(s * 1e6) for way, s in seconds.items()}
        found[name]["wavefront over layers"] = round(seconds["layers"] / seconds["wavefront"], 2)
        found[name] |= {f"{order}, without autograd": round(s * 1e6) for order, s in bare.items()}
        found[name]["the same without autograd"] = round(bare["layers"] / bare["wavefront"], 2)
        print(name, found[name], flush=True)
    return found


PARTS: dict[str, Any] = {"tuner": tuner, "errors": errors, "wavefront": wavefront, "fixed_point": fixed_point}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--shapes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.parts or PARTS:
        found = PARTS[name](options.shapes, options.seed) if name == "tuner" else PARTS[name]()
        kept = read()
        write({part: found if part == name else kept[part] for part in PARTS if part in {name, *kept}})


if __name__ == "__main__":
    main()
