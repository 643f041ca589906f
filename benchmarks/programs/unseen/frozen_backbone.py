"""Fine-tuning: the backbone is frozen and in eval mode, only the head learns, with a group of its own."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32)[:, None].view(-1, 1, 8, 8) / 16, torch.tensor(labels)


class FineTuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(16 * 36, 10)
        self.backbone.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


job = paceline.Job(
    FineTuned,
    (x[:1400], y[:1400]),
    nn.CrossEntropyLoss(),
    optimizer=lambda model: torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=3e-3),
    test=(x[1400:], y[1400:]),
    batch_size=70,
    epochs=2,
)
