"""An exponential moving average of the weights, by torch's own AveragedModel, updated by a callback and evaluated."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Averaged(nn.Module):
    """Trains one network and evaluates the average of it."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9)).requires_grad_(False)

    def forward(self, x):
        if self.training:
            self.ema.update_parameters(self.net)
            return self.net(x)
        return self.ema(x)


job = paceline.Job(
    Averaged,
    (x[:1400], y[:1400]),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD([each for each in p if each.requires_grad], lr=0.2),
    test=(x[1400:], y[1400:]),
    batch_size=70,
    epochs=2,
)
