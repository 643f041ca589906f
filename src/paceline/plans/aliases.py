"""Other names of plans: those that papers and other libraries have for the same method."""

from __future__ import annotations

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
