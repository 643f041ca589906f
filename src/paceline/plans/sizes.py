"""Chunks of unequal sizes: a batch is divided among workers of unequal speed as `sizes=3+1` says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import PlanError

MEASURED = "measured"  # sizes that follow the speeds of workers while they train


def sizes_of(plan: str, text: str) -> tuple[int, ...]:
    """Return the relative sizes of chunks that a plan's option states; none if they are equal."""
    words = text.split("+") if text and text != MEASURED else []
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise PlanError(
            f"plan {plan!r}: sizes={text} are not whole numbers of at least 1, joined by +; write sizes=3+1 for a "
            "first worker that takes three quarters of every batch"
        )
    return tuple(map(int, words))


def count_chunks(
    plan: str, sizes: tuple[int, ...], chosen: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options with as many workers, or chunks of one process, as there are sizes."""
    if not sizes:
        return dict(chosen)
    counted = "workers" if "workers" in chosen else "chunks"
    if options.get(counted, len(sizes)) != len(sizes):
        raise PlanError(
            f"plan {plan!r}: sizes={chosen['sizes']} states {len(sizes)} sizes, and {counted}={options[counted]}; "
            "give a "
            "size for each"
        )
    return {**chosen, counted: len(sizes)}


def refuse_canonical(plan: str, options: Mapping[str, Any]) -> None:
    """Raise `PlanError` for options that do not go with a canonical sum."""
    if not options.get("canonical") and options.get("sizes") == MEASURED:
        raise PlanError(
            f"plan {plan!r}: sizes={MEASURED} moves chunks from worker to worker during the training, which changes "
            "its bits unless they are summed in one order; give canonical= too, as in canonical=8"
        )
    if not options.get("canonical"):
        return
    reasons = {
        "codec": "a codec owes what it leaves out to the next gradient of the same worker, so the bits would depend on "
        "which worker computes a chunk",
        "chunks": "canonical= says how many chunks there are",
    }
    if plan == "sequential":
        reasons["sizes"] = "its chunks have equal sizes; under a plan with workers sizes= divides them among these"
    for option, why in reasons.items():
        if options.get(option, "dense") != "dense":
            raise PlanError(
                f"plan {plan!r}: {option}={options[option]} does not go with canonical=: {why}; leave it out"
            )


def sizes_by(speeds: Sequence[float]) -> str:
    """Return the sizes that divide a batch by these speeds, as a plan's option; empty where a speed is not known.

    They are within an eighth of the slowest worker's chunk, since a speed that was measured is no more exact.
    """
    if not all(math.isfinite(speed) and speed > 0 for speed in speeds):
        return ""
    ratios = [speed / min(speeds) for speed in speeds]
    for unit in range(1, 5):
        sizes = [round(unit * share) for share in ratios]
        if max(abs(size / unit - share) for size, share in zip(sizes, ratios, strict=True)) <= 1 / 8:
            break
    return "+".join(map(str, sizes))
