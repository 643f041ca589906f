"""What a named plan is: its method, its options and their meaning, its other names, and the codecs that go with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from paceline.algorithms.codecs import Codec, catalogue
from paceline.errors import PlanError
from paceline.plans.methods import Method

Option = int | float | str


class Kind(NamedTuple):
    """The values that an option may have.

    The default says whether it is an integer, a number (None stands for the method's own default) or a word: one of
    `words`, or any word if `words` is empty.
    """

    default: Option | None
    least: float = 1
    words: tuple[str, ...] = ()
    most: float = math.inf

    @property
    def free(self) -> bool:
        """Whether any word is allowed."""
        return isinstance(self.default, str) and not self.words

    def refusal(self, value: object) -> str | None:
        """Return what is wrong with a value, or None."""
        if self.free:
            return None if isinstance(value, str) else "is not a word"
        if self.words:
            return None if value in self.words else f"is not one of {', '.join(self.words)}"
        what = "whole number" if isinstance(self.default, int) else "number"
        fits = isinstance(value, int if isinstance(self.default, int) else int | float) and not isinstance(value, bool)
        fits = fits and self.least <= value < math.inf  # type: ignore[operator]
        if fits and value > self.most:  # type: ignore[operator]
            return f"is more than {self.most}"
        return None if fits else f"is not a {what} of at least {self.least}"


@dataclass(frozen=True)
class Recipe:
    """A named plan: one line about it, the function that makes its method from options, and its options.

    The function names the options that it needs as its parameters; `workers` and `threads` belong to every plan of
    several processes and need not be named.
    """

    about: str
    method: Callable[..., Method]
    options: dict[str, Kind]


WORKERS, THREADS = Kind(2), Kind(1)
TEAM = {"workers": WORKERS, "threads": THREADS}
SIZES = Kind("")
CANONICAL = Kind(0, least=0)
# Of plans whose workers sum their gradients.
SUMMED = {**TEAM, "codec": Kind("dense"), "sizes": SIZES, "canonical": CANONICAL}
SERVER = {**TEAM, "codec": Kind("dense"), "shards": Kind(1), "chunks": Kind(1)}
PULLED = {**SERVER, "pull": Kind("dense")}  # of servers whose answers may be coded, too


# Other names of plans: those that papers and other libraries have for the same method.

#: What a plan is called elsewhere, and its name and options here. Only names that mean the same method.
ALIASES = {
    "1f1b": "one_f_one_b",
    "ad_psgd": "gossip:mode=asynchronous",
    "all_reduce": "ring",
    "allreduce": "ring",
    "async_ps": "downpour",
    "d_psgd": "gossip",
    "distributed_data_parallel": "ddp",
    "elastic_averaging": "easgd",
    "fsdp": "zero:stage=3",
    "lbfgs": "sandblaster",
    "model_averaging": "local_sgd",
    "parameter_server": "downpour",
    "ps": "downpour",
    "ring_allreduce": "ring",
    "single": "sequential",
    "stale_synchronous": "ssp",
    "sync_ps": "central",
    "tensor_parallel": "tensor",
    "zb": "zero_bubble",
}

#: Methods that people look for and that Paceline does not have, with what comes nearest and how it differs.
NEAREST = {
    "deepspeed": "zero divides optimizer state, gradients and parameters as its ZeRO does; gpipe is a pipeline",
    "fedavg": "local_sgd is FedAvg whose clients all take part and share one data set",
    "horovod": "ring is its all-reduce; `paceline compare --script` measures a script of your own",
    "model_parallel": "layers and gpipe cut the model by depth, tensor splits its layers",
    "moe": "experts divides a mixture of experts among workers",
    "pipeline": "gpipe and one_f_one_b are pipelines; `paceline plans` lists all",
}


def canonical(name: str) -> tuple[str, str]:
    """Return a plan's own name, and the options that an alias stands for; case and hyphens do not matter."""
    word = name.strip().lower().replace("-", "_")
    plan_name, _, options = ALIASES.get(word, word).partition(":")
    return plan_name, options


# What the options of plans mean, a line each, as `paceline plans NAME` prints them.

MEANINGS = {
    "active": "chunks under way at a time",
    "backups": "workers whose gradients an update does not wait for",
    "balance": "what stages are balanced by",
    "bound": "updates that a worker may be ahead of the slowest",
    "canonical": "chunks of a batch, summed in one order: the same bits with any number of workers; 0: no such order",
    "chunks": "pieces in which a batch is computed, one after another; on a cluster by as many processes of a node",
    "codec": "how gradients are coded on their way, as docs/internals/codecs.md lists",
    "cuts": "modules at which the model is cut; balanced if empty",
    "data": "replicas of the whole model",
    "each": "stages of every worker",
    "every": "local steps, or chunks of an operator, between two exchanges",
    "file": "the file with a schedule of your own",
    "fragments": "parts of the parameters that are exchanged one after another within a period",
    "graph": "who exchanges with whom",
    "groups": "groups within which gradients are summed first",
    "inside": "workers that share the layers of a stage",
    "lam": "strength of the compensation; the published value if not given",
    "layers": "stages of a replica; as many as there are workers for if 0",
    "memory": "MiB that a worker may take (0: no bound); of sandblaster, pairs of vectors that are kept",
    "micro_batches": "pieces of a batch that follow each other through the stages",
    "mode": "the variant of the method",
    "momentum": "momentum of the outer step",
    "on": "the worker of each stage or operator, joined by +",
    "overlap": "updates that are computed while replicas are exchanged",
    "parts": "disjoint parts of the data, of which each worker trains on one after another",
    "pull": "how newer parameters are coded on their way to a worker",
    "rate": "learning rate of the outer step",
    "recompute": "what is computed again in the backward pass instead of kept",
    "schedule": "the order of forward and backward passes",
    "shards": "parts of the parameters, each with a lock and a version of its own",
    "sizes": "relative sizes of the chunks of a batch, or of workers' shares of them, joined by +; equal if empty; "
    "measured: shares that follow the speeds of workers",
    "small": "weights of a dense layer up to which all workers compute it",
    "spring": "pull towards the centre; the published 0.9 / workers if not given",
    "stage": "1: the optimizer's state is divided; 2: gradients, too; 3: parameters, too",
    "threads": "threads of each process",
    "ways": "how layers are split: pattern:way, joined by +",
    "workers": "processes",
}


# Which plans take a codec, which codecs go with them, and why the others do not.

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
