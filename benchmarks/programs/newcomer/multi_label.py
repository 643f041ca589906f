"""Several labels for each sample: weighted BCE, torchmetrics and scikit-learn side by side."""

import torch
from sklearn.metrics import average_precision_score
from torch import nn
from torchmetrics.classification import MultilabelF1Score

import paceline

x = torch.randn(300, 10)
y = (x @ torch.randn(10, 6) > 0).float()
job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(10, 32), nn.Mish(), nn.Linear(32, 6)),
    (x, y),
    nn.BCEWithLogitsLoss(pos_weight=torch.full((6,), 2.0)),
    optimizer=lambda p: torch.optim.Adam(p, amsgrad=True),
    batch_size=30,
    epochs=2,
    test=(x[:100], y[:100]),
    metrics={
        "f1": MultilabelF1Score(6),
        "map": lambda o, y: average_precision_score(y.numpy(), o.sigmoid().numpy(), average="macro"),
    },
)
