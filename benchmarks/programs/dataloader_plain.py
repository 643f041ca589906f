"""The two DataLoaders of any tutorial."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

x, y = load_breast_cancer(return_X_y=True)
x = (x - x.mean(0)) / x.std(0)
x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)


def dataset(x, y):
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


train_loader = DataLoader(dataset(x_train, y_train), batch_size=32, shuffle=True, num_workers=2, pin_memory=True)
test_loader = DataLoader(dataset(x_test, y_test), batch_size=128)

model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))

job = paceline.Job(
    model,
    train_loader,
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
    test=test_loader,
    epochs=3,
)
