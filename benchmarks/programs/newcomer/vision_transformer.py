"""A ViT whose loader renames `label` to `labels`, and a test set that does not."""

import torch
from torch.utils.data import DataLoader
from transformers import ViTConfig, ViTForImageClassification, default_data_collator

import paceline

cfg = ViTConfig(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=16,
    patch_size=4,
    num_labels=4,
)
data = [{"pixel_values": torch.randn(3, 16, 16), "label": i % 4} for i in range(64)]
job = paceline.Job(
    lambda: ViTForImageClassification(cfg),
    DataLoader(data, batch_size=16, shuffle=True, collate_fn=default_data_collator),
    optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
    test=data,
    metrics={"acc": lambda o, y: (o.argmax(-1) == y).float().mean()},
    epochs=2,
)
