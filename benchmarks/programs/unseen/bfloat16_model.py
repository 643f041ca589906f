"""A model whose parameters are bfloat16, and data in single precision that is cast in forward."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10)).bfloat16()

    def forward(self, x):
        return self.body(x.bfloat16()).float()


job = paceline.Job(
    Net,
    (x[:1400], y[:1400]),
    nn.CrossEntropyLoss(label_smoothing=0.1),
    optimizer=lambda p: torch.optim.AdamW(p, lr=2e-3),
    test=(x[1400:], y[1400:]),
    batch_size=70,
    epochs=2,
)
