"""The check that the user's optimizer steps parts of a parameter as it steps the whole."""

from __future__ import annotations

import torch
from torch import nn

from paceline.errors import PlanError
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import Optimizer, bare_step, optimizer_over

STEPS = 3


def check_parts(optimizer: Optimizer, module: nn.Module) -> None:
    """Raise `PlanError` for an optimizer whose step of a number depends on others (Muon, Adafactor, LAMB).

    A copy of it steps a small matrix, and another one its halves. What takes only matrices is tried with the first
    matrix's settings.
    """
    named = trainable(module)
    chosen = next((p for p in named.values() if p.dim() == 2), next(iter(named.values())))
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    gradients = [torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(STEPS)]
    full = _stepped(optimizer, chosen, value, gradients)
    halves = [_stepped(optimizer, chosen, value[rows], [g[rows] for g in gradients]) for rows in _HALVES]
    if not torch.allclose(full, torch.cat(halves), rtol=1e-9, atol=1e-12):
        raise PlanError(
            f"{type(optimizer).__name__} steps each number by others of its matrix, and under this plan a worker has a "
            "part of it alone; use an optimizer such as SGD, Adam or Adagrad, or a plan that does not split layers"
        )


_HALVES = (slice(0, 2), slice(2, 6))


def _stepped(
    optimizer: Optimizer, chosen: nn.Parameter, value: torch.Tensor, gradients: list[torch.Tensor]
) -> torch.Tensor:
    parameter = nn.Parameter(value.clone())
    copy = optimizer_over(optimizer, {chosen: parameter})
    for state in _initial(optimizer, chosen, parameter):
        copy.state[parameter] = state
    for gradient in gradients:
        parameter.grad = gradient.clone()
        bare_step(copy)()
    return parameter.detach()


def _initial(optimizer: Optimizer, chosen: nn.Parameter, parameter: nn.Parameter) -> list[dict[str, object]]:
    """Return the state that some optimizers (Adagrad) make at once, of the right shape."""
    state = optimizer.state.get(chosen)
    if not state:
        return []
    return [{key: _like(parameter, value, chosen.shape) for key, value in state.items()}]


def _like(parameter: nn.Parameter, value: object, shape: torch.Size) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.full_like(parameter, float(value.flatten()[0])) if value.shape == shape else value.clone()
