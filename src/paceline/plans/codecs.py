"""Which plans take a codec, which codecs go with them, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.algorithms.codecs import Codec, catalogue
from paceline.errors import PlanError
from paceline.plans.methods import Method

#: Why a plan takes no codec; what is not named exchanges no gradients.
REASONS = {
    "backup": "a gradient that comes too late is computed again, so what a codec owes would be owed twice",
    "hogwild": "its workers write into one memory, so that nothing travels which could be coded",
    "sandblaster": "its line search compares losses along the very gradient, which a codec changes",
    "ddp": "PyTorch's DDP has communication hooks of its own",
    "local_sgd": "its workers exchange whole replicas; diloco:rate=1,momentum=0 averages the same replicas by the "
    "steps that they made, which a codec may write",
}


def refuse_option(plan: str, others: Iterable[str]) -> PlanError:
    """Return the error of a plan that takes no codec; the others do."""
    why = REASONS.get(plan, "what its workers exchange are not gradients")
    return PlanError(f"plan {plan!r} takes no codec: {why}; plans with a codec are {', '.join(others)}")


def codec_of(plan: str, method: Method, text: str) -> Codec | None:
    """Return the codec of a plan's option; None for dense. Raise `PlanError` if the plan's method cannot use it."""
    codec = catalogue.parse(text)
    if codec is not None and (why := method.traits.no_codec):
        raise PlanError(f"plan {plan!r}: {why}, or leave codec={text} out")
    if codec is None or codec.adds or not method.sums_messages:
        return codec
    added = " and ".join(name for name, row in catalogue.CODECS.items() if row.make().adds)
    raise PlanError(
        f"plan {plan!r}: messages of codec {text} cannot be summed on their way, as {plan} does; use "
        f"ring:codec={text}, whose workers then send their messages to each other, or a codec whose messages can: "
        f"{added}"
    )


def pull_of(plan: str, codec: Codec | None, text: str) -> Codec | None:
    """Return the codec of what a server answers; None for dense. Raise `PlanError` where gradients are dense."""
    pull = catalogue.parse(text)
    if pull is not None and codec is None:
        raise PlanError(
            f"plan {plan!r}: pull={text} codes the smaller half of the traffic alone, since answers follow gradients; "
            f"give codec= as well, as in {plan}:codec=onebit,pull={text}"
        )
    if pull is not None and not pull.feedback:
        owing = ", ".join(name for name, row in catalogue.CODECS.items() if row.make().feedback)
        raise PlanError(
            f"plan {plan!r}: codec {text} rounds at random, so what a worker has would wander around the newest "
            f"parameters instead of coming nearer; answers are coded by {owing}"
        )
    return pull


def refuse_tables(plan: str, codec: object, parameter: str) -> None:
    """Raise `PlanError` for a plan with a codec where this parameter's gradient is sparse."""
    if codec not in (None, catalogue.DENSE):
        raise PlanError(
            f"parameter {parameter} gets a sparse gradient, of which only touched rows travel, and a codec writes "
            f"whole tensors; use {plan} without codec={codec}, or sparse=False"
        )
