"""What a compression found: the points, their frontier, and the network that the bounds chose."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from paceline.compression.integers import IntegerNetwork
from paceline.compression.network import Network
from paceline.compression.onnx_file import onnx_model
from paceline.compression.points import Bounds, Point, frontier
from paceline.compression.programs import LayerProgram
from paceline.errors import RunFolderError, UsageError


@dataclass(frozen=True)
class Compression:
    """The result of a compression, as `paceline.compress` returns it."""

    job: str
    target: str
    bounds: Bounds
    #: Every network that was made, and the one that was chosen; None if none is within the bounds.
    points: tuple[Point, ...]
    chosen: Point | None
    #: The share of right answers of the trained model: on validation data, and on test data if the job has some.
    trained: float
    trained_on_test: float | None = None
    #: That of the chosen network on test data, which nothing before has seen.
    on_test: float | None = None
    #: Computes in PyTorch what the C file computes; None if no network was chosen.
    model: nn.Module | None = None
    #: The chosen network as data, and its whole numbers; None where it is in float32.
    network: Network | LayerProgram | None = None
    whole: IntegerNetwork | None = None
    #: Some samples of validation.
    samples: Tensor | None = None
    seconds: float = 0.0

    @property
    def frontier(self) -> list[Point]:
        """The points that no other one beats in accuracy, size and cost."""
        return frontier(self.points)

    @property
    def lost(self) -> float | None:
        """The points of accuracy lost on test data; None without test data or without a network."""
        if self.on_test is None or self.trained_on_test is None:
            return None
        return 100 * (self.trained_on_test - self.on_test)

    @property
    def kept_promise(self) -> bool | None:
        """Whether the bound on accuracy also holds on test data."""
        return None if self.lost is None else self.lost <= self.bounds.within + 1e-9

    def save(self, file: str | Path) -> None:
        """Write the chosen network's C file."""
        if self.chosen is None:
            raise RunFolderError(f"there is no network within the bounds, so {file} is not written; see `frontier`")
        draft = Path(f"{file}.new")
        try:
            draft.write_text(self.chosen.file.text, encoding="utf-8")
            os.replace(draft, file)
        finally:
            draft.unlink(missing_ok=True)

    def onnx(self) -> bytes:
        """Return the chosen network as ONNX, with its quantisation; needs the package onnx."""
        if self.network is None:
            raise UsageError("there is no network within the bounds to write as ONNX")
        if isinstance(self.network, LayerProgram):
            raise UsageError(f"this network is not written as ONNX: {self.network.why}; torch.onnx.export writes it")
        return onnx_model(self.network, self.whole)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, as `paceline compress --json` prints them."""
        return {
            "job": self.job,
            "target": self.target,
            "within": self.bounds.within,
            "confidence": self.bounds.confidence,
            "latency_bound": self.bounds.latency,
            "size_bound": self.bounds.size,
            "trained": {"validation_accuracy": self.trained, "test_accuracy": self.trained_on_test},
            "chosen": self.chosen and {**self.chosen.as_dict(), "test_accuracy": self.on_test},
            "points_lost_on_test": self.lost,
            "frontier": [point.as_dict() for point in self.frontier],
            "points": [point.as_dict() for point in self.points],
            "seconds": self.seconds,
        }
