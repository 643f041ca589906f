"""The ends of messages about names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

#: Names that PyTorch's scripts, Lightning, Accelerate and Transformers have for fields of a job.
FAMILIAR = {
    "criterion": "loss",
    "dataloader": "data",
    "dataset": "data",
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "gradient_clip_val": "gradient_clip_norm",
    "learning_rate": "optimizer",
    "loss_fn": "loss",
    "lr": "optimizer",
    "max_epochs": "epochs",
    "max_grad_norm": "gradient_clip_norm",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "scheduler": "lr_scheduler",
    "train_data": "data",
    "train_dataset": "data",
    "eval_dataset": "test",
    "test_data": "test",
    "val_data": "test",
    "validation_data": "test",
}


#: Options that other programs have for what Paceline sets elsewhere.
FAMILIAR_OPTIONS = {
    "--gpus": "give --workers and --device cuda",
    "--learning-rate": "the learning rate is the optimizer's: change the job file, or its [job.optimizer] in TOML",
    "--lr": "the learning rate is the optimizer's: change the job file, or its [job.optimizer] in TOML",
    "--max-epochs": "that is --epochs here",
    "--max-steps": "that is --max-updates here",
    "--nproc-per-node": "give --workers: Paceline starts the processes itself",
    "--precision": 'it is the job\'s: change the job file, or its [job] in TOML, as in precision = "bf16-mixed"',
    "--num-workers": "give --workers for processes that train, or num_workers= in the job for those that load samples",
}


def suggest(given: object, allowed: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the nearest allowed one, then all of them."""
    names = sorted(allowed)
    word, lower = str(given).lower(), {name.lower(): name for name in names}
    near = difflib.get_close_matches(word, lower, n=1) or [name for name in lower if word and name.startswith(word)]
    return f"{f'did you mean {lower[near[0]]!r}? Allowed' if near else 'allowed'}: {', '.join(names) or 'none'}"


def meant(unknown: str, known: Collection[str]) -> str:
    """Return the end of a message about an argument that does not exist."""
    if FAMILIAR.get(unknown) in known:
        return f"that is {FAMILIAR[unknown]}= here"
    return suggest(unknown, known)
