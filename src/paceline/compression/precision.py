"""Any model in float32, bfloat16 and int8 by PyTorch's own means: accuracy, bytes and the time of a call."""

from __future__ import annotations

import copy
import io
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.compression.building import Latency
from paceline.compression.result import Bounds
from paceline.compression.samples import Loss, Samples, Score, loss_between

CALLS, WARM, BATCH = 300, 30, 250


class InBfloat16(nn.Module):
    """A model whose parameters and arithmetic are bfloat16; its input and its result are float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x.to(torch.bfloat16) if x.is_floating_point() else x)
        return scores.float()


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def in_int8(model: nn.Module, x: Tensor) -> nn.Module:
    """A model in int8, by the way of PyTorch that fits: whole where it has convolutions, else its weights."""
    if any(isinstance(part, CONVOLUTIONS) for part in model.modules()):
        return whole_in_int8(model, x)
    return InInt8(model)


def whole_in_int8(model: nn.Module, x: Tensor) -> nn.Module:
    """Weights and values in int8 (static quantisation), with ranges from these samples."""
    from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch moves this elsewhere
        mapping = get_default_qconfig_mapping(torch.backends.quantized.engine)
        prepared = quantize_fx.prepare_fx(copy.deepcopy(model).eval(), mapping, (x[:1],))
        with torch.no_grad():
            for part in x.split(BATCH):
                prepared(part)
        quantized: nn.Module = quantize_fx.convert_fx(prepared)
    return quantized


class InInt8(nn.Module):
    """A model whose dense and recurrent layers have weights of 8 bits; other layers stay as they are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch moves this elsewhere
            self.model = torch.ao.quantization.quantize_dynamic(
                copy.deepcopy(model), {nn.Linear, nn.LSTM, nn.GRU}, dtype=torch.qint8
            )

    def forward(self, x: Tensor) -> Tensor:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it reads the weights of dense layers, which are packed here
        try:
            scores: Tensor = self.model(x)
            return scores
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


FORMS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "float32": lambda model, x: copy.deepcopy(model),
    "bfloat16": lambda model, x: InBfloat16(model),
    "int8": in_int8,
}


@dataclass(frozen=True)
class PrecisionPoint:
    """A model in one precision."""

    precision: str
    accuracy: float
    lost: Loss
    #: Bytes of its saved state.
    size: int
    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class Precisions:
    """A model in all precisions; `chosen` is the fastest within the bounds."""

    job: str
    bounds: Bounds
    points: tuple[PrecisionPoint, ...]
    #: Precisions that the model cannot have, and why.
    refused: dict[str, str]
    models: dict[str, nn.Module]

    @property
    def trained(self) -> float:
        """The accuracy in float32."""
        return self.points[0].accuracy

    def faults(self, point: PrecisionPoint) -> list[str]:
        """Return which bounds a point does not keep."""
        return self.bounds.broken(point.lost, point.p50_us, point.size)

    @property
    def chosen(self) -> PrecisionPoint | None:
        within = [point for point in self.points if not self.faults(point)]
        return min(within, key=lambda point: point.p50_us, default=None)

    @property
    def model(self) -> nn.Module | None:
        """The chosen model."""
        return self.models[self.chosen.precision] if self.chosen is not None else None

    def as_dict(self) -> dict[str, Any]:
        chosen = self.chosen
        return {
            "job": self.job,
            "within": self.bounds.within,
            "chosen": chosen and asdict(chosen),
            "points": [asdict(point) for point in self.points],
            "refused": self.refused,
        }


def precisions(
    name: str, model: nn.Module, validation: Samples, calibration: Tensor, score: Score, bounds: Bounds
) -> Precisions:
    """Measure a model in all precisions, timed in turns; ranges are taken from `calibration`."""
    models, scores, refused = dict[str, nn.Module](), dict[str, Tensor](), dict[str, str]()
    for precision, form in FORMS.items():
        try:
            variant = form(model, calibration).eval()
            scores[precision] = score.each(variant, validation)
            models[precision] = variant
        except Exception as error:  # PyTorch lacks an operation there
            refused[precision] = f"{type(error).__name__}: {error}".splitlines()[0]
    times = _times(models, validation.x)
    points = tuple(
        PrecisionPoint(
            each,
            float(scores[each].mean()),
            loss_between(scores["float32"], scores[each]),
            _size(models[each]),
            times[each].p50,
            times[each].p99,
        )
        for each in models
    )
    return Precisions(name, bounds, points, refused, models)


@torch.no_grad()
def _times(models: dict[str, nn.Module], x: Tensor) -> dict[str, Latency]:
    durations: dict[str, list[float]] = {name: [] for name in models}
    for call in range(WARM + CALLS):
        sample = x[call % len(x)][None]
        for name, model in models.items():
            begun = time.perf_counter_ns()
            model(sample)
            durations[name].append((time.perf_counter_ns() - begun) / 1000)
    ordered = {name: sorted(each[WARM:]) for name, each in durations.items()}
    return {name: Latency(each[CALLS // 2], each[CALLS * 99 // 100]) for name, each in ordered.items()}


def _size(model: nn.Module) -> int:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()
