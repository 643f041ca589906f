"""A U-Net with Dice and cross entropy: the loss is one of the whole batch."""

import torch
from torch import nn

import paceline


class Double(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.u1 = Double(1, 8), Double(8, 16), Double(24, 8)
        self.pool, self.up, self.out = nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(self.pool(a))
        return self.out(self.u1(torch.cat([a, self.up(b)], 1)))


class DiceBCE(nn.Module):
    def forward(self, logits, y):
        p = logits.sigmoid()
        dice = 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)
        return nn.functional.binary_cross_entropy_with_logits(logits, y) + dice


x = torch.randn(64, 1, 16, 16, generator=torch.Generator().manual_seed(0))
y = (x > 0.3).float()
job = paceline.Job(
    UNet, (x, y), DiceBCE(), optimizer=lambda p: torch.optim.AdamW(p, 1e-3), batch_size=16, epochs=2, test=(x, y)
)
