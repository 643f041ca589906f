"""Which runs are recorded: every plan that can be replayed, with its options, on jobs of all kinds, on both engines."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

# Plans that fix the order of all sums, with a job for each.
FIXED = (
    ("sequential", "mnist-dnn"), ("sequential:chunks=3", "cnn"), ("sequential", "words"), ("sequential", "bfloat16"),
    ("sequential:chunks=2", "weighted"), ("sequential", "loaded"),
    ("ring", "mnist-dnn"), ("ring:workers=3", "settings"), ("ring", "augmented"), ("ring:workers=3", "step"),
    ("ring", "skips-nan"), ("ring", "through-time"),
    ("tree:workers=3", "cnn"), ("halving_doubling:workers=4", "mlp-adam"), ("hierarchical:workers=4", "digits"),
    ("hierarchical:workers=4,groups=4", "mlp"), ("central:workers=3", "recurrent"), ("central", "bfloat16"),
    ("local_sgd:every=2", "cnn"), ("local_sgd:workers=3,every=3", "tiny-transformer"), ("parallel_sgd", "mlp-adam"),
    ("easgd:every=2", "mlp"), ("easgd:workers=3,every=2,spring=0.2", "augmented"),
    ("diloco:every=2", "mnist-dnn"), ("diloco:workers=3,every=3,rate=0.5,momentum=0.5", "mlp-double"),
    ("gossip:workers=3", "cnn"), ("gossip:workers=4,graph=complete", "mlp-adam"),
    ("gossip:workers=4,graph=exponential", "step"),
    ("sandblaster:memory=3", "mlp-double"), ("sandblaster:workers=3", "step"),
    ("layers:cuts=3", "mlp"), ("layers:on=1+0+1,micro_batches=2,cuts=3+6", "mlp-adam"),
    ("gpipe:cuts=5", "cnn"), ("gpipe:workers=3,recompute=0+1,micro_batches=3,cuts=6+9", "settings"),
    ("gpipe:balance=memory,memory=1000", "mnist-dnn"), ("gpipe:cuts=rnn_dropout_l2,recompute=all", "recurrent"),
    ("one_f_one_b:workers=3,micro_batches=3,cuts=rnn_l1+rnn_l2", "recurrent"), ("one_f_one_b:cuts=4", "skips-nan"),
    ("one_f_one_b:balance=memory", "tiny-transformer"),
    ("zero_bubble:workers=3,cuts=3+9", "mlp-double"), ("zero_bubble:cuts=5", "augmented"),
    ("interleaved:micro_batches=3,cuts=3+6+9", "mlp"), ("interleaved:each=3,cuts=2+4+6+9+12", "mlp-adam"),
    ("pipedream:cuts=5", "cnn"), ("pipedream:workers=3,cuts=3+9", "mlp-double"),
    ("pipedream:workers=3,mode=two_buffers,micro_batches=3,cuts=6+9", "mlp-adam"),
    ("spectrain:cuts=5", "cnn"), ("spectrain:workers=3,cuts=rnn_l1+rnn_l2", "recurrent"),
    ("table:cuts=5", "cnn"), ("table:file={here}/own_table.txt,cuts=6", "mlp"),
    ("ceiling", "mlp"),
)  # fmt: skip
# Plans whose workers go on as they come: on real processes each run has an order of its own.
FREE = (
    ("downpour", "mnist-dnn"), ("downpour:workers=3,shards=2", "cnn"), ("downpour:shards=3", "words"),
    ("downpour", "words-adagrad"), ("downpour:workers=3,threads=2", "settings"), ("downpour", "cifar-resnet"),
    ("downpour", "bfloat16"),
    ("ssp:workers=3,bound=1", "step"), ("ssp:shards=2", "augmented"), ("ssp:bound=0", "words"),
    ("backup:workers=3", "cnn"), ("backup:workers=4,backups=2", "mlp-adam"),
    ("dc_asgd:workers=3", "digits"), ("dc_asgd:shards=2,mode=adaptive", "recurrent"), ("dc_asgd:lam=0.1", "mlp"),
    ("easgd:mode=asynchronous,every=2", "mnist-dnn"), ("easgd:mode=asynchronous,workers=3,spring=0.2", "cnn"),
    ("diloco:mode=asynchronous,every=3", "mlp-double"),
    ("gossip:mode=asynchronous,workers=3", "augmented"),
    ("gossip:mode=asynchronous,workers=4,graph=complete", "mlp-adam"),
    ("parallel_sgd:mode=map_reduce,parts=3", "mlp"), ("downpour:workers=3", "skips-nan"),
)  # fmt: skip
# With machine code instead of autograd.
FUSED = (
    ("sequential", "mnist-dnn"), ("sequential:chunks=2", "mnist-cnn"), ("ring", "mnist-cnn"),
    ("easgd:every=2", "mnist-dnn"), ("sandblaster:memory=3", "mnist-dnn"),
)  # fmt: skip
FUSED_FREE = (("downpour:shards=2", "mnist-cnn"), ("dc_asgd:workers=3", "mnist-dnn"))
# The virtual engine's own: slow workers, stragglers, deaths.
SLOW: dict[str, Any] = {"speeds": [1.0, 1.0, 0.25], "jitter": 0.3, "straggle": [0.2, 4.0], "seed": 3}
DEATH: dict[str, Any] = {"deaths": [[1, 0.0003]]}
WORLDS = (
    ("ring:workers=3", "cnn", SLOW), ("downpour:workers=3,shards=2", "mlp-adam", SLOW), ("ssp:workers=3", "mlp", SLOW),
    ("downpour:workers=3", "mlp", DEATH), ("backup:workers=3", "cnn", DEATH),
    ("gossip:mode=asynchronous,workers=3", "mlp", SLOW),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    plan: str
    job: str
    engine: str  # "local" or "virtual"
    fixed: bool  # whether training again gives the same bits
    compute: str = "autograd"
    world: dict[str, Any] = field(default_factory=dict)
    replays: bool = True
    updates: int = 8

    @property
    def name(self) -> str:
        words = [self.engine, self.plan.replace("{here}/", ""), self.job]
        words += ["fused"] if self.compute == "fused" else []
        words += ["death" if "deaths" in self.world else "slow"] if self.world else []
        return re.sub(r"[^\w.+-]+", "_", "-".join(words))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def all_cases() -> list[Case]:
    cases = [Case(plan, job, engine, True) for plan, job in FIXED for engine in ("virtual", "local")]
    for plan, job in FREE:
        cases += [Case(plan, job, engine, engine == "virtual", updates=24) for engine in ("virtual", "local")]
    cases += [Case(plan, job, engine, True, "fused") for plan, job in FUSED for engine in ("virtual", "local")]
    for plan, job in FUSED_FREE:
        cases += [Case(plan, job, engine, engine == "virtual", "fused", updates=24) for engine in ("virtual", "local")]
    cases += [Case(plan, job, "virtual", True, world=world) for plan, job, world in WORLDS]
    alone = Case("downpour:workers=1,shards=2", "mlp", "local", True)  # nobody to race with
    unlocked = Case("hogwild:workers=3", "mlp", "virtual", True, replays=False)
    return [*cases, alone, unlocked, Case("ddp", "mlp", "local", True, replays=False)]
