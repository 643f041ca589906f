"""A convolutional beta-VAE that returns a dictionary, and whose KL weight grows with a counter kept as a buffer."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

images = torch.tensor(load_digits().images, dtype=torch.float32)[:1200, None] / 16


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.mean, self.log_variance = nn.Linear(256, 8), nn.Linear(256, 8)
        self.decoder = nn.Sequential(
            nn.Linear(8, 256), nn.Unflatten(1, (16, 4, 4)), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1)
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, image):
        if self.training:
            self.seen += 1
        hidden = self.encoder(image)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return {"image": self.decoder(z), "mean": mean, "log_variance": log_variance}


def step(model, batch):
    (image,) = batch
    out = model(image)
    distance = nn.functional.binary_cross_entropy_with_logits(out["image"], image, reduction="none").flatten(1).sum(1)
    kl = -0.5 * (1 + out["log_variance"] - out["mean"] ** 2 - out["log_variance"].exp()).sum(1)
    beta = min(1.0, float(getattr(model, "seen", 100)) / 20)
    return (distance + beta * kl).mean()


job = paceline.Job(Vae, (images,), step=step, optimizer=lambda p: torch.optim.Adam(p, lr=2e-3), batch_size=60, epochs=2)
