"""A stream from a file, read line by line, that states no length and shuffles in a buffer."""

import csv
import random
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_iris
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import paceline

path = Path(tempfile.gettempdir()) / "iris-stream.csv"
x, y = load_iris(return_X_y=True)
with path.open("w", newline="") as file:
    csv.writer(file).writerows([*row, label] for row, label in zip(x.tolist(), y.tolist(), strict=True))


class Lines(IterableDataset):
    def __init__(self, path, buffer=50):
        self.path, self.buffer = path, buffer

    def __iter__(self):
        held = []
        with open(self.path) as file:
            for *numbers, label in csv.reader(file):
                held.append((torch.tensor([float(n) for n in numbers]), int(label)))
                if len(held) == self.buffer:
                    yield held.pop(random.randrange(len(held)))
        random.shuffle(held)
        yield from held


job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)),
    DataLoader(Lines(path), batch_size=15),
    nn.functional.cross_entropy,
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    epochs=4,
)
