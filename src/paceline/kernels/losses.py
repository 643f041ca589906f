"""The losses that have a kernel: each a mean over samples, and over the numbers of a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn
from torch.nn import functional as F

from paceline.kernels.layers.base import CannotFuse


class LossText(NamedTuple):
    """A loss as a text names it: a function of class numbers (`labels`), or of a target for each score."""

    name: str
    number: float = 0.0  # the loss's own: smoothing, beta, delta
    labels: bool = False
    #: Whether the model's last layer has to be a log-softmax, which the loss contains.
    of_logarithms: bool = False


@dataclass(frozen=True)
class Row:
    """How a loss is recognised: its function, the setting that is its number, and what other settings have to be."""

    text: LossText
    function: Callable[..., Any]
    number: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


LABELS = {"weight": None, "ignore_index": -100, "reduction": "mean"}
MEAN = {"reduction": "mean"}

LOSSES: dict[type[nn.Module], Row] = {
    nn.CrossEntropyLoss: Row(LossText("cross_entropy", labels=True), F.cross_entropy, "label_smoothing", LABELS),
    nn.NLLLoss: Row(LossText("cross_entropy", labels=True, of_logarithms=True), F.nll_loss, settings=LABELS),
    nn.MSELoss: Row(LossText("squared_error"), F.mse_loss, settings=MEAN),
    nn.L1Loss: Row(LossText("absolute_error"), F.l1_loss, settings=MEAN),
    nn.SmoothL1Loss: Row(LossText("smooth_error", 1.0), F.smooth_l1_loss, "beta", MEAN),
    nn.HuberLoss: Row(LossText("huber_error", 1.0), F.huber_loss, "delta", MEAN),
    nn.BCEWithLogitsLoss: Row(
        LossText("binary_cross_entropy"), F.binary_cross_entropy_with_logits,
        settings={**MEAN, "weight": None, "pos_weight": None},
    ),
}  # fmt: skip


def loss_kind(loss: Callable[..., Any]) -> LossText:
    """What the loss is called in a text."""
    for kind, row in LOSSES.items():
        if isinstance(loss, kind) or loss is row.function:
            given = {key: getattr(loss, key, value) for key, value in row.settings.items()}
            changed = [f"{key}={value!r}" for key, value in given.items() if value is not row.settings[key]
                       and value != row.settings[key]]  # fmt: skip
            if changed:
                raise CannotFuse(
                    f"{kind.__name__} with {', '.join(changed)} has no kernel, only the plain mean has; "
                    "compute='autograd' takes any loss"
                )
            number = float(getattr(loss, row.number, row.text.number)) if row.number else row.text.number
            if kind is nn.SmoothL1Loss and number == 0:
                return LOSSES[nn.L1Loss].text
            return row.text._replace(number=number)
    raise CannotFuse(
        f"the loss {getattr(loss, '__name__', loss)} has no kernel; {', '.join(k.__name__ for k in LOSSES)} have; "
        "compute='autograd' takes any loss"
    )
