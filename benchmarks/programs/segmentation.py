"""Segmentation of images, pixel by pixel, with pixels that are not labelled."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Shapes(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        row, column = torch.randint(0, 10, (2,), generator=generator).tolist()
        mask = torch.zeros(16, 16, dtype=torch.long)
        mask[row : row + 6, column : column + 6] = 1
        image = mask.float() + 0.3 * torch.randn(16, 16, generator=generator)
        mask[0] = 255  # not labelled
        return {"image": image.unsqueeze(0), "mask": mask}


class SmallUnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        skip = self.down(x)
        return self.head(torch.cat([skip, self.up(self.bottom(skip))], dim=1))


criterion = nn.CrossEntropyLoss(ignore_index=255)


def step(model, batch):
    return criterion(model(batch["image"]), batch["mask"])


job = paceline.Job(
    SmallUnet,
    DataLoader(Shapes(240), batch_size=16, shuffle=True, num_workers=2),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    test=DataLoader(Shapes(60), batch_size=16),
    epochs=2,
)
