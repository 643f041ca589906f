"""A Trainer class as people write one: accumulation, clipping, a warm-up schedule, evaluation, the best state kept."""

import copy
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Trainer:
    def __init__(self, model, optimizer, schedule, accumulate=2):
        self.model, self.optimizer, self.schedule, self.accumulate = model, optimizer, schedule, accumulate
        self.best, self.best_loss = None, float("inf")

    def train_epoch(self, loader):
        self.model.train()
        self.optimizer.zero_grad()
        for number, (inputs, target) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(self.model(inputs), target) / self.accumulate
            loss.backward()
            if number % self.accumulate == 0:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        loss = float(nn.functional.cross_entropy(self.model(x[1500:]), y[1500:]))
        if loss < self.best_loss:
            self.best_loss, self.best = loss, copy.deepcopy(self.model.state_dict())
        return loss


def main(plan):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=25, shuffle=True)
    with paceline.parallel(model, optimizer, plan=plan, folder=None) as (model, optimizer):
        trainer = Trainer(model, optimizer, schedule)
        for _ in range(2):
            trainer.train_epoch(loader)
            loss = trainer.evaluate()
    return loss


if __name__ == "__main__":
    print(f"loss {main(sys.argv[1]):.4f}")
