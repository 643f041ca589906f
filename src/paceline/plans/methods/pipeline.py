"""Pipeline: workers hold different stages of the model, and a schedule orders their work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.schedules import Schedule, Table, table_of
from paceline.errors import PlanError
from paceline.plans.methods import Division, Traits

LARGEST = 200_000  # cells of a table, whose proof takes half a minute


@dataclass(frozen=True)
class Pipeline:
    """Runs the stages of a model by a schedule."""

    schedule: Schedule
    micro_batches: int = 1
    #: Names of the layers where stages begin, joined by +; empty where stages are balanced automatically.
    cuts: str = ""
    #: What is balanced between stages: "time", which is measured, or "memory" or "operations", which are counted.
    balance: str = "time"
    #: Which stages compute activations again instead of keeping them: "none", "all", or numbers joined by +.
    recompute: str = "none"
    #: MiB that a worker may use; 0 for no bound.
    memory: int = 0

    @property
    def traits(self) -> Traits:
        flush = (
            "it never has the gradient of the whole model at one time. The last stage makes its update before the "
            "first has a gradient of the same batch, so the norm of the whole gradient is not known yet; to wait for "
            "it would be a flush. Leave it out (with a smaller learning rate), or use a pipeline that flushes, such "
            "as one_f_one_b"
        )
        refusal = "" if self.flushes else flush
        return Traits(
            takes_sparse=True,
            devices="stages",
            needs_train="cuts the model into stages, and your loop has it whole",
            cannot_clip=refusal,
            cannot_skip=refusal,
            no_checkpoints="its pipeline is never empty before the end" if self.schedule.span == 0 else "",
        )

    @property
    def flushes(self) -> bool:
        """Whether the pipeline is empty after every update."""
        return self.schedule.span == 1

    def division(self, workers: int, chunks: int) -> Division:
        return Division(self.micro_batches)

    def prove(self, workers: int) -> None:
        """Do nothing: tables depend on the batches of a training; `engines.setup` proves those that will be used."""

    def stages(self, workers: int) -> int:
        return len(self.schedule.layout(workers).stage_to_worker)

    def recomputing(self, workers: int) -> tuple[int, ...]:
        """The stages that compute their activations again."""
        every = {"none": (), "all": tuple(range(self.stages(workers)))}
        return every[self.recompute] if self.recompute in every else tuple(map(int, self.recompute.split("+")))

    def table(self, workers: int, counts: Sequence[int]) -> Table:
        """Return the table of these updates, each of so many micro-batches."""
        if (size := self.stages(workers) * sum(counts)) > LARGEST:
            raise PlanError(
                f"the table of this pipeline would have {size:,} cells, micro-batches times stages, and at most "
                f"{LARGEST:,} are proved; give fewer micro_batches or workers"
            )
        return table_of(self.schedule, workers, counts)

    def check_stages(self, name: str, workers: int) -> None:
        """Raise `PlanError` if cuts or recomputation name stages that the plan does not have."""
        stages = self.stages(workers)
        cuts = self.cuts.count("+") + 1 if self.cuts else stages - 1
        if cuts + 1 != stages:
            raise PlanError(f"{cuts} cuts ({self.cuts}) make {cuts + 1} stages, and the plan has {stages}")
        words = [] if self.recompute in ("none", "all") else self.recompute.split("+")
        if not all(word.isdecimal() and int(word) < stages for word in words):
            raise PlanError(
                f"plan {name!r}: recompute={self.recompute!r} is neither 'none' nor 'all' nor stages from 0 to "
                f"{stages - 1}, as in recompute=0+1"
            )
