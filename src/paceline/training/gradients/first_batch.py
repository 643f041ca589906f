"""What to say when the first batch fails: what the batch holds, and what to do about the commonest faults."""

from __future__ import annotations

import re

from paceline.training.jobs.job import Batch
from paceline.training.jobs.listing import described

#: What PyTorch says, and what to do.
REMEDIES = {
    r"expected (target dtype|scalar type) (to be )?Long": (
        "a classification loss takes whole numbers as targets, as by y.long()"
    ),
    r"should be the same|same dtype|[Ee]xpected scalar type|expected m1 and m2|not match weight dtype": (
        "give the inputs the type of the model's parameters, as by x.float(), or x.float() / 255 for images in bytes"
    ),
    r"must be Tensor, not NoneType|'NoneType' object has no": "does forward() of the model end with a return?",
    r"multi-target not supported": "class numbers have one dimension, as by y.squeeze(1)",
    r"Target -?\d+ is out of bounds": (
        "class numbers are 0 to the number of the model's outputs minus 1; correct the labels, or give the model more "
        "outputs"
    ),
    r"`target` to be an int or long tensor": (
        "metrics get targets as the loss does; convert them, as by "
        "evaluate=lambda model, batch: (model(batch[0]), batch[1].long())"
    ),
    r"not (tuple|list)$|got \((tuple|list)\b|'(tuple|list)' object has no attribute": (
        "a batch of tensors is a tuple, also of one: take it apart in step=, as by `x, = batch` or `x, y = batch`"
    ),
    r"default_collate.*NoneType": (
        "let __getitem__ of the Dataset return tensors or numbers, never None, or give a DataLoader with a collate_fn"
    ),
    r"stack expects each tensor to be equal size": (
        "give a DataLoader with a collate_fn that pads the samples of a batch, as by torch.nn.utils.rnn.pad_sequence"
    ),
    r"default_collate": (
        "leave that field out of the samples, or give a DataLoader with a collate_fn that makes batches of them"
    ),
}


def hint(fault: BaseException, batch: Batch = None) -> str:
    """Return the end of a message about a fault: the remedy if one is known, and the batch if there is one."""
    hints = [remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, str(fault))][:1]
    if batch is not None:
        hints.append(f"the batch is {described(batch)}")
    return "".join(f"; {each}" for each in hints)
