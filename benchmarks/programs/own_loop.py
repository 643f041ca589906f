"""A training loop of one's own, around a DataLoader."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def main(plan):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    with paceline.parallel(model, optimizer, plan=plan, folder=None) as (model, optimizer):
        for _ in range(2):
            for inputs, target in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), target)
                loss.backward()
                optimizer.step()
    return float(nn.functional.cross_entropy(model(x), y).detach())


if __name__ == "__main__":
    print(f"loss {main(sys.argv[1]):.4f}")
