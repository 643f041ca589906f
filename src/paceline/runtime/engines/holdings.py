"""Who holds what: the parameters and buffers of each worker, of plans whose workers hold one model between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paceline.plans.methods.pipeline import LAYERS
from paceline.plans.methods.split_layers import INSIDE
from paceline.runtime.engines.setup import Setup
from paceline.training.parameters.layout import not_trained, trainable
from paceline.training.splits.slicing import Stored, stored_part
from paceline.training.stages.blueprint import held


class Piece(NamedTuple):
    """What one worker holds of some parameters, in the state that it writes."""

    worker: int
    #: The worker's place among those that share layers.
    place: int
    parameters: list[str]
    moving: list[str]
    #: The stage of a pipeline; -1 without stages.
    stage: int = -1

    @property
    def start(self) -> str:
        """What the names of the optimizer's tensors begin with."""
        return f"{self.stage}/" if self.stage >= 0 else ""

    def key(self, number: int) -> str:
        """Return the name of a value in the worker's state."""
        return f"values.{number}" if self.stage < 0 else (*self.parameters, *self.moving)[number]


def pieces(setup: Setup) -> Iterator[Piece]:
    """Yield what each worker holds."""
    named, workers = list(trainable(setup.module)), setup.plan.workers
    moving = list(setup.probe.moving)
    if setup.pipeline is not None and setup.blueprint is not None:
        mesh, blueprint = setup.pipeline.mesh(workers), setup.blueprint
        module = setup.fresh_module()
        stages = held(blueprint.codes(module), module)
        for worker in range(workers):
            for stage, names in enumerate(stages):
                if blueprint.stage_to_worker[stage] == mesh.coordinate(worker, LAYERS):
                    mine = [name for name in names if name in named], [name for name in moving if name in names]
                    yield Piece(worker, mesh.coordinate(worker, INSIDE), *mine, stage)
    elif setup.split is not None:
        mesh = setup.plan.method.mesh(workers)
        yield from (Piece(worker, mesh.coordinate(worker, INSIDE), named, moving) for worker in range(workers))
    else:
        yield Piece(0, 0, named, moving)


def stored_in(setup: Setup, name: str) -> Stored | None:
    """Return how a parameter or buffer lies with the workers that share its layer; None where each has all of it."""
    divided = setup.blueprint or setup.split
    return divided.stored.get(name) if divided is not None else None


def bytes_held(setup: Setup) -> dict[str, tuple[int, ...]]:
    """Return, for each parameter and moving buffer, its bytes at each worker; nothing where each holds all of them."""
    module, workers = setup.module, setup.plan.workers
    tensors = {**trainable(module), **{n: b for n, b in not_trained(module).items() if n in setup.probe.moving}}
    sizes = {name: [0] * workers for name in tensors}
    if setup.operators is not None:
        for operator, worker in setup.operators.holders.items():
            for name, tensor in tensors.items():
                if name.startswith(f"{setup.operators.names[operator]}."):
                    sizes[name][worker] = tensor.nbytes
    elif setup.blueprint is not None or setup.split is not None:
        for piece in pieces(setup):
            for name in (*piece.parameters, *piece.moving):
                sizes[name][piece.worker] = stored_part(tensors[name], stored_in(setup, name), piece.place).nbytes
    else:
        return {}
    return {name: tuple(mine) for name, mine in sizes.items()}
