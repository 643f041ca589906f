"""Detection as torchvision has it: images and targets are lists, and the model returns a dictionary of losses."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Boxes(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        number = int(torch.randint(1, 4, (), generator=draw))
        image, boxes = torch.zeros(1, 24, 24), torch.randint(2, 18, (number, 2), generator=draw).float()
        for left, top in boxes.int().tolist():
            image[0, top : top + 4, left : left + 4] = 1.0
        return image, {"boxes": boxes, "labels": torch.ones(number, dtype=torch.long), "name": f"{index}.png"}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.heat, self.shift = nn.Conv2d(16, 1, 1), nn.Conv2d(16, 2, 1)

    def forward(self, images, targets=None):
        hidden = self.body(torch.stack(list(images)))
        heat, shift = self.heat(hidden)[:, 0], self.shift(hidden)
        if targets is None:
            return heat, shift
        wanted, off = torch.zeros_like(heat), heat.new_zeros(())
        for row, target in enumerate(targets):
            for box in target["boxes"]:
                column, line = (box / 4).int().tolist()
                wanted[row, line, column] = 1.0
                off = off + (shift[row, :, line, column] - (box / 4 - (box / 4).floor())).abs().sum() / len(targets)
        return {"objectness": nn.functional.binary_cross_entropy_with_logits(heat, wanted), "regression": off}


job = paceline.Job(
    Detector,
    DataLoader(Boxes(), batch_size=20, shuffle=True, collate_fn=lambda batch: tuple(zip(*batch, strict=True))),
    step=lambda model, batch: sum(model(*batch).values()),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    epochs=2,
)
