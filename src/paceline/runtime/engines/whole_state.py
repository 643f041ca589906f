"""A checkpoint of one plan as the start of another: its state put together by the names of parameters, and dealt again.

Plans whose workers make every update together hold one model between them: each worker all of it, or parts of its
layers, or stages. What the optimizer keeps of each number of a parameter lies as the parameter does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from paceline.plans.plan import Plan
from paceline.runtime.engines.checkpoints import Checkpoint
from paceline.runtime.engines.holdings import pieces, stored_in
from paceline.runtime.engines.setup import Setup
from paceline.training.parameters.worker_state import WorkerState
from paceline.training.splits.slicing import assembled, stored_part


def holds_one_model(plan: Plan) -> bool:
    """Whether a plan's workers hold one model and one optimizer's state between them, after every update."""
    return plan.traits.one_model and plan.codec is None and (plan.traits.exchanges or plan.workers == 1)


@dataclass
class WholeState:
    """The state of a run after an update, by the names of parameters and buffers."""

    values: dict[str, Tensor] = field(default_factory=dict)
    #: By parameter: what the optimizer keeps of it, tensors and numbers.
    optimizer: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: What is the same for all parameters: the optimizer's settings, the schedule.
    common: WorkerState = field(default_factory=WorkerState)


def translated(checkpoint: Checkpoint, before: Setup, after: Setup) -> Checkpoint:
    """Return the checkpoint of the plan `before` as one of the plan `after`."""
    return replace(checkpoint, holders=_dealt(_gathered(checkpoint, before), after))


def _gathered(checkpoint: Checkpoint, setup: Setup) -> WholeState:
    """Put the parts of all workers together."""
    workers, whole = checkpoint.workers(), WholeState()
    shapes = {name: tuple(t.shape) for name, t in (*setup.module.named_parameters(), *setup.module.named_buffers())}
    values: dict[str, dict[int, Tensor]] = {}
    by_place: dict[str, dict[str, dict[int, Tensor]]] = {}
    for piece in pieces(setup):
        state = workers[piece.worker]
        facts = state.facts if piece.stage < 0 else state.facts[str(piece.stage)]
        for number, name in enumerate((*piece.parameters, *piece.moving)):
            values.setdefault(name, {}).setdefault(piece.place, state.tensors[piece.key(number)])
        of_stage = {k.removeprefix(piece.start): t for k, t in state.tensors.items() if k.startswith(piece.start)}
        memories = WorkerState(of_stage).remembered("optimizer", len(piece.parameters))
        for number, (name, memory) in enumerate(zip(piece.parameters, memories, strict=True)):
            for key, tensor in memory.items():
                by_place.setdefault(name, {}).setdefault(key, {}).setdefault(piece.place, tensor)
            if numbers := facts["optimizer"].get(str(number)):
                whole.numbers[name] = numbers
        if not whole.common.facts:
            whole.common = WorkerState({k: t for k, t in of_stage.items() if k.startswith("setting.")}, facts)
    for name, parts in values.items():
        stored, shape = stored_in(setup, name), shapes[name]
        whole.values[name] = assembled([parts[place] for place in sorted(parts)], stored, shape)
        for key, mine in by_place.get(name, {}).items():
            each = [mine[place] for place in sorted(mine)]
            lies_so = all(mine[place].shape == parts[place].shape for place in mine)
            whole.optimizer.setdefault(name, {})[key] = assembled(each, stored, shape) if lies_so else each[0].clone()
    return whole


def _dealt(whole_state: WholeState, setup: Setup) -> dict[str, WorkerState]:
    """Give each worker its parts."""
    holders = {f"worker.{number}": WorkerState() for number in range(setup.plan.workers)}
    for piece in pieces(setup):
        tensors: dict[str, Tensor] = {}
        for number, name in enumerate((*piece.parameters, *piece.moving)):
            value, stored = whole_state.values[name], stored_in(setup, name)
            tensors[piece.key(number)] = stored_part(value, stored, piece.place).contiguous()
            for key, tensor in whole_state.optimizer.get(name, {}).items():
                mine = stored_part(tensor, stored, piece.place) if tensor.shape == value.shape else tensor
                tensors[f"{piece.start}optimizer.{number}.{key}"] = mine.contiguous()
        tensors |= {f"{piece.start}{key}": tensor for key, tensor in whole_state.common.tensors.items()}
        numbers = {
            str(n): whole_state.numbers[name] for n, name in enumerate(piece.parameters) if name in whole_state.numbers
        }
        facts = {**whole_state.common.facts, "optimizer": numbers, "elsewhere": []}
        holders[f"worker.{piece.worker}"] |= WorkerState(
            tensors, facts if piece.stage < 0 else {str(piece.stage): facts}
        )
    return holders
