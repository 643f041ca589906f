"""Lightning's Trainer over Paceline: `python lightning_script.py downpour`.

The argument is a plan, or a backend for Lightning's own DDP: paceline, or gloo to compare.
"""

import sys

import pytorch_lightning as lightning
import torch
from paceline.adapters.lightning import PacelineStrategy
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

WAY = sys.argv[1] if len(sys.argv) > 1 else "downpour"


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        inputs, target = batch
        return nn.functional.cross_entropy(self.network(inputs), target)

    def validation_step(self, batch: list[Tensor]) -> None:
        inputs, target = batch
        output = self.network(inputs)
        self.log("loss", nn.functional.cross_entropy(output, target), sync_dist=True)
        self.log("right", (output.argmax(1) == target).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


lightning.seed_everything(0, verbose=False)
torch.set_num_threads(1)
inputs = torch.randn(5000, 20)
data = TensorDataset(inputs, (inputs[:, :5].sum(1) > 0).long())
train, test = torch.utils.data.random_split(data, [4000, 1000])

strategy = DDPStrategy(process_group_backend=WAY) if WAY in ("gloo", "paceline") else PacelineStrategy(WAY)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=3, **quiet)
model = Classifier()
trainer.fit(model, DataLoader(train, batch_size=50, shuffle=True))
(figures,) = trainer.validate(model, DataLoader(test, batch_size=100), verbose=False)
if trainer.is_global_zero:
    print(f"{trainer.world_size} processes, {WAY}: {figures['right']:.1%} right, loss {figures['loss']:.8f}")
torch.distributed.destroy_process_group()  # Lightning leaves it, and gloo's threads may then abort at the exit
