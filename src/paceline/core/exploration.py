"""Every interleaving of a small world, breadth-first: the first bad story that is found is a shortest one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from paceline.narrative import Scene, format_story


class World(Protocol):
    """The state of a small world."""

    def copy(self: W) -> W: ...


W = TypeVar("W", bound=World)
M = TypeVar("M")


class Explorer(Protocol[W, M]):
    """The moves and the invariants of a small world."""

    def first(self) -> W: ...

    def key(self, world: W) -> Hashable:
        """Return what is equal for worlds that go on alike."""

    def moves(self, world: W) -> Iterator[M]: ...

    def ended(self, moves: Sequence[M]) -> bool:
        """Whether a world with these moves is at its end."""

    def make(self, world: W, move: M) -> Scene:
        """Change the world by a move, and tell it."""

    def fault(self, world: W) -> str | None:
        """Describe an invariant that fails in this state; None if all hold."""

    def fault_at_end(self, world: W) -> str | None:
        """Describe what is missing in a final state; None if nothing is."""


E = TypeVar("E")


class Walker(Generic[E]):
    """A program that is explored. A generator cannot be copied: a copy runs the program again with the same answers.

    Programs that have had the same answers are at the same point, so these are what its key is made of.
    """

    def __init__(self, start: Callable[[], Generator[E, Any, None]]) -> None:
        self._start = start
        self._answers: tuple[Any, ...] = ()
        self._program: Generator[E, Any, None] | None = start()
        #: What it has yielded last, and waits for the answer to; None where it has ended.
        self.effect: E | None = next(self._program, None)

    def copy(self) -> Walker[E]:
        copied: Walker[E] = object.__new__(Walker)
        copied.__dict__.update(self.__dict__, _program=None)
        return copied

    def send(self, answer: Any) -> None:
        """Answer the effect; the program goes on to its next one."""
        if self._program is None:
            self._program = self._start()
            next(self._program)
            for earlier in self._answers:
                self._program.send(earlier)
        self._answers = (*self._answers, answer)
        try:
            self.effect = self._program.send(answer)
        except StopIteration:
            self.effect = None

    def key(self) -> tuple[Any, ...]:
        return type(self.effect), self._answers


@dataclass
class Explored:
    """The result of an exploration."""

    states: int
    moves: int
    #: The shortest story in which an invariant fails; None if there is none.
    story: str | None

    @property
    def good(self) -> bool:
        return self.story is None


def breadth_first(explorer: Explorer[W, M]) -> Explored:
    """Visit every state once, and return the shortest story in which an invariant fails, if there is one."""
    first = explorer.first()
    came_from: dict[Any, tuple[Any, Scene] | None] = {explorer.key(first): None}
    queue, moves = deque([first]), 0
    while queue:
        world = queue.popleft()
        key, options = explorer.key(world), list(explorer.moves(world))
        if explorer.ended(options) and (fault := explorer.fault_at_end(world)):
            return Explored(len(came_from), moves, format_story("A world goes wrong:", _path(came_from, key), fault))
        for move in options:
            moves += 1
            then = world.copy()
            scene = explorer.make(then, move)
            if fault := explorer.fault(then):
                story = [*_path(came_from, key), scene]
                return Explored(len(came_from), moves, format_story("A world goes wrong:", story, fault))
            if (new := explorer.key(then)) not in came_from:
                came_from[new] = (key, scene)
                queue.append(then)
    return Explored(len(came_from), moves, None)


def _path(came_from: dict[Any, tuple[Any, Scene] | None], key: Any) -> list[Scene]:
    scenes: list[Scene] = []
    while (step := came_from[key]) is not None:
        key, scene = step
        scenes.append(scene)
    return scenes[::-1]
