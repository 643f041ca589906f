"""Every interleaving of a small world, breadth-first: the first bad story that is found is a shortest one."""

from __future__ import annotations

import dis
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, GeneratorType
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
    """A program that is explored. A generator cannot be copied: a copy runs the program again with the same answers."""

    def __init__(self, start: Callable[[], Generator[E, Any, None]]) -> None:
        self._start = start
        self._answers: tuple[Any, ...] = ()
        self._program: Generator[E, Any, None] | None = start()
        #: What it has yielded last, and waits for the answer to; None where it has ended.
        self.effect: E | None = next(self._program, None)
        #: Its variables when they last were all that it goes on from, and the answers that it has had since.
        self._memory: tuple[Hashable, ...] = variables_of(self._program) or ()

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
        self._memory = variables_of(self._program) or (*self._memory, answer)

    def key(self) -> tuple[Any, ...]:
        """Return what is equal for programs that have had the same answers, and so are at the same point."""
        return type(self.effect), self._answers

    def point(self) -> tuple[Hashable, ...]:
        """Return what is equal for programs that go on alike, also where their answers have been different.

        The world has to keep what its invariants need of those answers.
        """
        return self.effect, *self._memory


def variables_of(program: Generator[Any, Any, None]) -> tuple[Hashable, ...] | None:
    """Return where a generator stands and its variables, if these decide how it goes on; else None.

    Within a `for` loop it goes on from an iterator, too, which cannot be read.
    """
    places: list[Hashable] = []
    inner: Any = program
    while inner is not None:
        if not isinstance(inner, GeneratorType):
            return None  # it yields from an iterator
        if (frame := inner.gi_frame) is None:
            return (None,)  # it has ended
        if any(start < frame.f_lasti < stop for start, stop in _for_loops(frame.f_code)):
            return None
        places.append((frame.f_code, frame.f_lasti, *frame.f_locals.items()))
        inner = inner.gi_yieldfrom
    try:
        hash(tuple(places))
    except TypeError:
        return None  # a variable that can change has no value to compare
    return tuple(places)


@lru_cache
def _for_loops(code: CodeType) -> list[tuple[int, int]]:
    """Return where the `for` loops of a function begin and end."""
    return [(each.offset, each.argval) for each in dis.get_instructions(code) if each.opname == "FOR_ITER"]


P = TypeVar("P")


class Workers(World, Protocol[P]):
    """A small world of workers that run programs; `P` tells them apart."""

    workers: dict[P, Walker[Any]]
    dead: frozenset[P]
    #: What has gone wrong in it; None where nothing has.
    fault: str | None


V = TypeVar("V", bound=Workers[Any])


class ProgramExplorer(ABC, Generic[V, P]):
    """The moves of workers that run programs: each makes its next effect, or dies before it.

    A world is at its end when no worker can go on. There every worker has ended; or it waits, directly or through
    others, for one that has died.
    """

    #: Effects that other workers see. In whatever order the others between them are answered, no worker can tell.
    visible: tuple[type, ...]
    #: The most workers that die.
    deaths: int

    def name(self, place: P) -> str:
        return f"worker {place}"

    @abstractmethod
    def describe(self, effect: Any) -> str:
        """Return an effect in words."""

    @abstractmethod
    def missing(self, world: V, place: P) -> Collection[P]:
        """Return the workers that one waits for at its effect; none where it can go on."""

    @abstractmethod
    def arrive(self, world: V, place: P) -> None:
        """Let the others have what a worker contributes to the effect that it has come to."""

    @abstractmethod
    def go_on(self, world: V, place: P, effect: Any) -> str:
        """Answer an effect, so that the worker goes on to its next one; tell it."""

    def moves(self, world: V) -> Iterator[tuple[str, P]]:
        for place, worker in world.workers.items():
            if place in world.dead or worker.effect is None:
                continue
            if not self.missing(world, place):
                yield "goes on", place
            if len(world.dead) < self.deaths:
                yield "dies", place

    def ended(self, moves: Sequence[tuple[str, P]]) -> bool:
        return all(kind == "dies" for kind, _ in moves)

    def make(self, world: V, move: tuple[str, P]) -> Scene:
        kind, place = move
        if kind == "dies":
            world.dead |= {place}
            return Scene(self.name(place), "dies")
        worker, words = world.workers[place].copy(), list[str]()
        world.workers[place] = worker
        while (effect := worker.effect) is not None:
            if words and (world.fault or isinstance(effect, self.visible) or self.missing(world, place)):
                break
            words.append(self.go_on(world, place, effect))
        self.arrive(world, place)
        return Scene(self.name(place), ", ".join(words))

    def fault(self, world: V) -> str | None:
        return world.fault

    def stuck(self, world: V) -> str | None:
        """Describe a worker that waits for ever, and for none that has died."""
        for place, worker in world.workers.items():
            if place in world.dead or worker.effect is None or self._waits_for_dead(world, place):
                continue
            others = ", ".join(map(self.name, sorted(self.missing(world, place))))  # type: ignore[type-var]
            return f"{self.name(place)} waits for ever at {self.describe(worker.effect)}: it needs {others}"
        return None

    def _waits_for_dead(self, world: V, place: P) -> bool:
        visited, behind = {place}, [place]
        while behind:
            for other in self.missing(world, behind.pop()):
                if other in world.dead:
                    return True
                if other not in visited:
                    visited.add(other)
                    behind.append(other)
        return False


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
    """Visit every state once, and return the shortest story in which an invariant fails, if there is one.

    From every state an end can be reached, or workers go on for ever.
    """
    first = explorer.first()
    start = explorer.key(first)
    came_from: dict[Any, tuple[Any, Scene] | None] = {start: None}
    before: dict[Any, list[Any]] = {}
    ends: list[Any] = []
    queue, moves = deque([(start, first)]), 0

    def wrong(scenes: list[Scene], fault: str) -> Explored:
        return Explored(len(came_from), moves, format_story("A world goes wrong:", scenes, fault))

    while queue:
        key, world = queue.popleft()
        options = list(explorer.moves(world))
        if explorer.ended(options):
            ends.append(key)
            if fault := explorer.fault_at_end(world):
                return wrong(_path(came_from, key), fault)
        for move in options:
            moves += 1
            then = world.copy()
            scene = explorer.make(then, move)
            if fault := explorer.fault(then):
                return wrong([*_path(came_from, key), scene], fault)
            if (new := explorer.key(then)) not in came_from:
                came_from[new] = (key, scene)
                queue.append((new, then))
            before.setdefault(new, []).append(key)
    leading = _leading_to(ends, before)
    if endless := next((key for key in came_from if key not in leading), None):
        return wrong(_path(came_from, endless), "from here on workers go on for ever")
    return Explored(len(came_from), moves, None)


def _leading_to(ends: Iterable[Any], before: Mapping[Any, Sequence[Any]]) -> set[Any]:
    """Return the states from which one of these can be reached."""
    leading, behind = set(ends), list(ends)
    while behind:
        earlier = {*before.get(behind.pop(), ())} - leading
        leading |= earlier
        behind += earlier
    return leading


def _path(came_from: dict[Any, tuple[Any, Scene] | None], key: Any) -> list[Scene]:
    scenes: list[Scene] = []
    while (step := came_from[key]) is not None:
        key, scene = step
        scenes.append(scene)
    return scenes[::-1]
