"""Randomness as a function of (seed, update, chunk, module), never of the worker or of time.

Reseeding the default generator costs about a microsecond (torch.manual_seed, which visits every device, costs a
hundred), so it is done at the start of every chunk and again before every module that draws. So a chunk draws
the same numbers at every worker, in every part of the model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from paceline.algorithms.chance import mix

_DRAWING = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention, nn.RReLU)


class Chance:
    """Seeds a module's randomness by the chunk that `begin` names.

    Without `by_module` only the chunk's start is seeded: a hook of a module would cut compiled code in two.
    """

    def __init__(
        self, module: nn.Module, seed: int, device: torch.device | None = None, *, by_module: bool = True
    ) -> None:
        self._start = mix(seed, 0)
        self._chunk = self._turn = self._before = 0
        self._seed = _seeder(device)
        for number, part in enumerate(module.modules(), start=1):
            if by_module and draws(part):
                part.register_forward_pre_hook(self._reseeder(number))

    def begin(self, update: int, chunk: int, call: tuple[int, int] | None = None) -> None:
        """Seed the generators for a chunk; or for one `call`: of which part of the model, and after how many others."""
        self._turn += 1
        self._chunk = mix(self._start, update, chunk)
        self._before = call[1] if call else 0
        self._seed(mix(self._chunk, *call) if call else self._chunk)

    def again(self) -> None:
        """Seed the generators as at the start of the chunk."""
        self._seed(self._chunk)

    def _reseeder(self, number: int):  # type: ignore[no-untyped-def]
        salts = [mix(number)]  # of the first, second ... call in a chunk: one dropout used twice draws twice
        turn = call = 0

        def reseed(part: nn.Module, inputs: object) -> None:
            nonlocal turn, call
            if not part.training:
                return
            now = -self._turn if torch._C._current_graph_task_id() >= 0 else self._turn  # again, for a checkpoint
            turn, call = now, call + 1 if turn == now else self._before
            while call >= len(salts):
                salts.append(mix(number, len(salts)))
            self._seed(self._chunk ^ salts[call])

        return reseed


def _seeder(device: torch.device | None) -> Callable[[int], object]:
    """Return a function that seeds the CPU's generator, and the device's where the module is on a GPU."""
    host = torch.default_generator.manual_seed
    if device is None or device.type != "cuda":
        return host
    seed_device = torch.cuda.default_generators[device.index or 0].manual_seed

    def seed_both(seed: int) -> None:
        host(seed)
        seed_device(seed)

    return seed_both


def draws(part: nn.Module) -> bool:
    """Return whether a module draws random numbers in training."""
    if not isinstance(part, _DRAWING):
        return False
    dropout = getattr(part, "dropout", getattr(part, "p", 1.0))
    return isinstance(part, nn.RReLU) or dropout > 0


def reseed(part: nn.Module, inputs: tuple[object, ...]) -> None:
    """Seed as a call of the module would, where its parts are called instead of it."""
    for hook in part._forward_pre_hooks.values():
        hook(part, inputs)
