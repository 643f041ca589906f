"""NativeDdp: PyTorch's own DistributedDataParallel, as a peer to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plans.methods import Division, Traits

#: Why a gradient cannot be looked at before it is added up.
SUMMED = "PyTorch sums gradients while they are computed"


@dataclass(frozen=True)
class NativeDdp:
    """Trains under DistributedDataParallel."""

    traits = Traits(
        agrees=True,
        devices="native",
        traced=False,
        not_replayable="PyTorch does not record in which order gradients were added",
        needs_train="is what your script does without Paceline",
        cannot_skip=SUMMED,
        cannot_scale=SUMMED,
        local_only="is PyTorch's own code and runs on real processes only",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers)

    def prove(self, workers: int) -> None:
        """Do nothing: PyTorch's collectives have no table."""
