"""Complex parameters: a filter in the Fourier domain, as neural operators have it."""

import torch
from torch import nn

import paceline

draw = torch.Generator().manual_seed(0)
signal = torch.randn(400, 32, generator=draw)
smooth = torch.fft.irfft(torch.fft.rfft(signal) * torch.exp(-torch.arange(17.0) / 4), n=32)


class SpectralFilter(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.ones(17, dtype=torch.cfloat))
        self.shift = nn.Parameter(torch.zeros(32))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=32) + self.shift


job = paceline.Job(
    lambda: nn.Sequential(SpectralFilter(), nn.Linear(32, 32)),
    (signal, smooth),
    nn.MSELoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    batch_size=40,
    epochs=3,
)
