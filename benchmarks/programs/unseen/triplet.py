"""Triplets: a Dataset that draws an anchor, a positive and a negative, one network called three times."""

import random

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Triplets(Dataset):
    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        self.images, self.labels = torch.tensor(images[:600], dtype=torch.float32) / 16, labels[:600]
        self.of = {digit: [i for i, label in enumerate(self.labels) if label == digit] for digit in range(10)}

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        digit = self.labels[index]
        other = random.choice([each for each in range(10) if each != digit])
        near, far = random.choice(self.of[digit]), random.choice(self.of[other])
        return self.images[index], self.images[near], self.images[far]


embed = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
criterion = nn.TripletMarginLoss(margin=1.0)


def step(model, batch):
    anchor, positive, negative = batch
    return criterion(model(anchor), model(positive), model(negative))


job = paceline.Job(
    embed, DataLoader(Triplets(), batch_size=40, shuffle=True), step=step, optimizer=torch.optim.Adam, epochs=2
)
