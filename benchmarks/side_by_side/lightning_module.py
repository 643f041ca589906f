"""A LightningModule with two CPU processes, nothing logged or saved; under a plan of Paceline if PLAN names one."""

import os

import lightning
import torch
from common import SGD, Batch, Batches, Clock, network
from torch import nn


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.loss, self.clock = network(), nn.CrossEntropyLoss(), Clock()

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        x, y = batch
        return self.loss(self.model(x), y)

    def on_train_batch_end(self, *_: object) -> None:
        if self.global_rank == 0:
            self.clock.tick()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return SGD(self.parameters())


def strategy() -> object:
    if not os.environ["PLAN"]:
        return "ddp"
    from paceline.adapters.lightning import PacelineStrategy

    return PacelineStrategy(os.environ["PLAN"])


torch.set_num_threads(1)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=strategy(),
    max_epochs=1,
    use_distributed_sampler=False,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), Batches())
