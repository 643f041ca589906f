"""A group as one rank has it: what it calls announces itself, and waits until the others have come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from paceline.concurrency.explore.finding import Finding, at
from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.interpose.control import step
from paceline.concurrency.explore.operation import Mode
from paceline.concurrency.explore.ranks.meetings import Call, Group, Meeting, Parcel

Reduction = Callable[[Sequence[Any]], Any]
#: What the rank at the position `me` gets of what all ranks have brought, a list each.
RESULTS: dict[str, Callable[[list[list[Any]], int, int, Reduction], list[Any]]] = {
    "barrier": lambda all_, me, root, reduced: [],
    "broadcast": lambda all_, me, root, reduced: all_[root],
    "scatter": lambda all_, me, root, reduced: [all_[root][me]],
    "gather": lambda all_, me, root, reduced: [each[0] for each in all_] if me == root else [],
    "all_gather": lambda all_, me, root, reduced: [each for parts in zip(*all_, strict=True) for each in parts],
    "all_to_all": lambda all_, me, root, reduced: [each[me] for each in all_],
    "reduce": lambda all_, me, root, reduced: list(map(reduced, zip(*all_, strict=True))) if me == root else [],
    "all_reduce": lambda all_, me, root, reduced: list(map(reduced, zip(*all_, strict=True))),
    "reduce_scatter": lambda all_, me, root, reduced: [reduced([each[me] for each in all_])],
    "scan": lambda all_, me, root, reduced: [reduced([each[0] for each in all_[: me + 1]])],
}
ROOTED = {"broadcast": "from", "scatter": "from", "gather": "to", "reduce": "to"}
_groups: dict[str, Group] = {}


class Member:
    """The rank at one position of a group, whose `members` are ranks of the world."""

    def __init__(self, name: str, position: int, members: tuple[int, ...]) -> None:
        self.position, self.members = position, members
        self._group = _groups.setdefault(name, Group(members))

    @property
    def calls(self) -> int:
        return self._group.calls[self.members[self.position]]

    def call(
        self, kind: str, data: list[Any], words: str = "", root: int = 0, reduced: Reduction = list, name: str = ""
    ) -> Callable[[], list[Any]]:
        """Bring a call to its meeting; return what waits for the others, and returns the results of this rank.

        The `words` say what must be the same on all ranks, such as shapes, and the name is the program's.
        """
        detail = f"{words} {ROOTED[kind]} {root}" if kind in ROOTED else words
        call = Call(*_name_of_call(name or kind), name or kind, detail.strip(), control.place())
        meeting = self._group.arrive(self.members[self.position], call, data)
        if (two := meeting.different()) is not None:
            assert control.run is not None
            control.run.finish(_different(meeting, *two))

        def results() -> list[Any]:
            complete: Callable[[], bool] = lambda: len(meeting.calls) == len(self.members)  # noqa: E731
            step("calls", call, ("meeting", id(meeting)), mode="read", ready=complete)
            return RESULTS[kind]([meeting.data[rank] for rank in self.members], self.position, root, reduced)

        return results

    def send(self, receiver: int, tag: int, data: Any) -> Callable[[], Parcel]:
        """Bring a message; return what waits until it is received: a real backend may keep only a small one so long."""
        # Which of two messages comes first matters to a receiver that takes one from any rank.
        mode: Mode = "write" if receiver in self._group.open else "mark"
        step("sends to", f"rank {self.members[receiver]}", ("messages", id(self._group), receiver), mode=mode)
        parcel = self._group.bring(receiver, Parcel(self.position, tag, False, data))
        return lambda: _meet(f"send to rank {self.members[receiver]}", parcel)

    def receive(self, sender: int | None, tag: int | None) -> Callable[[], Parcel]:
        """Bring a request; return what waits for its message, and returns that."""
        if sender is None:
            self._group.open.add(self.position)
            step("looks for", "messages", ("messages", id(self._group), self.position))
        parcel = self._group.bring(self.position, Parcel(sender, tag, True))
        source = "any rank" if sender is None else f"rank {self.members[sender]}"
        return lambda: _meet(f"recv from {source}", parcel)


def _meet(call: str, parcel: Parcel) -> Parcel:
    """Wait for the other side of a message."""
    step("calls", call, id(parcel), mode="read", ready=lambda: parcel.met is not None)
    assert parcel.met is not None
    return parcel.met


def _name_of_call(name: str) -> tuple[str, bool]:
    """Name a collective as the program calls it, or what DDP does on its behalf; whether Join calls it for DDP."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and control.MARK not in frame.f_globals:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module == "torch.distributed.algorithms.join":
            return name, True
        if module.startswith("torch.autograd"):
            return "gradient of DDP", False
        if module == "torch.nn.parallel.distributed":
            name = "start of DDP" if function == "__init__" else name
            name = "buffers of DDP" if function in ("_sync_buffers", "_pre_forward") else name
        elif module.startswith("torch.distributed.distributed_c10d") and function not in ("wrapper", "<lambda>"):
            name = function
        frame = frame.f_back
    return name, False


def _different(meeting: Meeting, first: int, second: int) -> Finding:
    calls = meeting.calls
    same_name = calls[first].name == calls[second].name

    def words(rank: int, full: bool) -> str:
        return f"calls {calls[rank].name}{f'({calls[rank].detail})' if full else ''}"

    scenes = tuple((f"rank {rank}", words(rank, True), calls[rank].place) for rank in (first, second))
    message = ", ".join(f"rank {rank} {words(rank, same_name)}{at(calls[rank].place)}" for rank in (second, first))
    advice = "let every rank call the same collectives in the same order"
    return Finding("collectives differ", message, scenes, advice, calls[second].place)
