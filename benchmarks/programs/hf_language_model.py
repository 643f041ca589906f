"""A small GPT-2 with transformers' own collator; the test figure is perplexity."""

import random

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

import paceline

rng = random.Random(1)


def text():
    start = rng.randrange(40)
    return {"input_ids": [(start + 3 * step + (rng.random() < 0.1)) % 40 for step in range(rng.randrange(8, 16))]}


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


train = Dataset.from_list([text() for _ in range(400)])
test = Dataset.from_list([text() for _ in range(100)])
config = GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)

job = paceline.Job(
    model=lambda: GPT2LMHeadModel(config),
    data=DataLoader(train, batch_size=20, shuffle=True, collate_fn=collate),
    test=DataLoader(test, batch_size=20, collate_fn=collate),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
    epochs=2,
)
