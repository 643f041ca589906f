"""`--precision-only`: a transformer and a residual network in PyTorch's float32, bfloat16 and int8, measured.

python benchmarks/compress/precisions.py
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paceline as pl
from paceline.interfaces.api.compress import compare_precisions

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write


class Transformer(nn.Module):
    """Two layers of width 256 over 32 words."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
        self.words, self.places = nn.Embedding(100, 256), nn.Parameter(0.02 * torch.randn(1, 32, 256))
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(256, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.words(x) + self.places).mean(1))
        return scores


class Block(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.last = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.body(x))  # type: ignore[no-any-return]


def residual() -> nn.Module:
    """Six convolutions of 64 channels on images of 16 x 16."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), Block(64), Block(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 4),
    )  # fmt: skip


def jobs() -> dict[str, pl.Job]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(100, (2000, 32), generator=generator)
    images = torch.randn(1200, 3, 16, 16, generator=generator)
    bright = 2 * (images[:, 0, :8].mean((1, 2)) > 0).long() + (images[:, 1, :, :8].mean((1, 2)) > 0).long()
    settings: dict[str, Any] = {"optimizer": partial(torch.optim.Adam, lr=3e-4), "batch_size": 50, "epochs": 2}
    marked = (words < 50).sum(1).clamp(14, 17) - 14
    loss = nn.CrossEntropyLoss()
    return {
        "transformer": pl.Job(Transformer, (words, marked), loss, **settings),
        "residual": pl.Job(residual, (images, bright), loss, **settings),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    figures = {}
    for name, job in jobs().items():
        found = compare_precisions(pl.train(job, folder=None), within=2.0)
        figures[name] = found.as_dict()
        for point in found.points:
            print(
                f"{name:12} {point.precision:9} {point.accuracy:.2%} {point.size:>10,} bytes {point.p50_us:8.1f} us "
                f"(p99 {point.p99_us:.1f})"
            )
        print(f"{name:12} refused: {found.refused}")
    write(figures, "precisions.json")


if __name__ == "__main__":
    main()
