"""A T5 from a configuration, with padded labels of -100 and its own loss."""

import torch
from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration

import paceline

cfg = T5Config(
    vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, dropout_rate=0.1
)


class Pairs(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(torch.randint(4, 9, (1,), generator=g))
        x = torch.zeros(8, dtype=torch.long)
        x[:n] = torch.randint(2, 64, (n,), generator=g)
        y = x.clone()
        y[n:] = -100
        return {"input_ids": x, "attention_mask": (x > 0).long(), "labels": y}


job = paceline.Job(
    lambda: T5ForConditionalGeneration(cfg),
    Pairs(),
    optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
    batch_size=16,
    epochs=1,
)
