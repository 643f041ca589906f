"""The losses that have a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from paceline.kernels.layers.base import CannotFuse

#: By class: the loss's name in a text, the function that does the same, and the settings that have a kernel.
LOSSES: dict[type[nn.Module], tuple[str, Callable[..., Any], dict[str, Any]]] = {
    nn.CrossEntropyLoss: (
        "cross_entropy",
        nn.functional.cross_entropy,
        {"weight": None, "ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"},
    ),
    nn.MSELoss: ("squared_error", nn.functional.mse_loss, {"reduction": "mean"}),
}


def loss_kind(loss: Callable[..., Any]) -> str:
    """What the loss is called in a text."""
    for kind, (name, function, plain) in LOSSES.items():
        if isinstance(loss, kind) or loss is function:
            given = {key: getattr(loss, key, value) for key, value in plain.items()}
            changed = [f"{key}={value!r}" for key, value in given.items() if value != plain[key]]
            if changed:
                raise CannotFuse(
                    f"{kind.__name__} with {', '.join(changed)} has no kernel, only the plain mean has; "
                    "compute='autograd' takes any loss"
                )
            return name
    raise CannotFuse(
        f"the loss {getattr(loss, '__name__', loss)} has no kernel; nn.CrossEntropyLoss() and nn.MSELoss() have; "
        "compute='autograd' takes any loss"
    )
