"""What single layers measure: convolutions of many shapes by each way of the library, and what its tuner chose."""

from __future__ import annotations

import torch
from torch.nn import functional

from paceline.kernels.library import ALGORITHMS, Shape, choose
from paceline.kernels.library.tuner import measured
from paceline.kernels.measure.figures import Meter, Shaped

SHAPES = (  # images, channels, height, width, filters, their height and width, stride, pad
    Shape(64, 1, 28, 28, 6, 5, 5, 1, 0),  # the study's
    Shape(1, 1, 28, 28, 6, 5, 5, 1, 0),
    Shape(64, 6, 14, 14, 16, 5, 5, 1, 0),  # LeNet-5
    Shape(16, 3, 32, 32, 32, 3, 3, 1, 1),
    Shape(16, 32, 32, 32, 32, 3, 3, 1, 1),
    Shape(16, 64, 16, 16, 64, 3, 3, 1, 1),
    Shape(1, 64, 56, 56, 64, 3, 3, 1, 1),
    Shape(4, 64, 28, 28, 128, 3, 3, 2, 1),
    Shape(4, 64, 28, 28, 64, 1, 1, 1, 0),
    Shape(4, 16, 56, 56, 16, 7, 7, 1, 3),
    Shape(4, 8, 56, 56, 16, 11, 11, 1, 5),
)


def algorithms(meter: Meter) -> None:
    for shape in SHAPES:
        chosen = choose(shape, threads=meter.cores).algorithm
        seconds = measured(shape, threads=meter.cores).seconds
        gflops = {name: shape.flop / taken / 1e9 for name, taken in seconds.items()}
        meter.found.shapes.append(Shaped(str(shape), chosen, seconds, _errors(shape, meter.cores), gflops))
        meter.say(f"{shape}: {chosen}, {seconds[chosen] * 1e6:.0f} us")


def _errors(shape: Shape, threads: int) -> dict[str, float]:
    """The largest error of each way against float64, as a share of the largest output."""
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(shape.n, shape.c, shape.h, shape.w, generator=chance)
    filters = torch.randn(shape.k, shape.c, shape.r, shape.s, generator=chance)
    exact = functional.conv2d(x.double(), filters.double(), stride=shape.stride, padding=shape.pad)
    largest = exact.abs().max()
    return {
        name: float((algorithm.run(shape, x, filters, threads) - exact).abs().max() / largest)
        for name, algorithm in ALGORITHMS.items()
        if algorithm.fits(shape)
    }
