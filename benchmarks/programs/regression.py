"""Regression on the diabetes data; the loss is Huber's, the test figure RMSE."""

import torch
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler
from torch import nn

import paceline

x, y = load_diabetes(return_X_y=True)
x, y = StandardScaler().fit_transform(x), (y - y.mean()) / y.std()
x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32).unsqueeze(1)


def rmse(output, target):
    return nn.functional.mse_loss(output, target).sqrt()


job = paceline.Job(
    nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)),
    torch.utils.data.TensorDataset(x[:342], y[:342]),
    nn.HuberLoss(),
    optimizer=lambda p: torch.optim.RMSprop(p, lr=1e-3),
    test=torch.utils.data.TensorDataset(x[342:], y[342:]),
    metrics={"rmse": rmse},
    batch_size=20,
    epochs=4,
)
