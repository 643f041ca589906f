"""Connectionist temporal classification: inputs and targets of different lengths, and a loss with four arguments."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Speech(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        letters = torch.randint(1, 6, (int(torch.randint(2, 6, (), generator=draw)),), generator=draw)
        sound = nn.functional.one_hot(letters.repeat_interleave(4), 6).float()
        return sound + 0.1 * torch.randn(sound.shape, generator=draw), letters


def collate(samples):
    sounds, letters = zip(*samples, strict=True)
    return {
        "sound": nn.utils.rnn.pad_sequence(sounds, batch_first=True),
        "sound_length": torch.tensor([len(each) for each in sounds]),
        "letters": torch.cat(letters),
        "letters_length": torch.tensor([len(each) for each in letters]),
    }


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.rnn = nn.Conv1d(6, 24, 3, padding=1), nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 6)

    def forward(self, sound):
        hidden = torch.relu(self.conv(sound.transpose(1, 2))).transpose(1, 2)
        return self.out(self.rnn(hidden)[0]).log_softmax(2)


def step(model, batch):
    output = model(batch["sound"]).transpose(0, 1)
    return nn.functional.ctc_loss(output, batch["letters"], batch["sound_length"], batch["letters_length"])


job = paceline.Job(
    Recognizer,
    DataLoader(Speech(), batch_size=20, shuffle=True, collate_fn=collate),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    epochs=2,
)
