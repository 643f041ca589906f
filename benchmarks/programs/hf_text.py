"""Text classification with a transformers model, which computes its own loss."""

import random

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification

import paceline

rng = random.Random(0)


def row():
    label = rng.randrange(2)
    tokens = [rng.randrange(5, 60) + (60 if label and rng.random() < 0.4 else 0) for _ in range(16)]
    return {"input_ids": tokens, "attention_mask": [1] * 16, "labels": label}


rows = [row() for _ in range(640)]
train = Dataset.from_list(rows[:512]).with_format("torch")
test = Dataset.from_list(rows[512:]).with_format("torch")

config = BertConfig(
    vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=32,
)  # fmt: skip

job = paceline.Job(
    lambda: BertForSequenceClassification(config),
    train,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    test=test,
    batch_size=32,
    epochs=2,
)
