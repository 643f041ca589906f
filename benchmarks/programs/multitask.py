"""Two tasks from one trunk; samples and batches are nested dictionaries."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Digits(Dataset):
    def __init__(self, first, last):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32)[first:last] / 16
        self.labels = torch.tensor(labels)[first:last]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        label = self.labels[index]
        return {
            "image": self.images[index],
            "targets": {"digit": label, "ink": self.images[index].mean(), "odd": (label % 2).float()},
            "id": f"image-{index}",
        }


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.digit, self.ink, self.odd = nn.Linear(48, 10), nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, image):
        hidden = self.trunk(image)
        return {"digit": self.digit(hidden), "ink": self.ink(hidden)[:, 0], "odd": self.odd(hidden)[:, 0]}


def step(model, batch):
    out, targets = model(batch["image"]), batch["targets"]
    return (
        nn.functional.cross_entropy(out["digit"], targets["digit"])
        + nn.functional.mse_loss(out["ink"], targets["ink"])
        + nn.functional.binary_cross_entropy_with_logits(out["odd"], targets["odd"])
    )


job = paceline.Job(
    TwoHeads,
    DataLoader(Digits(0, 1400), batch_size=64, shuffle=True),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p, lr=2e-3),
    test=DataLoader(Digits(1400, 1797), batch_size=100),
    evaluate=lambda model, batch: (model(batch["image"])["digit"], batch["targets"]["digit"]),
    metrics={"digit_accuracy": lambda output, target: (output.argmax(1) == target).float().mean()},
    epochs=2,
)
