"""Hugging Face's Trainer over Paceline's shared memory: `torchrun --nproc-per-node 2 huggingface_trainer.py`.

The argument is a backend: paceline, or gloo to compare.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, EvalPrediction, Trainer, TrainingArguments

WAY = sys.argv[1] if len(sys.argv) > 1 else "paceline"
if "RANK" not in os.environ:  # started without torchrun
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    os.execv(sys.executable, [*torchrun, __file__, WAY])

dist.init_process_group(WAY)  # before TrainingArguments, which would create a gloo group
torch.manual_seed(0)
words = torch.randint(1, 50, (1200, 12))
data = [{"input_ids": row, "labels": (row < 10).sum().gt(2).long()} for row in words]
config = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, num_labels=2,
)  # fmt: skip
model = BertForSequenceClassification(config)


def measure(result: EvalPrediction) -> dict[str, float]:
    return {"right": float((result.predictions.argmax(1) == result.label_ids).mean())}


with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        folder, use_cpu=True, num_train_epochs=5, per_device_train_batch_size=20, learning_rate=3e-3, seed=0,
        save_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model, settings, train_dataset=data[:1000], eval_dataset=data[1000:], compute_metrics=measure)
    trainer.train()
    figures = trainer.evaluate()
if trainer.is_world_process_zero():
    print(
        f"{dist.get_world_size()} processes, {WAY}: {figures['eval_right']:.1%} right, loss {figures['eval_loss']:.8f}"
    )
dist.destroy_process_group()
