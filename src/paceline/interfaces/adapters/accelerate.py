"""Accelerate's `Accelerator`, whose `prepare` puts the model and its optimizer under a plan.

accelerator = Accelerator("downpour")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
...                                                                         # the loop stays as it is
accelerator.end_training()                                                  # where the plan ends, too
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import accelerate
import torch
import torch.distributed as dist
from torch import nn

from paceline.errors import UsageError
from paceline.interfaces.api.parallel import parallel
from paceline.plans.plan import Plan

__all__ = ["Accelerator"]


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]
    """Takes the `plan`, `folder` and timeout (here `deadline`) of `paceline.parallel`; `more` is Accelerate's."""

    def __init__(
        self, plan: str | Plan = "ring", *, folder: str | None = None, deadline: float = 120.0, **more: Any
    ) -> None:
        if "RANK" in os.environ and not dist.is_initialized():
            dist.init_process_group("paceline")  # Accelerate would take gloo
        super().__init__(**{"cpu": True, **more})
        self._plan, self._folder, self._deadline = plan, folder, deadline
        self._block = ExitStack()

    def prepare(self, *objects: Any, **more: Any) -> Any:
        models = [each for each in objects if isinstance(each, nn.Module)]
        optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
        if (models or optimizers) and (len(models), len(optimizers)) != (1, 1):
            raise UsageError(
                f"a plan goes with one model and its optimizer, prepared together; here are {len(models)} models and "
                f"{len(optimizers)} optimizers"
            )
        prepared = super().prepare(*objects, **more)
        for model, optimizer in zip(models, optimizers, strict=True):
            block = parallel(model, optimizer, self._plan, folder=self._folder, timeout=self._deadline)
            self._block.enter_context(block)
        return prepared

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        """Prepare the model as Accelerate prepares one that is not trained: without DistributedDataParallel."""
        return super().prepare_model(model, device_placement, evaluation_mode=True)

    def end_training(self) -> None:
        self._block.close()
        super().end_training()
