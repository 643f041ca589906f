"""Lightning's Trainer under a plan: `PacelineStrategy`.

    trainer = Trainer(accelerator="cpu", devices=2, strategy=PacelineStrategy("downpour"))

It is DDPStrategy without DDP: processes, samplers and whatever else is gathered or reduced are Lightning's, over the
paceline backend; between the start and the end of the training, the optimizer's steps are the plan's.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from torch import nn

from paceline.errors import UsageError
from paceline.interfaces.api.parallel import parallel
from paceline.plans.plan import Plan

if "lightning" in sys.modules:  # Lightning has two names, and a Trainer takes only strategies of its own name
    from lightning.pytorch.strategies import DDPStrategy
else:
    from pytorch_lightning.strategies import DDPStrategy

__all__ = ["PacelineStrategy"]


class PacelineStrategy(DDPStrategy):  # type: ignore[misc]
    """Takes the `plan`, `folder` and timeout (here `deadline`) of `paceline.parallel`; `more` is DDPStrategy's."""

    def __init__(
        self, plan: str | Plan = "ring", *, folder: str | None = None, deadline: float = 120.0, **more: Any
    ) -> None:
        super().__init__(**{"process_group_backend": "paceline", **more})
        self._plan, self._folder, self._deadline = plan, folder, deadline
        self._block = ExitStack()

    def _setup_model(self, model: nn.Module) -> nn.Module:
        """Leave the model without DistributedDataParallel."""
        return model

    def on_train_start(self) -> None:
        """Enter the plan now, when a checkpoint has restored the optimizer's state, and not before."""
        super().on_train_start()
        if len(self.optimizers) != 1:
            raise UsageError(f"a plan goes with one optimizer, and this LightningModule has {len(self.optimizers)}")
        block = parallel(
            self.lightning_module, self.optimizers[0], self._plan, folder=self._folder, timeout=self._deadline
        )
        self._block.enter_context(block)

    def on_train_end(self) -> None:
        self._block.close()
        super().on_train_end()

    def on_exception(self, exception: BaseException) -> None:
        self._block.__exit__(type(exception), exception, exception.__traceback__)
        super().on_exception(exception)
