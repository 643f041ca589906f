"""Models that went through `torch.compile`: the module within, and how it was to be compiled.

A compiled model has another name for every parameter (`_orig_mod.`) and cannot be sent to another process. So the
module within is what is trained and saved, and each worker compiles its own copy in place.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn


def unwrapped(model: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return the module within a compiled model and the keywords of its `torch.compile`; else the model, and None."""
    frames = sys.modules.get("torch._dynamo.eval_frame")  # imported by whatever has compiled a model
    if frames is None or not isinstance(model, frames.OptimizedModule):
        return model, None
    module: nn.Module = model._orig_mod
    return module, _keywords(model.dynamo_ctx)


def _keywords(context: Any) -> dict[str, Any]:
    """Return the keywords that a compiled model's context was made from, as far as PyTorch keeps them."""
    backend, keywords = getattr(context, "callback", None), dict[str, Any]()
    while (within := getattr(backend, "_torchdynamo_orig_backend", None)) is not None:
        backend = within
    if (name := getattr(backend, "compiler_name", "inductor")) != "inductor":
        keywords["backend"] = name
    options = {**getattr(backend, "config", {}), **getattr(backend, "kwargs", {}).get("options", {})}
    if options:
        keywords["options"] = options
    if getattr(context, "fullgraph", False):
        keywords["fullgraph"] = True
    if (dynamic := getattr(backend, "dynamic", None)) is not None:
        keywords["dynamic"] = dynamic
    return keywords
