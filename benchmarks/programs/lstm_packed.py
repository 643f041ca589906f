"""An LSTM on packed sequences, which the collate_fn makes."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset

import paceline


class Waves(Dataset):
    """Sine waves of different lengths; the label is the fast or the slow kind."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.samples = []
        for _ in range(size):
            length = int(torch.randint(5, 25, (), generator=generator))
            fast = int(torch.randint(2, (), generator=generator))
            phase = torch.rand((), generator=generator) * 6
            wave = torch.sin(torch.arange(length) * (0.9 if fast else 0.4) + phase)
            self.samples.append((wave.unsqueeze(1), fast))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def collate(samples):
    waves, labels = zip(*samples, strict=True)
    return pack_sequence(list(waves), enforce_sorted=False), torch.tensor(labels, dtype=torch.float32)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 24)
        self.head = nn.Linear(24, 1)

    def forward(self, packed):
        _, (hidden, _) = self.lstm(packed)
        return self.head(hidden[-1]).squeeze(1)


job = paceline.Job(
    Classifier,
    DataLoader(Waves(600, seed=1), batch_size=30, shuffle=True, collate_fn=collate),
    nn.BCEWithLogitsLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    test=DataLoader(Waves(200, seed=2), batch_size=100, collate_fn=collate),
    metrics={"accuracy": lambda output, target: ((output > 0) == (target > 0.5)).float().mean()},
    epochs=3,
    gradient_clip_norm=1.0,
)
