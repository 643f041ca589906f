"""NativeDdp: PyTorch's own DistributedDataParallel, as a peer to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plans.methods import Division, Traits


@dataclass(frozen=True)
class NativeDdp:
    """Trains under DistributedDataParallel."""

    traits = Traits(
        agrees=True,
        devices="native",
        traced=False,
        not_replayable="PyTorch does not record in which order gradients were added",
        needs_train="is what your script does without Paceline",
        cannot_skip="PyTorch sums gradients while they are computed",
        local_only="is PyTorch's own code and runs on real processes only",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers)

    def prove(self, workers: int) -> None:
        """Do nothing: PyTorch's collectives have no table."""
